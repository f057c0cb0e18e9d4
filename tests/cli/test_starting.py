"""Ctrl-C while the command line loads: one line and the code of an interrupted command, at any moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Sends SIGINT to itself when a module is about to be loaded: argv are that module, what SIGINT did before, and the
# command line.
INTERRUPTED_AT = """
import os, signal, sys

module, before = sys.argv[1:3]
sys.argv[1:3] = []
sent = []

def hear(event, arguments):
    if event == "import" and arguments[0] == module and not sent:
        sent.append(module)
        os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, getattr(signal, before))
sys.addaudithook(hear)
from lockstep.__main__ import program

code = program()
assert sent
sys.exit(code)
"""


def interrupted_at(module: str, *, before: str = "default_int_handler") -> tuple[int, str]:
    """Return the exit code and standard error of `lockstep show nothing-there`."""
    command = [sys.executable, "-c", INTERRUPTED_AT, module, before, "show", "nothing-there"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "module",
    [
        "lockstep.cli.main",  # the first that loads much
        "importlib.metadata",  # where plug-ins are found
        "lockstep.report.recording",  # what the verb needs
        "polars",  # a compiled module
    ],
)
def test_ctrl_c_while_starting_is_one_line(module: str) -> None:
    code, said = interrupted_at(module)
    assert (code, said.strip()) == (130, "lockstep: interrupted")


def test_a_start_that_ignores_ctrl_c_goes_on() -> None:
    # Given a command line that a shell has started in the background, which ignores Ctrl-C
    code, said = interrupted_at("lockstep.cli.main", before="SIG_IGN")
    # Then it says what it has to say
    assert code == 2
    assert "nothing-there" in said
    assert "interrupted" not in said
