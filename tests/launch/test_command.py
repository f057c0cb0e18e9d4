"""Signals that reach `lockstep record` while a command runs."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest

# A command that outlives signals: it says each that it gets, and ends when its input does.
COUNTS = """
import signal, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: print(number, flush=True))
print("ready", flush=True)
sys.stdin.read()
"""
RUNS = """
import os, sys
from lockstep.launch.command import Command
command = Command([sys.executable, "-c", sys.argv[1]], dict(os.environ))
if sys.argv[2:]:
    command._witness._process.kill()
    print("ended", flush=True)
sys.exit(command.wait())
"""


@pytest.mark.parametrize("send", [os.kill, os.killpg], ids=["alone", "group"])
def test_a_command_gets_each_signal_once(send: Callable[[int, int], None]) -> None:
    # Given a command that outlives signals, and a process that runs it
    with subprocess.Popen(
        [sys.executable, "-c", RUNS, COUNTS],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        got = []
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            # When a signal comes, to that process alone or to its group
            send(process.pid, number)
            got.append(int(process.stdout.readline()))
        process.stdin.close()
        rest = process.stdout.read()

    # Then the command gets it, and none twice
    assert got == [signal.SIGTERM, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
    assert rest == ""
    assert process.returncode == 0


def test_a_signal_passes_the_witness_that_somebody_ended() -> None:
    # Given a process that runs a command, whose witness has been killed
    with subprocess.Popen(
        [sys.executable, "-c", RUNS, COUNTS, "end the witness"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        assert {process.stdout.readline(), process.stdout.readline()} == {"ready\n", "ended\n"}
        # When a signal comes to that process alone, then the command gets it all the same
        os.kill(process.pid, signal.SIGTERM)
        assert process.stdout.readline() == f"{int(signal.SIGTERM)}\n"
        process.stdin.close()
    assert process.returncode == 0
