"""Which process of one recording is compared with which of the other."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.align.ranks import RankPairs, pair_ranks
from lockstep.core.manifest import OTHER_TRAININGS, NotSeen, RankManifest
from lockstep.core.site import CallKind


@dataclass
class Process:
    """A process of a recording: how it was started, and what it began with."""

    line: str
    lineage: str = "/"
    holds: dict[CallKind, str] = field(default_factory=dict)
    thread: str = ""


def _recording(*processes: Process | tuple[str, Process]) -> Any:
    """Processes in the order in which they came first, or each with the name of its directory."""
    named = [
        one if isinstance(one, tuple) else (f"rank0-{number}" if number else "rank0", one)
        for number, one in enumerate(processes)
    ]
    return SimpleNamespace(ranks={name: _rank(name, one) for name, one in named})


def _rank(name: str, process: Process) -> Any:
    manifest = RankManifest(1, name, 1, 1, process.line.split(), "3", lineage=process.lineage)

    if process.thread:
        manifest.not_seen.append(NotSeen(OTHER_TRAININGS, f"that of {process.thread}"))

    def calls(step: int, *, kind: CallKind) -> list[Any]:
        digest = process.holds.get(kind)
        records = [] if digest is None else [SimpleNamespace(digest=digest)]
        return [SimpleNamespace(records=records)]

    return SimpleNamespace(
        name=name, manifest=manifest, steps=(0,), calls=calls, close_tensors=lambda: None
    )


def _partners(pairs: RankPairs, reference: Any, candidate: Any) -> dict[str, str]:
    """Names of what belongs together."""
    for name, (left, right) in pairs.both.items():
        assert (left, right.name) == (reference.ranks[name], name)
    by_manifest = {id(rank.manifest): name for name, rank in candidate.ranks.items()}
    return {name: by_manifest[id(right.manifest)] for name, (_, right) in pairs.both.items()}


def _paired(reference: Any, candidate: Any) -> tuple[dict[str, str], RankPairs]:
    pairs = pair_ranks(reference, candidate)
    return _partners(pairs, reference, candidate), pairs


def test_ranks_of_their_own_are_paired_by_their_number_alone() -> None:
    # given two ranks, started by other words and in another way
    reference = _recording(
        *((f"rank{rank}", Process(f"python train.py {rank}")) for rank in (0, 1))
    )
    candidate = _recording(
        *((f"rank{rank}", Process("python npu.py", f"/{2 - rank}")) for rank in (0, 1))
    )

    # then each has its own partner, and nothing needs to be said
    partners, pairs = _paired(reference, candidate)
    assert partners == {"rank0": "rank0", "rank1": "rank1"}
    assert (pairs.alone, pairs.notes) == ((), ())


@pytest.mark.parametrize("device", ["cuda", "npu"])
def test_processes_are_told_apart_by_the_words_that_only_one_of_them_has(device: str) -> None:
    # given trainings that came first in another order, on the same device or on another
    reference = _recording(
        *(Process(f"python train.py --seed {seed} --device cuda --gpus 1") for seed in (0, 1, 2))
    )
    candidate = _recording(
        *(
            Process(f"/usr/bin/python train.py --seed {seed} --device {device} --gpus 1")
            for seed in (2, 0, 1)
        )
    )

    # then they are paired by their seeds, and the pairs are listed
    partners, pairs = _paired(reference, candidate)
    assert partners == {"rank0": "rank0-1", "rank0-1": "rank0-2", "rank0-2": "rank0"}
    assert pairs.alone == ()
    (note,) = pairs.notes
    assert "rank0-2 (train.py --seed 2 --device cuda --gpus 1) with the candidate's rank0" in note


def test_children_are_told_apart_by_their_number() -> None:
    # given children with one command line, where one side has more workers before them
    reference = _recording(*(Process("python sweep.py", f"/{child}") for child in (2, 1, 3)))
    same = _recording(*(Process("python sweep.py", f"/{child}") for child in (3, 2, 1)))
    later = _recording(*(Process("python sweep.py", f"/{child}") for child in (6, 5, 4)))

    # then they are paired by it, or else by their order
    assert _paired(reference, same)[0] == {
        "rank0": "rank0-1", "rank0-1": "rank0-2", "rank0-2": "rank0",
    }  # fmt: skip
    partners, pairs = _paired(reference, later)
    assert partners == {"rank0": "rank0-1", "rank0-1": "rank0-2", "rank0-2": "rank0"}
    assert "in the order in which they were started" in pairs.notes[0]


def test_children_without_words_are_told_by_their_number_alone() -> None:
    # given recordings that leave command lines out
    reference = _recording(*(Process("[redacted]", f"/{child}") for child in (2, 1)))
    candidate = _recording(*(Process("[redacted]", f"/{child}") for child in (1, 2)))

    # then the note has nothing in their place
    _, pairs = _paired(reference, candidate)
    assert " ".join(pairs.notes) == (
        "paired by how they were started: rank0-1 (child 1) with the candidate's rank0; "
        "rank0 (child 2) with the candidate's rank0-1"
    )


def test_what_does_another_shards_work_is_not_paired_by_it() -> None:
    # given children of which the candidate's each train what the next one should
    def shards(shift: int) -> Any:
        return _recording(
            *(
                Process("python sweep.py", f"/{child}", {CallKind.DATA: f"{child + shift}"})
                for child in (1, 2, 3)
            )
        )

    # then it is not hidden by pairing them otherwise
    partners, _ = _paired(shards(0), shards(1))
    assert partners == {name: name for name in ("rank0", "rank0-1", "rank0-2")}


@pytest.mark.parametrize("lineage", ["/*", "/"])
def test_where_the_start_does_not_tell_what_they_trained_does(lineage: str) -> None:
    # given workers of a pool, or processes with one command line: two began with the same numbers as in the
    # reference, of which one has another batch
    def begun(init: str, data: str) -> Process:
        return Process("python sweep.py", lineage, {CallKind.INIT: init, CallKind.DATA: data})

    reference = _recording(begun("a", "x"), begun("b", "x"), begun("c", "y"))
    candidate = _recording(begun("other", "x"), begun("a", "x"), begun("b", "other"))

    # then these are paired by it, and the last one with what is left
    partners, pairs = _paired(reference, candidate)
    assert partners == {"rank0": "rank0-1", "rank0-1": "rank0-2", "rank0-2": "rank0"}
    assert [note.partition(": ")[0] for note in pairs.notes] == [
        "paired by what they trained", "paired as nothing else was left",
    ]  # fmt: skip


def test_where_nothing_tells_there_is_no_pair() -> None:
    # given two workers of a pool on each side, none of which holds what another one holds
    sides = [
        _recording(*(Process("python sweep.py", "/*", {CallKind.INIT: one}) for one in names))
        for names in ("ab", "cd")
    ]

    # then none is compared with another's, and it is said
    partners, pairs = _paired(*sides)
    assert partners == {}
    assert "nothing tells which belongs to which" in pairs.alone[0]


def test_equal_trainings_are_paired_in_any_way() -> None:
    # given workers that do all the same, one more of them in the candidate
    worker = Process("python sweep.py", "/*", {CallKind.INIT: "same"})

    # then it does not matter which is compared with which
    partners, pairs = _paired(_recording(worker, worker), _recording(worker, worker, worker))
    assert partners == {"rank0": "rank0", "rank0-1": "rank0-1"}
    assert pairs.alone == ("rank0-2 occurs only in the candidate",)


def test_a_training_of_other_words_is_not_a_partner() -> None:
    # given one training that both have, and one that each has alone
    reference = _recording(*(Process(f"python train.py --seed {seed}") for seed in (1, 2)))
    candidate = _recording(*(Process(f"python train.py --seed {seed}") for seed in (2, 3, 4)))

    partners, pairs = _paired(reference, candidate)
    assert partners == {"rank0-1": "rank0"}
    assert len(pairs.alone) == 1


def test_recordings_of_earlier_builds_are_paired_by_name_where_nothing_else_tells() -> None:
    # given recordings that do not tell how a process was started
    sides = [
        _recording(*(Process("python sweep.py", "", {CallKind.INIT: one}) for one in names))
        for names in ("abc", "dea")
    ]

    partners, _ = _paired(*sides)
    assert partners == {"rank0": "rank0-2", "rank0-1": "rank0-1"}


@pytest.mark.parametrize(("thread", "init"), [("Thread-2", "a"), ("Thread-1", "b")])
def test_one_training_of_several_threads_is_compared_with_itself(thread: str, init: str) -> None:
    # given recordings that hold the training of one thread, by its name or by what it began with
    sides = [
        _recording(Process("python train.py", "/", {CallKind.INIT: held}, name))
        for name, held in (("Thread-1", "a"), (thread, init))
    ]

    partners, pairs = _paired(*sides)
    assert (partners, pairs.alone) == ({"rank0": "rank0"}, ())


def test_one_training_of_several_threads_is_not_compared_with_another_ones() -> None:
    sides = [
        _recording(Process("python train.py", "/", {CallKind.INIT: held}, name))
        for name, held in (("Thread-1", "a"), ("Thread-2", "b"))
    ]

    # then both are said
    partners, pairs = _paired(*sides)
    assert partners == {}
    assert ["Thread-1" in pairs.alone[0], "Thread-2" in pairs.alone[1]] == [True, True]
