"""The keys in which two configuration files differ, and the search among them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.errors import UsageError
from lockstep_tune.bisect_screen import render
from lockstep_tune.bisecting import Outcome, Trial, TrialLog
from lockstep_tune.configurations import is_configuration, keys, two_files
from lockstep_tune.searching import Answer, search_differences
from lockstep_tune.switches import AS_IT_IS, State

GOOD = """
seed: 0
name: a
optim: {lr: 1e-3, betas: [0.9, 0.99]}
model:
  width: 16
  act: "on"
data: ${root}/x
"""
BAD = """
name: b
seed: 0
optim: {lr: 1e-3, betas: [0.9, 0.95], decay: 0.1}
model:
  width: 32
  act: on
  depth: 2
data: ${root}/x
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Two files of YAML in the current folder."""
    monkeypatch.chdir(tmp_path)
    Path("good.yaml").write_text(GOOD)
    Path("bad.yaml").write_text(BAD)
    return Path("good.yaml"), Path("bad.yaml")


COMMAND = ("python", "train.py", "--config", "bad.yaml")


def loaded(state: State) -> Any:
    """What a script would read in a state."""
    path = Path((state.command or COMMAND)[-1])
    return yaml.safe_load(path.read_text())


def search(
    good: Path, bad: Path, folder: Path, differs: Callable[[Any], bool]
) -> tuple[Answer, TrialLog]:
    """Search with a judge that reads the configuration."""

    def judge(state: State) -> Trial:
        outcome = Outcome.DIFFERS if differs(loaded(state)) else Outcome.AGREES
        return Trial(state.name, outcome, "as told")

    log = TrialLog(None, ["ref"], judge)
    return search_differences(keys(good, bad, COMMAND, folder), log), log


def test_keys_that_differ_are_told_apart(files: tuple[Path, Path], tmp_path: Path) -> None:
    found = {one.name: one.values for one in keys(*files, COMMAND, tmp_path).each}
    assert found == {
        "name": ("name: a", "name: b"),
        "optim.betas": ("optim.betas: [0.9, 0.99]", "optim.betas: [0.9, 0.95]"),
        "optim.decay": ("no optim.decay", "optim.decay: 0.1"),
        "model.width": ("model.width: 16", "model.width: 32"),
        "model.act": ('model.act: "on"', "model.act: on"),
        "model.depth": ("no model.depth", "model.depth: 2"),
    }


@pytest.mark.parametrize(
    ("culprit", "differs"),
    [
        ("optim.betas", lambda values: values["optim"]["betas"][1] == 0.95),
        ("optim.decay", lambda values: "decay" in values["optim"]),
        ("model.width", lambda values: values["model"]["width"] == 32),
        ("model.act", lambda values: values["model"]["act"] is True),
        ("name", lambda values: values["name"] == "b"),
    ],
)
def test_one_key_of_many_is_found_in_few_trials(
    files: tuple[Path, Path], tmp_path: Path, culprit: str, differs: Callable[[Any], bool]
) -> None:
    answer, log = search(*files, tmp_path, differs)
    assert answer.smallest == (culprit,)
    assert answer.together == ()
    assert len(log.trials) <= 9
    # and the screen names the key, not a file that is gone
    page = render(answer, log.trials, COMMAND).plain
    assert f"What next: give {culprit} the value of the good file" in page


def test_keys_that_change_nothing_are_not_blamed(files: tuple[Path, Path], tmp_path: Path) -> None:
    answer, log = search(*files, tmp_path, lambda values: False)
    assert answer.last.agrees_throughout
    assert len(log.trials) == 1


def test_two_keys_that_need_each_other_are_both_told(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    def differs(values: Any) -> bool:
        return values["model"]["width"] == 32 and "decay" in values["optim"]

    answer, _ = search(*files, tmp_path, differs)
    assert {*answer.smallest, *answer.together} == {"model.width", "optim.decay"}


def test_a_file_between_keeps_what_no_reader_may_read_otherwise(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    # given a value that is a text for one reader of YAML and a number for another, and one to be resolved later
    differences = keys(*files, COMMAND, tmp_path)
    # when a file between the two is written
    middle = differences.state_at((0, 1, 0, 1, 0, 1))
    text = Path(middle.command[-1]).read_text()
    # then both stand as they were written
    assert "lr: 1e-3\n" in text.replace("}", "\n").replace(",", "\n")
    assert "${root}/x" in text
    assert loaded(middle)["model"]["act"] == "on"


def test_the_ends_are_the_files_themselves(files: tuple[Path, Path], tmp_path: Path) -> None:
    differences = keys(*files, COMMAND, tmp_path)
    assert differences.state_at(differences.highest) is AS_IT_IS
    assert differences.state_at(differences.lowest).command[-1] == "good.yaml"


@pytest.mark.parametrize(
    "words",
    [("--config=bad.json",), ("config=bad.json",), ("--config", "good.json"), ("bad.json",)],
)
def test_json_is_searched_wherever_the_command_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.json").write_text('{"a": {"x": 1, "y": [1]}, "b": true}')
    Path("bad.json").write_text('{"a": {"x": 2, "y": [2]}, "b": true}')
    differences = keys(Path("good.json"), Path("bad.json"), ("p", "t.py", *words), tmp_path)
    assert [one.name for one in differences.each] == ["a.x", "a.y"]
    # and a file between has one value of each
    between = differences.state_at((0, 1)).command[-1].rpartition("=")[2]
    assert json.loads(Path(between).read_text()) == {"a": {"x": 1, "y": [2]}, "b": True}


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is of Python 3.11")
def test_toml_is_written_as_it_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    monkeypatch.chdir(tmp_path)
    rest = 'day = 2026-01-01\nwhere = "a\\"b"\nbig = inf\nlist = [{k = 1}, {k = 2.5}]\n'
    Path("good.toml").write_text(f"lr = 0.1\n{rest}[a.'b c']\nx = 1\n")
    Path("bad.toml").write_text(f"lr = 0.2\n{rest}[a.'b c']\nx = 2\n")
    differences = keys(Path("good.toml"), Path("bad.toml"), ("p", "bad.toml"), tmp_path)
    between = Path(differences.state_at((0, 1)).command[-1])
    wanted = tomllib.loads(Path("bad.toml").read_text()) | {"lr": 0.1}
    assert tomllib.loads(between.read_text()) == wanted


def test_dots_in_paths_are_no_separator(files: tuple[Path, Path], tmp_path: Path) -> None:
    Path("sub").mkdir()
    Path("sub/x..y.yaml").write_text("a: 1")
    found = two_files("sub/../good.yaml..sub/x..y.yaml")
    assert found == (Path("sub/../good.yaml"), Path("sub/x..y.yaml"))
    assert is_configuration(found[0])
    assert not is_configuration(Path("absent.yaml"))


def test_what_cannot_be_searched_is_said(files: tuple[Path, Path], tmp_path: Path) -> None:
    good, bad = files
    Path("list.yaml").write_text("[1, 2]")
    Path("broken.yaml").write_text("a: [")
    Path("a.json").write_text("{}")
    for one, other, words in (
        (good, good, "nothing to search"),
        (good, Path("list.yaml"), "no keys at its top"),
        (good, Path("broken.yaml"), "cannot be read"),
        (good, Path("a.json"), "two formats"),
        (Path("train.py"), bad, "give a file that ends in"),
    ):
        with pytest.raises(UsageError, match=words):
            keys(one, other, COMMAND, tmp_path)
    with pytest.raises(UsageError, match="names neither"):
        keys(good, bad, ("python", "train.py"), tmp_path)
    with pytest.raises(UsageError, match=r"write GOOD\.\.BAD"):
        two_files("good.yaml..absent.yaml")
