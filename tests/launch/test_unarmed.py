"""Pythons that load torch past the start-up hook are found among a command's processes, and no others."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lockstep.capture.process.environment import ARMED, STARTUP, TRACE_VARIABLE, leave_note
from lockstep.launch.descendants import parent_of
from lockstep.launch.unarmed import UnarmedSearch, why_unarmed

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are seen by /proc")

LOADS = """
import mmap, os, sys
library = open(sys.argv[1], "rb")
held = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
child = "fork" in sys.argv and os.fork()
print(child or os.getpid(), flush=True)
sys.stdin.read()
"""

Start = Callable[..., int]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python below this process that has a library of this name loaded; gives the number that it prints."""
    started: list[subprocess.Popen[str]] = []

    def begin(library: str, *words: str, environment: dict[str, str] | None = None) -> int:
        (tmp_path / library).write_text("no library at all")
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", LOADS, str(tmp_path / library), *words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={"LOCKSTEP_RECORD": "{}", **(environment or {})},
        )  # fmt: skip
        started.append(process)
        assert process.stdout is not None
        return int(process.stdout.readline())

    yield begin
    for process in started:
        process.communicate()


def found(directory: Path, *roots: int, looks: int = 3) -> list[int]:
    """The processes at or below these that are told of, in so many looks."""
    searches = [UnarmedSearch(directory, root) for root in roots]
    return [one.pid for _ in range(looks) for search in searches for one in search.look()]


def test_a_python_that_loads_torch_without_a_note_is_told_once(
    tmp_path: Path, start: Start
) -> None:
    # Given a Python that loads torch, one that was forked from such a one, and one that does not
    number, other = start("libtorch_python.so"), start("libother.so")
    forked = start("libtorch_python.so", "fork")
    parent = parent_of(forked)
    # When it is looked three times, then it is told once, and not before it was seen twice
    assert found(tmp_path, number, looks=1) == []
    assert found(tmp_path, number, other) == [number]
    assert found(tmp_path, parent) == sorted([parent, forked])


def test_what_is_armed_or_of_another_recording_is_not_told(tmp_path: Path, start: Start) -> None:
    # Given one that left its note, its fork, which left none, and one that another recording has
    noted, forked = start("libtorch_python.so"), start("libtorch_python.so", "fork")
    other = start("libtorch_python.so", environment={TRACE_VARIABLE: str(tmp_path / "other")})
    for number in (noted, parent_of(forked)):
        leave_note(tmp_path, ARMED, str(number))
    # Then nothing is told
    assert found(tmp_path, noted, parent_of(forked), other) == []


@pytest.mark.parametrize(
    ("command", "environment", "reason", "advice"),
    [
        ("python t.py -S", {"PYTHONPATH": "/own"}, "a PYTHONPATH of its own (/own)", "PYTHONPATH=/own:$PYTHONPATH"),
        ("python t.py", {}, "without PYTHONPATH", "Leave PYTHONPATH as it is"),
        ("python -m t", {"PYTHONPATH": f"/own:{STARTUP}"}, "another sitecustomize", "to the end of PYTHONPATH"),
        ("python -W error -I t.py", {}, "without PYTHONPATH", "install lockstep-numerics into /env/python"),
        ("python -uI t.py", {}, "`python -I`", "Take -I away, or install"),
        ("python -BSE t.py", {}, "`python -S`", "Take -S away"),
        ("python t.py", None, "environment that was cleared", "that begin with LOCKSTEP"),
    ],
)  # fmt: skip
def test_how_it_got_past_the_hook_is_said_and_what_to_do(
    command: str, environment: dict[str, str] | None, reason: str, advice: str
) -> None:
    given = {} if environment is None else {"LOCKSTEP_RECORD": "{}", **environment}
    said = why_unarmed(command.split(), given, "/env/python")
    assert reason in said[0]
    assert advice in said[1]
