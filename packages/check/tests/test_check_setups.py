"""`lockstep check REF CAND`: what is planted is named first, and two equal set-ups differ in nothing."""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from planted import PLANTED, Planted, Setup, record

import lockstep
from lockstep.capture.settings import setup
from lockstep.cli.main import main
from lockstep.locate.setups.setup_facts import FACTS
from lockstep_check.setups.answers import Answer, State
from lockstep_check.setups.aspects import QUESTIONS, aspects
from lockstep_check.setups.checkup import checkup
from lockstep_check.setups.screen import headline

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


@pytest.mark.parametrize(
    ("devices", "driver", "unknown"),
    [
        (["cpu"], {}, ""),
        (["cpu", "cuda:0 H200"], {"driver": "13000"}, ""),
        (["cpu", "npu:0"], {}, "the candidate's recording does not tell the driver of npu:0"),
    ],
)
def test_a_driver_that_nobody_told_is_not_known(
    recorded: Recorded, tmp_path: Path, devices: list[str], driver: dict[str, str], unknown: str
) -> None:
    # given a recording of a device, which may tell its driver
    def on_device(values: dict[str, Any]) -> None:
        values["devices"] = devices
        values["platform"].update(driver)

    reference = recorded(Setup())
    answers = checkup(reference, edited(reference, tmp_path / "device", on_device)).answers()
    # then what is not known of the devices is said, beside what differs
    (found,) = (one for one in answers if one.aspect.name == "devices")
    assert found.unknown == unknown


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
    assert sorted(one["aspect"] for one in answer["aspects"]) == sorted(aspects())
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
    # and each fact of a set-up belongs to one
    assert {fact.aspect for fact in FACTS.values()} <= set(aspects())


def test_what_is_no_recording_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path), str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def configured(
    place: Path, *words: str, redact: bool = False, tree: dict[str, Any] | None = None
) -> Path:
    """A training that is recorded behind the parsing of these words."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--warmup", type=int, default=10)
    parser.add_argument("--api-token", default="")
    parser.add_argument("--output-dir", default="out")
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    with lockstep.record(place, steps="0:1", redact=redact):
        arguments = parser.parse_args(words)
        kept = None if tree is None else DictConfig(tree)
        model = torch.nn.Linear(2, 2)
        torch.nn.init.constant_(model.weight, arguments.warmup * 0 + 0.5)
        torch.nn.init.zeros_(model.bias)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        del kept
    return place


class DictConfig:
    """Stands for OmegaConf's: a tree whose root has no parent."""

    def __init__(self, tree: dict[str, Any]) -> None:
        self._parent, self.tree = None, tree

    def keys(self) -> Any:
        return self.tree.keys()

    @staticmethod
    def to_container(tree: DictConfig, *, resolve: bool) -> dict[str, Any]:
        assert not resolve  # resolvers may run anything
        return tree.tree


def test_what_a_script_was_given_is_held_against_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a script that is told its settings by arguments and by a tree, secrets among them
    omegaconf = ModuleType("omegaconf")
    vars(omegaconf).update(DictConfig=DictConfig, OmegaConf=DictConfig)
    monkeypatch.setitem(sys.modules, "omegaconf", omegaconf)
    tree: dict[str, Any] = {"train": {"ema": 0.9}, "wandb": {"api_key": "s3cret", "project": "a"}}
    one = configured(tmp_path / "one", "--api-token", "s3cret", "--output-dir", "one", tree=tree)
    alike = configured(tmp_path / "alike", "--api-token", "other", "--output-dir", "two", tree=tree)
    tree = {"train": {"ema": 0.99}, "wandb": {"api_key": "s3cret", "project": "b"}}
    other = configured(tmp_path / "other", "--warmup", "20", tree=tree)
    # when it is given others, then each is named; where it writes to counts for nothing
    assert [one.aspect.name for one in different(one, alike)] == ["configured-places"]
    found = {one.aspect.name: list(map(str, one.differences)) for one in different(one, other)}
    assert found["configuration"] == [
        "set-up: train.ema (OmegaConf) 0.9 / 0.99",
        "set-up: warmup (arguments) 10 / 20",
    ]
    assert found["configured-places"] == [
        "set-up: wandb.project (OmegaConf) a / b",
        "set-up: output_dir (arguments) one / out",
    ]
    # and no secret is kept
    for place in (one, alike, other):
        assert b"s3cret" not in b"".join(file.read_bytes() for file in place.rglob("*.json"))


