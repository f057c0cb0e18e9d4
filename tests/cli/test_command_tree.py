"""Wrong command lines of every verb: each is answered by one clear sentence and exit code 2.

The tests walk the command tree, so a new verb is tested without a line here. If one of its options needs another
beside it, that stands in `ALSO`.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from command_tree import every_command

from lockstep.cli import options
from lockstep.cli.elsewhere import TrainingCommand
from lockstep.cli.main import main

COMMANDS = {
    name: command for name, command in every_command() if not isinstance(command, click.Group)
}

ALSO = {
    ("check", "--against"): ["--", "true"],
    ("check", "--keep"): ["--repeat", "2", "--", "true"],
    ("check", "--mapping"): ["REC", "OTHER"],
    ("convert", "--output"): ["--as", "npy"],
    ("migrate", "--output"): ["script.py"],
    ("migrate", "--main"): ["script.py", "--distributed"],
    ("migrate", "--report"): ["script.py", "--in-place"],
    ("plot", "candidate"): ["-o", "plots"],
    ("plot", "reference"): ["-o", "plots"],
    ("plot", "--calibration"): ["-o", "plots"],
    ("plot", "--dims"): ["-o", "plots"],
    ("plot", "--mapping"): ["-o", "plots"],
    ("plot", "--noise"): ["-o", "plots"],
    ("search", "--output"): ["--", "true"],
    ("watch", "--events"): ["--force"],
    ("watch", "--output"): ["--save-on", "any"],
}
"""Words that a line with this path needs besides, by verb and parameter."""

WITHOUT_TRAINING = {("check", "--mapping"), ("check", "--script")}
"""Where a line takes no training, in a verb that takes one elsewhere."""

ASKED_FIRST = {
    ("copy", "origin"): "give a URL on one side at least",
    ("copy", "target"): "give a URL on one side at least",
    ("explain", "--against"): "word: give pkg.mod:function",
    ("export", "--keep"): "word: give pkg.mod:function",
    ("replay", "--write-test"): "no origin is named",
    ("run", "--resume"): "give an ONNX file",
    ("search", "--output"): "give a YAML file",
    ("serve", "--record"): "give one by --shadow",
    ("tfdbg", "--output"): "give the file of `lt > FILE`",
}
"""Where the made-up line has a fault besides, which is told first: its words."""


@dataclass(frozen=True)
class Place:
    """A folder with two recordings, a script, and a file that is no folder."""

    recording: Path
    other: Path

    def words(self, words: list[str]) -> list[str]:
        known = {"REC": str(self.recording), "OTHER": str(self.other)}
        return [known.get(word, word) for word in words]


@pytest.fixture
def place(lockstep_recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.chdir(tmp_path)
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    (tmp_path / "file").write_text("no folder")
    (tmp_path / "script.py").write_text("import torch\n")
    other = shutil.copytree(lockstep_recording, tmp_path / "other")
    return Place(lockstep_recording, other)


def is_path(one: click.Parameter) -> bool:
    return isinstance(one.type, click.Path)


def long_name(one: click.Parameter) -> str:
    return max(one.opts, key=len) if isinstance(one, click.Option) else str(one.name)


def typed(
    name: str,
    place: Place,
    *,
    without: click.Parameter | None = None,
    given: tuple[click.Parameter, str] | None = None,
) -> list[str]:
    """A line that has all that the verb requires, except one parameter, or with one given."""
    command = COMMANDS[name]
    changed, value = given or (None, "")
    chosen, arguments = [], []
    recordings = iter([place.recording, place.other] * 2)
    for one in command.params:
        if one is changed:
            words = [value]
        elif one is not without and (one.required or _goes_with(one, changed, command)):
            words = [_value(one, name, recordings)]
        else:
            continue
        if isinstance(one, click.Option):
            chosen += [long_name(one), *words]
        else:
            arguments += words
    asked = (name, long_name(changed) if changed else "")
    also = place.words(ALSO.get(asked, []))
    if isinstance(command, TrainingCommand) and "--" not in also and asked not in WITHOUT_TRAINING:
        either = isinstance(changed, click.Argument) and not changed.required
        also += [] if either else ["--", "true"]  # some verbs take a recording or a training
    return [*name.split(), *chosen, *arguments, *also]


def _goes_with(
    one: click.Parameter, changed: click.Parameter | None, command: click.Command
) -> bool:
    """Whether a second recording belongs to a line with this option."""
    is_optional_path = isinstance(one, click.Argument) and one.nargs == 1 and is_path(one)
    takes_training = isinstance(command, TrainingCommand)
    return is_optional_path and isinstance(changed, click.Option) and not takes_training


def _value(one: click.Parameter, name: str, recordings: Iterator[Path]) -> str:
    if one.type is click.UNPROCESSED:
        return "true"
    if not is_path(one):
        return "word"
    if "output" in str(one.name):
        return "made.onnx" if name == "export" else "made.npz"
    return str(next(recordings))


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence that a line is answered with: of Lockstep, or of click below its two lines of usage."""
    code = main(words)
    said = capsys.readouterr().err.strip().splitlines()
    line = " ".join(words)
    assert code == 2, line
    assert said, line
    *usage, sentence = said
    if usage:
        assert usage[0].startswith("Usage: lockstep "), said
        assert usage[-2].startswith("Try 'lockstep "), said
        assert all(one.startswith("   ") for one in usage[1:-2]), said
    assert re.match(r"(lockstep|Error): \S", sentence), sentence
    assert "fault of its own" not in sentence
    assert "[Errno" not in sentence
    return sentence


