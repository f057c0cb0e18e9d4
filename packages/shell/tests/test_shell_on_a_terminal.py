"""`lockstep shell` at a real pseudo-terminal: its prompt, completion and history, and how it is left."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from lockstep.testing import MadeTraining, write_recording
from lockstep_shell.line_editor import CommandCompleter
from lockstep_shell.session import Session

_PATIENCE_S = 120
_ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*[a-zA-Z]|[=>]|\][^\x07]*\x07)")

_START = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)  # so that Ctrl-C is a signal to it
from lockstep.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Typist:
    """Types at a prompt, and waits for what is printed."""

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._unread = b""

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._terminal, keys.encode())

    def wait(self, text: str) -> None:
        """Read what is printed up to a text, without what colours it and moves the cursor."""
        while text not in (shown := _ESCAPES.sub(b"", self._unread).decode(errors="replace")):
            ready, _, _ = select.select([self._terminal], [], [], _PATIENCE_S)
            assert ready, f"waiting for {text!r}, there is {shown!r}"
            self._unread += os.read(self._terminal, 1 << 16)
        self._unread = shown.partition(text)[2].encode()

    def leave(self, process: subprocess.Popen[bytes]) -> int:
        """Press Ctrl-D until the prompt is left: between two prompts a terminal takes that key as its own."""
        for _ in range(_PATIENCE_S):
            self.type("\x04")
            with suppress(subprocess.TimeoutExpired):
                return process.wait(1)
        return process.wait(0)


@contextmanager
def at_a_prompt(
    *arguments: object, state: Path, **variables: str
) -> Iterator[tuple[Typist, subprocess.Popen[bytes]]]:
    """A prompt in a terminal of its own."""
    terminal, its_end = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm",
        "PROMPT_TOOLKIT_NO_CPR": "1",
        "XDG_STATE_HOME": str(state),
    }
    command = [sys.executable, "-c", _START, "shell", *map(str, arguments)]
    with subprocess.Popen(
        command, stdin=its_end, stdout=its_end, stderr=its_end, env={**environment, **variables},
        start_new_session=True,
    ) as process:  # fmt: skip
        os.close(its_end)
        try:
            yield Typist(terminal), process
        finally:
            process.kill()
            os.close(terminal)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_recording(folder / "ref", MadeTraining(whole=True))
    write_recording(folder / "cand", MadeTraining(whole=True, alter={"relu": abs}))
    return folder


def test_what_is_typed_is_completed_run_and_kept(recordings: Path, tmp_path: Path) -> None:
    # given a prompt over a folder
    with at_a_prompt(recordings, state=tmp_path) as (typist, process):
        typist.wait("lockstep>")
        # when names are begun and Tab is pressed, then commands and recordings are completed
        for begun, rest in (("op", "en"), (" re", "f"), (" ca", "nd")):
            typist.type(f"{begun}\t")
            typist.wait(begun.strip())
            typist.wait(rest)
        typist.type("\r")
        typist.wait("candidate: ")
        typist.wait("ref cand>")
        # and options, modules, operators, sites and choices
        for begun, rest, printed in (
            ("list --cos", "ine", "0 pairs, by Cosine, under 0.98"),
            ("find torch.nn.functional.r", "elu", "net / torch.nn.functional.relu #0, forward"),
            ("hist 'net / torch.nn.functional.r", "elu #0, forward'", "output.0, float32[64, 32]"),
            ("use st", "ep", "step 0, rank all"),
        ):
            typist.type(f"{begun}\t")
            typist.wait(begun[-2:])
            typist.wait(rest)
            typist.type({"ine": " 0.98\r", "ep": " 0\r"}.get(rest, "\r"))
            typist.wait(printed)
            typist.wait(">")
        # and what is wrong is told
        typist.type("lss\r")
        typist.wait("did you mean ls?")
        typist.wait("step 0>")
        # and Ctrl-C leaves a line, Ctrl-D the prompt
        typist.type("not run\x03")
        typist.wait("step 0>")
        assert typist.leave(process) == 0
    # and the next prompt has what was typed, whole, the last first
    assert "+open ref cand\n" in (tmp_path / "lockstep" / "shell_history").read_text()
    with at_a_prompt(recordings / "ref", state=tmp_path) as (typist, process):
        typist.wait("ref>")
        typist.type("\x1b[A\x1b[A")  # twice up
        typist.wait("use step 0")
        typist.type("\r")
        typist.wait("step 0, rank all")
        typist.wait("step 0>")
        typist.type("quit\r")
        assert process.wait(_PATIENCE_S) == 0


def test_without_a_place_for_history_and_without_prompt_toolkit_it_works(
    recordings: Path, tmp_path: Path
) -> None:
    # given a state that is a file, where no folder can be
    (tmp_path / "state").write_text("")
    with at_a_prompt(recordings / "ref", state=tmp_path / "state") as (typist, process):
        typist.wait("ref>")
        typist.type("steps\r")
        # then a line is run all the same, and it is said once
        typist.wait("history is not kept")
        typist.wait("complete")
        typist.wait("ref>")
        typist.type("exit\r")
        assert process.wait(_PATIENCE_S) == 0
    # given no prompt_toolkit
    (tmp_path / "without").mkdir()
    (tmp_path / "without" / "prompt_toolkit.py").write_text("raise ImportError('none')\n")
    without = str(tmp_path / "without")
    with at_a_prompt(recordings / "ref", state=tmp_path, PYTHONPATH=without) as (typist, process):
        # then lines are read without
        typist.wait("pip install 'lockstep-numerics[shell]'")
        typist.wait("ref>")
        typist.type("steps\n")
        typist.wait("complete")
        typist.wait("ref>")
        assert typist.leave(process) == 0


def test_ctrl_c_leaves_the_command_that_runs_and_not_the_prompt(
    recordings: Path, tmp_path: Path
) -> None:
    # given a command that waits for more to read
    os.mkfifo(tmp_path / "train.log")
    with at_a_prompt(recordings / "ref", state=tmp_path) as (typist, process):
        typist.wait("ref>")
        typist.type(f"lockstep diagnose {tmp_path}/train.log\r")
        with (tmp_path / "train.log").open("w"):  # as soon as it reads
            typist.type("\x03")
            # then it is left, and the next one runs
            typist.wait("interrupted")
            typist.wait("ref>")
        typist.type("steps\r")
        typist.wait("complete")
        typist.wait("ref>")
        assert typist.leave(process) == 0


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("sh", {"show"}),
        ("lockstep ext", {"extract"}),
        ("list --by max", {"MaxAbsErr", "MaxRelativeErr", "MaxUlp"}),
        ("list --where out", {"Outcome="}),
        ("show fc", {"fc1", "fc2"}),
        ("ni 'fc1 / torch.nn", {"'fc1 / torch.nn.functional.linear #0, forward'", "'fc1 / torch.nn.Linear #0, init'"}),
        ("use rank ", {"rank0", "all"}),
        ("help qu", {"quit"}),
        ("compare --judge ", {"error-model", "fixed"}),
        ("show 'unclosed \"", set()),
        ("xyzzy ", set()),
    ],
)  # fmt: skip
def test_what_a_word_may_become(recordings: Path, typed: str, offered: set[str]) -> None:
    session = Session()
    session.open(recordings / "ref")
    found = CommandCompleter(session).get_completions(Document(typed), CompleteEvent())
    assert {one.text for one in found} == offered