def test_a_redacted_recording_beside_a_plain_one_is_unknown_and_not_different(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given one training, recorded as it is and without anything of its machine, that reads a variable
    monkeypatch.setattr(setup, "read_variables", lambda *_: {"RATE": "3"})
    plain = configured(tmp_path / "plain", "--output-dir", "/somewhere/else")
    redacted = configured(tmp_path / "redacted", "--output-dir", "/here", redact=True)
    # when both are held against each other, then nothing differs that counts, and what was left out is unknown
    answers = {one.aspect.name: one for one in checkup(plain, redacted).answers()}
    assert [
        one for one in answers.values() if one.state is State.DIFFERS and one.aspect.counts
    ] == []
    assert answers["configuration"].state is State.UNKNOWN
    assert "redacted" in answers["configuration"].unknown
    assert answers["variables"].state is State.UNKNOWN
    assert "redacted" in answers["variables"].unknown


class Dropping(torch.nn.Module):
    """A linear layer, dropout and a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop = torch.nn.Linear(4, 4), torch.nn.Dropout(0.1)
        self.second = torch.nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(self.drop(self.first(x)))
        return out


Later = Callable[[int, Dropping, torch.Tensor], torch.Tensor]


def as_it_is(step: int, model: Dropping, batch: torch.Tensor) -> torch.Tensor:
    return batch


def evaluates(step: int, model: Dropping, batch: torch.Tensor) -> torch.Tensor:
    """Leaves dropout in evaluation mode from step 4 on."""
    model.drop.train(step < 4)
    return batch


def drops_more(step: int, model: Dropping, batch: torch.Tensor) -> torch.Tensor:
    model.drop.p = 0.1 if step < 4 else 0.3
    return batch


def other_range(step: int, model: Dropping, batch: torch.Tensor) -> torch.Tensor:
    return batch if step < 5 else batch * 2


def recorded_later(path: Path, later: Later, steps: int = 6) -> Path:
    """A training all steps of which are recorded, and that may change after some of them."""
    torch.manual_seed(0)
    model = Dropping()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = torch.randn(steps, 8, 4)
    with lockstep.record(path, model=model, steps="0:6"):
        for step, batch in enumerate(batches):
            loss = model(later(step, model, batch)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return path


@pytest.mark.parametrize(
    ("later", "aspect", "words"),
    [
        (evaluates, "modes", "training of torch.nn.Dropout at drop"),
        (drops_more, "flow", "p of torch.nn.Dropout at drop"),
        (other_range, "data-preprocessing", "at step 5"),
    ],
)
def test_what_differs_from_a_later_step_on_is_named_first(
    later: Later, aspect: str, words: str, tmp_path: Path
) -> None:
    # Given two recordings, of which one changes after several steps
    reference = recorded_later(tmp_path / "reference", as_it_is)
    candidate = recorded_later(tmp_path / "candidate", later)
    # When their set-ups are held against each other
    found = [one for one in different(reference, candidate) if one.aspect.counts]
    # Then that is named, though others follow from it, with its step
    assert found[0].aspect.name == aspect
    assert words in str(found[0].differences[0])
    assert re.search(r"step [45]", str(found[0].differences[0]))


def test_the_headline_says_which_steps_were_looked_at(tmp_path: Path) -> None:
    # Given two equal trainings, and one of them a step shorter
    reference = recorded_later(tmp_path / "reference", as_it_is)
    again = recorded_later(tmp_path / "again", as_it_is)
    shorter = recorded_later(tmp_path / "shorter", as_it_is, steps=5)
    # Then the headline says what was looked at, and what one run alone has
    said = headline(checkup(reference, again))
    assert said.startswith("NOTHING DIFFERS")
    assert said.endswith("; looked at steps 0-5")
    answers = checkup(reference, shorter)
    assert answers.steps == [0, 1, 2, 3, 4]
    assert answers.alone == ["rank0: step 5 is complete only in the reference"]
