"""`lockstep check REF CAND`: what is planted is named first, and two equal set-ups differ in nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from planted import PLANTED, Planted, Setup, record

from lockstep.cli.main import main
from lockstep.wings.check.setups.answers import Answer, State
from lockstep.wings.check.setups.aspects import QUESTIONS, aspects
from lockstep.wings.check.setups.checkup import checkup

Recorded = Callable[[Setup], Path]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Records the reference of a set-up once."""
    folder, known = tmp_path_factory.mktemp("references"), list[tuple[Setup, Path]]()

    def reference(setup: Setup) -> Path:
        for one, path in known:
            if one == setup:
                return path
        known.append((setup, record(setup, folder / str(len(known)))))
        return known[-1][1]

    return reference


def different(reference: Path, candidate: Path) -> list[Answer]:
    """What differs, the most harmful first."""
    return [one for one in checkup(reference, candidate).answers() if one.state is State.DIFFERS]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("planted", PLANTED, ids=lambda one: one.name.replace(" ", "-"))
def test_a_planted_difference_is_named_first(
    planted: Planted, recorded: Recorded, tmp_path: Path
) -> None:
    # given two trainings whose set-ups differ in one thing
    reference, candidate = planted.sides()
    other = record(candidate, tmp_path / "candidate")
    # when they are held against each other, either way round
    found = different(recorded(reference), other)
    back = different(other, recorded(reference))
    # then that thing comes first, with what differs
    assert found[0].aspect.name == back[0].aspect.name == planted.aspect, found
    assert any(planted.words in str(one) for one in found[0].differences), found[0]


def test_two_equal_set_ups_differ_in_nothing(recorded: Recorded, tmp_path: Path) -> None:
    # given the reference's training recorded once more
    again = record(Setup(), tmp_path / "again")
    assert different(recorded(Setup()), again) == []


def test_generators_that_nobody_seeds_and_nothing_draws_from_do_not_count(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a training recorded twice, whose script seeds torch alone
    setup = Setup(seeds_python=False)
    pair = [str(record(setup, tmp_path / name)) for name in ("one", "two")]
    # when both are held against each other
    code = main(["check", *pair])
    # then the set-ups are the same, and it is told that Python's and NumPy's generators are not
    said = capsys.readouterr().out
    assert code == 0
    assert said.startswith("NOTHING DIFFERS")
    assert (
        "states of Python's and NumPy's generators as the first step begins (does not count)"
        in said
    )


def edited(source: Path, target: Path, change: Callable[[dict[str, Any]], None]) -> Path:
    """A copy of a recording with another manifest of its rank."""
    shutil.copytree(source, target)
    file = target / "rank0" / "manifest.json"
    values = json.loads(file.read_text())
    del values["files"], values["digest"]  # they would tell that something was changed
    change(values)
    file.write_text(json.dumps(values))
    return target


def test_another_host_user_and_path_are_told_and_do_not_count(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given the same training of another machine
    def elsewhere(values: dict[str, Any]) -> None:
        values["platform"]["system"] = "Linux-4.18"
        values["argv"] = ["/home/other/venv/bin/python", "/home/other/train.py"]
        values["pid"] = 4242
        values["sources"] = ["/home/other/train.py"]

    reference = recorded(Setup())
    other = edited(reference, tmp_path / "other" / "copy", elsewhere)
    # when both are held against each other
    code = main(["check", str(reference), str(other)])
    # then nothing differs that counts
    said = capsys.readouterr().out
    assert code == 0
    assert said.startswith("NOTHING DIFFERS")
    assert "system (does not count)" in said


def test_what_an_earlier_build_did_not_note_is_unknown_and_not_the_same(
    recorded: Recorded, tmp_path: Path
) -> None:
    # given a recording without the manifest's later fields
    def older(values: dict[str, Any]) -> None:
        for name in (
            "numerics",
            "seeds",
            "random_states",
            "loaders",
            "trainable",
            "tied",
            "trained",
            "optimizers",
        ):
            del values[name]

    reference = recorded(Setup())
    found = {
        one.aspect.name: one
        for one in checkup(reference, edited(reference, tmp_path / "old", older)).answers()
    }
    # then these are unknown, and the rest is known
    for name in (
        "seeds",
        "random-state",
        "worker-seeds",
        "frozen",
        "optimizer",
        "optimizer-groups",
        "threads",
        "length",
    ):
        assert found[name].state is State.UNKNOWN, name
        assert found[name].unknown
    assert found["weights"].state is found["data"].state is State.SAME


def test_the_page_answers_the_eight_questions_and_json_has_every_aspect(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given another eps
    planted = next(one for one in PLANTED if one.name == "eps")
    other = record(planted.sides()[1], tmp_path / "candidate")
    pair = [str(recorded(Setup())), str(other)]
    # when it is told as text
    assert main(["check", *pair]) == 1
    said = capsys.readouterr().out
    # then the first paragraph is what differs, with meaning and cure, and every question is answered
    assert said.startswith("DIFFERS in 1 aspect, first of all settings of modules")
    assert "eps of norm: 1e-05 in the reference, 0.001 in the candidate" in said
    assert "  means: " in said
    assert "  cure: " in said
    assert all(words in said for words in QUESTIONS.values())
    # and as JSON
    assert main(["check", "--json", *pair]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    assert [one["aspect"] for one in answer["aspects"]] == list(aspects())
    assert [one["answer"] for one in answer["questions"]].count("differs") == 1


def test_a_variable_that_differs_is_told_with_what_it_does(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given the same training with a variable of the known table
    def other(values: dict[str, Any]) -> None:
        values["environment"]["NVIDIA_TF32_OVERRIDE"] = "1"

    reference = recorded(Setup())
    assert main(["check", str(reference), str(edited(reference, tmp_path / "other", other))]) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "NVIDIA_TF32_OVERRIDE: - in the reference, 1 in the candidate" in said
    assert "0 turns TF32 off in every library" in said


def test_every_aspect_has_its_words_and_every_question_an_aspect() -> None:
    found = aspects().values()
    assert all(one.title and one.meaning and one.cure and one.source for one in found)
    assert {one.question for one in found} - {0} == set(QUESTIONS)
    assert {one.aspect for one in PLANTED} <= set(aspects())
    assert len(PLANTED) >= 40


def test_what_is_no_recording_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path), str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
