"""`lockstep --help`: what to do first stands first, and a natural guess leads to the verb."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from lockstep.cli.main import main
from lockstep.hookspecs import Task, Verb
from lockstep.plugins import verbs

WIDTH = 80


def test_the_five_verbs_that_are_needed_first_stand_first_and_compatibility_last(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDTH))
    # when help is asked for on a terminal of 80 columns
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    # then the headings stand in the order of the tasks
    headings = [one for one in re.findall(r"^(\S.*):$", shown, re.MULTILINE) if one != "Options"]
    assert headings == [task.value for task in Task]
    # and under the first one the five verbs that are needed first
    first = shown.partition(f"{Task.START.value}:\n")[2].partition("\n\n")[0]
    assert re.findall(r"^  (\S+)", first, re.MULTILINE) == [
        "record", "compare", "report", "replay", "watch",
    ]  # fmt: skip
    # and each verb takes one line
    for verb in verbs().values():
        assert re.search(rf"^  {verb.name} +{re.escape(verb.summary)}$", shown, re.MULTILINE), (
            verb.name
        )


def test_a_heading_of_a_plug_in_stands_before_compatibility() -> None:
    made = Verb("count", "Count.", "Examples", verbs()["show"].load)
    assert made.heading == "Examples"
    assert Verb("x", "X.", Task.LOOK, made.load).heading == "Look closer"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("diff", "compare"), ("view", "show"), ("list", "show"), ("run-training", "record"), ("ls", "show"),
        ("html", "report"), ("rerun", "replay"), ("monitor", "watch"), ("nan", "overflow"), ("ci", "gate"),
        ("dashboard", "ui"), ("port", "migrate"), ("Compare", "compare"), ("repot", "report"),
    ],
)  # fmt: skip
def test_a_natural_guess_names_the_verb(
    typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([typed, "ref", "cand"]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"Error: No such command '{typed}'; did you mean ")
    assert meant in said


def test_a_word_that_nobody_means_names_no_verb(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["frobnicate"]) == 2
    assert "No such command 'frobnicate'; see lockstep --help" in capsys.readouterr().err


def test_no_guess_is_a_verb_or_the_guess_of_two() -> None:
    known = verbs()
    guesses = [guess for verb in known.values() for guess in verb.guesses]
    assert len(guesses) > 50
    assert sorted(guesses) == sorted(set(guesses))
    assert set(guesses) & set(known) == set()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shell_completes_verbs(shell: str) -> None:
    # when a shell asks how a line goes on, as the script does that `_LOCKSTEP_COMPLETE` prints
    words = {
        "bash": ("lockstep rep", "1"),
        "zsh": ("lockstep rep", "1"),
        "fish": ("lockstep rep", "rep"),
    }
    typed, at = words[shell]
    environment = {
        **os.environ, "_LOCKSTEP_COMPLETE": f"{shell}_complete", "COMP_WORDS": typed, "COMP_CWORD": at,
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from lockstep.cli.main import main; sys.exit(main([]))"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    # then it is told the verbs that begin so
    assert "report" in done.stdout
    assert "replay" in done.stdout
    assert "compare" not in done.stdout
