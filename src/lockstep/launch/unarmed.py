"""Python processes of a recorded command that load torch without Lockstep's start-up hook: nothing of them is recorded.

Each process that imports torch behind the hook notes its number before the first library of torch is loaded
(`capture.process.environment.ARMED`). One in which that library is seen and that has left no note was started past
the hook.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from lockstep.capture.process.environment import (
    STARTUP,
    TRACE_VARIABLE,
    VARIABLE,
    armed_processes,
    trace_of,
)
from lockstep.launch.descendants import (
    Descendants,
    command_of,
    environment_of,
    maps_library,
    numbers_inside,
    parent_of,
)
from lockstep.launch.events import NotArmed

_LOADED_BY_TORCH = "libtorch_python"
_SKIP_HOOK = "IES"
_TAKE_A_VALUE = "cmWX"


class UnarmedSearch:
    """Looks for them among the processes of a command.

    directory: The recording that the command goes into.
    root: The command's process.
    """

    def __init__(self, directory: Path, root: int) -> None:
        self._directory = directory
        self._descendants = Descendants(root)
        self._decided: set[int] = set()
        self._suspected: set[int] = set()

    def look(self) -> list[NotArmed]:
        """Those that were not told of before, each once it was seen twice.

        Between a fork and the program that is started by it, a child is as its parent.
        """
        there = self._descendants.now()
        self._decided &= there
        loaded = {
            number for number in there - self._decided if maps_library(number, _LOADED_BY_TORCH)
        }
        if not loaded:
            self._suspected = set()
            return []
        noted = armed_processes(self._directory)
        strange = {number for number in loaded if not _is_armed(number, noted)}
        self._decided |= loaded - strange
        certain = strange & self._suspected
        self._decided |= certain
        self._suspected = strange - certain
        found = (self._unarmed(number) for number in sorted(certain))
        return [one for one in found if one is not None]

    def _unarmed(self, number: int) -> NotArmed | None:
        """What is to be said of a process; None where another recording has it."""
        environment, command = environment_of(number), command_of(number)
        if environment is None or not command:
            return None
        trace = environment.get(TRACE_VARIABLE)
        if trace is not None and trace != str(trace_of(self._directory)):
            return None
        program = shutil.which(command[0], path=environment.get("PATH")) or command[0]
        return NotArmed(number, program, *why_unarmed(command, environment, program))


def _is_armed(number: int, noted: set[int]) -> bool:
    """Whether a process, or the one that it was forked from, has left its note."""
    if numbers_inside(number) & noted:
        return True
    parent = parent_of(number)
    return bool(numbers_inside(parent) & noted) and command_of(number) == command_of(parent)


def why_unarmed(command: list[str], environment: dict[str, str], program: str) -> tuple[str, str]:
    """Return how a process got past the hook, and the cure.

    command: Its command line.
    environment: What it was started with.
    program: Its Python.
    """
    install = f"install lockstep-numerics into {program}"
    skipped = _skipping_flag(command)
    if skipped == "S":
        return "was started by `python -S`, which runs no start-up hook", "Take -S away."
    if VARIABLE not in environment:
        return (
            "was started with an environment that was cleared",
            "Pass on PYTHONPATH and the variables that begin with LOCKSTEP.",
        )
    if skipped:
        return (
            f"was started by `python -{skipped}`, which does not look at PYTHONPATH",
            f"Take -{skipped} away, or {install}.",
        )
    path = environment.get("PYTHONPATH", "")
    if str(STARTUP) in path.split(os.pathsep):
        return (
            "another sitecustomize stands before Lockstep's on its PYTHONPATH",
            f"Add to the end of PYTHONPATH what is to be added, or {install}.",
        )
    if not path:
        return "was started without PYTHONPATH", f"Leave PYTHONPATH as it is, or {install}."
    return (
        f"was started with a PYTHONPATH of its own ({path})",
        f"Write PYTHONPATH={path}:$PYTHONPATH, or {install}.",
    )


def _skipping_flag(command: list[str]) -> str:
    """The flag by which a Python was told to skip the hook, "" where there is none."""
    found = ""
    for word in command[1:]:
        if not word.startswith("-") or word.startswith("--"):
            break
        for letter in word[1:]:
            if letter in _TAKE_A_VALUE:
                return found
            if letter in _SKIP_HOOK:
                found = letter if found != "S" else found
    return found
