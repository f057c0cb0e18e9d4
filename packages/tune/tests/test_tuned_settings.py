"""The YAML file of settings: what is written is read again, and what no knob takes is said with the file's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.core.errors import RecordingError, UsageError
from lockstep_tune.settings import (
    OwnKnob,
    Settings,
    read_choices,
    read_settings,
    settings_text,
)


def _file(folder: Path, text: str) -> Path:
    file = folder / "tuned.yaml"
    file.write_text(text)
    return file


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "patch.py").write_text("")
    own = OwnKnob("mine", {"A": "1"}, str(tmp_path / "patch.py"), ("--fast",), "pass --fast")
    settings = Settings({"workers": 2, "pin": True, "optimizer": "fused"}, (own,))
    file = _file(tmp_path, settings_text(settings, ["found today"]))
    assert read_settings(file) == settings
    assert file.read_text().startswith("# found today\n")
    assert str(settings) == "workers=2, pin=true, optimizer=fused, mine"


def test_a_setting_becomes_variables_and_words_of_the_command() -> None:
    settings = Settings(
        {"threads": 2, "affinity": "close"}, (OwnKnob("a", {"B": "c"}, "", ("d",)),)
    )
    assert settings.environment() == {
        "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2", "OMP_PROC_BIND": "close", "OMP_PLACES": "cores",
        "B": "c",
    }  # fmt: skip
    assert settings.command(["python", "a.py"]) == ["python", "a.py", "d"]


def test_a_file_of_choices_may_have_several_values(tmp_path: Path) -> None:
    wanted, own = read_choices(_file(tmp_path, "knobs: {workers: [1, 2], pin: true}"))
    assert wanted == {"workers": [1, 2], "pin": [True]}
    assert own == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("knobs: {speed: 9}", "unknown knob 'speed'; there are threads, affinity"),
        ("knobs: {workers: -1}", "workers: -1 is not a value of it; give a whole number from 0"),
        ("knobs: {workers: true}", "True is not a value of it"),
        ("knobs: {pin: 1}", "1 is not a value of it; give one of true, false"),
        ("knobs: {loss_scale: 1000}", "dynamic, or a power of two"),
        ("knobs: {workers: [1]}", "is not a value of it"),
        ("knobs: [workers]", "write a line for each"),
        ("speed: 9", "its keys are knobs and own alone"),
        ("own: [{name: a}]", "own: a sets nothing"),
        ("own: [{name: a, python: none.py}]", "there is no file"),
        ("own: [{name: workers, environment: {A: 1}}]", "is the name of two knobs"),
        ("own: {name: a}", "write a list"),
        ("own: [{environment: {A: 1}}]", "each entry has a name"),
    ],
)
def test_a_file_that_says_what_cannot_be_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("[", r"\[")):
        read_settings(_file(tmp_path, text))


def test_a_file_that_is_no_yaml_or_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="cannot be read"):
        read_settings(_file(tmp_path, "knobs: {"))
    with pytest.raises(RecordingError, match="cannot be read"):
        read_settings(tmp_path / "none.yaml")