@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_required_and_left_out_is_named(
    name: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in COMMANDS[name].params:
        if one.required:
            # when a line has all that is required, except this
            sentence = answer(typed(name, place, without=one), capsys)
            # then it is named; of arguments in a row the last one is
            kind = "option" if isinstance(one, click.Option) else "argument"
            assert sentence.startswith(f"Error: Missing {kind} '"), sentence
            if kind == "option":
                assert f"'{long_name(one)}'" in sentence


def misspelt(command: click.Command) -> Iterator[tuple[str, str]]:
    """Each option without its last letter but one, as it is and as it was typed."""
    known = {name for one in command.params for name in one.opts}
    for one in command.params:
        right = long_name(one)
        if isinstance(one, click.Option) and not one.hidden and len(right) > 5:
            wrong = right[:-2] + right[-1]
            if wrong not in known:
                yield right, wrong


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_an_option_that_is_misspelt_is_answered_with_its_name(
    name: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for right, wrong in misspelt(COMMANDS[name]):
        sentence = answer([*name.split(), wrong, "1"], capsys)
        assert sentence.startswith(f"Error: No such option '{wrong}'. "), sentence
        assert f"'{right}'" in sentence, sentence


def test_a_misspelt_option_leads_to_no_spelling_of_an_earlier_release(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given an option that is close to `--ranks` and to its old spelling `--rank`
    assert main(["show", "somewhere", "--rnks", "0"]) == 2
    assert "Did you mean '--ranks'?" in capsys.readouterr().err


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", COMMANDS)
def test_a_path_at_which_nothing_can_be_is_named(
    name: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    for one in COMMANDS[name].params:
        if not is_path(one):
            continue
        # when a path leads into a file, where nothing can be read and nothing written
        places = [f"file/{one.name}-is-absent"]
        # or, of what has to be there, to nothing
        if isinstance(one, click.Argument) and one.required:
            places.append(f"{one.name}-is-absent")
        for path in places:
            sentence = answer(typed(name, place, given=(one, path)), capsys)
            # then the answer names it
            first = ASKED_FIRST.get((name, long_name(one)))
            assert (first or f"{one.name}-is-absent") in sentence, sentence


def test_a_verb_with_each_of_these_faults_would_be_found(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a verb whose required option has a default that answers for it, and which fails then
    @click.command()
    @click.option("--output", required=True, default=None, type=click.Path(path_type=Path))
    def broken(output: Path) -> int:
        return len(output.name)

    # then the walk over the tree is no proof of it: the sentence is none
    monkeypatch.setitem(COMMANDS, "broken", broken)
    monkeypatch.setattr("lockstep.cli.main.cli.get_command", lambda _context, _name: broken)
    with pytest.raises(AssertionError):
        answer(typed("broken", place, without=broken.params[0]), capsys)

    # and its twin of the table is answered
    @click.command()
    @options.option("--output", required=True)
    def sound(output: Path) -> int:
        return len(output.name)

    monkeypatch.setitem(COMMANDS, "broken", sound)
    monkeypatch.setattr("lockstep.cli.main.cli.get_command", lambda _context, _name: sound)
    said = answer(typed("broken", place, without=sound.params[0]), capsys)
    assert said == "Error: Missing option '-o' / '--output'."
