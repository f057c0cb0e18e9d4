"""A short run of the fuzzer; and its oracle, which names every kind of wrong answer and is silent on a right one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fuzzer import Fuzzer
from mutations import Mutation, Promise, mutate
from oracle import MEMORY_BYTES, Answer, Runner, complaint

SHORT = 9


@pytest.fixture(scope="module")
def fuzzer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzer]:
    fuzzer = Fuzzer(tmp_path_factory.mktemp("fuzz"))
    yield fuzzer
    fuzzer.close()


def test_mutated_recordings_are_answered_as_they_may_be(fuzzer: Fuzzer) -> None:
    # given mutations of all formats; `make fuzz` runs many more
    answers = [fuzzer.run(number) for number in range(SHORT)]
    # then no answer is wrong
    assert [f"{what}: {mutation}" for mutation, _, what in answers if what] == []
    # and they were not the same each time
    assert len({(answer.code, answer.err) for _, answer, _ in answers}) > SHORT / 4
    assert {mutation.sealed for mutation, _, _ in answers} == {True, False}


def test_a_number_gives_the_same_mutation(fuzzer: Fuzzer, tmp_path: Path) -> None:
    made = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        made.append([mutate(number, fuzzer.samples, tmp_path / name) for number in range(10)])
    assert made[0] == made[1]
    assert len({str(mutation) for mutation in made[0]}) == 10


# --- the oracle


ORIGIN = dict.fromkeys(
    ("step", "rank", "phase", "module", "op", "call", "role", "index", "tensor"), 0
)


def verdict(code: int, word: str, *, err: str = "", **values: Any) -> Answer:
    origins = [ORIGIN] if word == "diverged" else []
    return Answer(code, json.dumps({"verdict": word, "origins": origins, **values}), err)


AGREES = verdict(0, "agree")
REFUSED = Answer(2, "", "lockstep: ref/manifest.json: was changed after it was written\n")
PARTIAL = verdict(2, "incomparable", not_compared=["rank1 occurs only in the candidate"])
PANIC = Answer(2, "", "thread 'main' panicked\n" * 65 + "lockstep: cannot be read\n")
TRACEBACK = Answer(
    2, "", 'Traceback (most recent call last):\n  File "a/b.py", line 3, in f\nKeyError: 1'
)


def mutation(promise: Promise) -> Mutation:
    return Mutation(0, "sketch", "ref", ("compare", "ref", "cand"), True, promise, "")


@pytest.mark.parametrize("promise", Promise)
@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Answer("hung", "", ""), "hung"),
        (Answer("died of signal 11", "", ""), "died of signal 11"),
        (TRACEBACK, "traceback: a/b.py:3:f"),
        (PANIC, "unclear error"),
        (replace(AGREES, grown_bytes=MEMORY_BYTES + 1), "memory"),
        (Answer(0, "a\x1b[31mred", ""), "control characters"),
        (Answer(2, "", f"lockstep: {'x' * 900}\n"), "unclear error"),
        (Answer(2, "", ""), "silent failure"),
        (Answer(130, "", ""), "exit code 130"),
    ],
)
def test_what_no_recording_may_lead_to_is_named(
    promise: Promise, found: Answer, words: str
) -> None:
    assert complaint(mutation(promise), AGREES, found).startswith(words)


@pytest.mark.parametrize(
    ("promise", "found", "is_wrong"),
    [
        (Promise.SAME, AGREES, False),
        (Promise.SAME, REFUSED, True),
        (Promise.SAME, PARTIAL, True),
        (Promise.DETECTED, AGREES, False),
        (Promise.DETECTED, REFUSED, False),
        (Promise.DETECTED, PARTIAL, False),
        (Promise.DETECTED, verdict(1, "diverged"), True),
        (Promise.DETECTED, verdict(2, "incomparable"), True),
        (Promise.NOTHING, verdict(1, "diverged"), False),
        (Promise.NOTHING, REFUSED, False),
    ],
)
def test_another_verdict_is_named_where_it_was_promised_not_to_be(
    promise: Promise, found: Answer, is_wrong: bool
) -> None:
    assert bool(complaint(mutation(promise), AGREES, found)) == is_wrong


# --- the runner

PROGRAM = """
import os, sys, threading
sys.path.insert(0, {here!r})
import worker

def main(arguments):
    if arguments == ["hang"]:
        threading.Event().wait()
    if arguments == ["die"]:
        os.kill(os.getpid(), 11)
    if arguments == ["raise"]:
        raise ZeroDivisionError
    if arguments == ["take"]:
        bytearray(b"1") * (80 << 20)
    if arguments == ["print"]:
        os.write(2, b"past Python")
        print("by Python")
    return 0

worker.main = main
worker.serve()
"""


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A worker that does as it is told."""
    directory = tmp_path_factory.mktemp("runner")
    program = directory / "program.py"
    program.write_text(PROGRAM.format(here=str(Path(__file__).parent)))
    runner = Runner(directory, [["nothing"]], worker=program)
    yield runner
    runner.close()


def test_a_worker_is_watched(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    # given commands that hang, end their process, raise and take memory, then each is told as it is
    with monkeypatch.context() as impatient:
        impatient.setattr(runner, "_hang_s", 1.0)
        assert runner.run(["hang"]).code == "hung"
    assert runner.run(["die"]).code == "died of signal 11"
    assert runner.run(["raise"]).code == "ZeroDivisionError()"
    assert runner.run(["take"]).grown_bytes > 70 << 20
    # and what was printed is caught, whoever printed it, with a worker that works again
    found = runner.run(["print"])
    assert (found.code, found.out, found.err) == (0, "by Python\n", "past Python")
    assert found.grown_bytes < 70 << 20
