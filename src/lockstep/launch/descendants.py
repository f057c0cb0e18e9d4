"""The processes of a running command, where the system tells of them by /proc; elsewhere there are none to see."""

from __future__ import annotations

import os
from pathlib import Path

_PROC = Path("/proc")


class Descendants:
    """The processes that a process has started, and their children.

    A process whose parent ended before anybody looked is missed. One that was seen before is not read again.

    root: The process whose descendants are wanted; it is one of them.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._parents: dict[int, int] = {}
        self._ours: set[int] = {root}

    def now(self) -> set[int]:
        """Their numbers."""
        there = _numbers()
        for gone in self._parents.keys() - there:
            del self._parents[gone]
        self._ours &= there
        fresh = [number for number in sorted(there) if number not in self._parents]
        self._parents |= {number: parent_of(number) for number in fresh}
        grown = True
        while grown:
            more = {n for n in fresh if self._parents[n] in self._ours} - self._ours
            self._ours |= more
            grown = bool(more)
        return set(self._ours)


def parent_of(number: int) -> int:
    """The process that started one, 0 where that cannot be told."""
    # The name of a program stands in parentheses, and may hold any.
    fields = _read(number, "stat").rpartition(b") ")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def numbers_inside(number: int) -> set[int]:
    """Return the numbers that a process has for itself: in a container they differ."""
    for line in _read(number, "status").splitlines():
        if line.startswith(b"NSpid:"):
            return {int(word) for word in line.split()[1:]}
    return {number}


def maps_library(number: int, name: str) -> bool:
    """Whether a process has loaded a library with this in its name."""
    return name.encode() in _read(number, "maps")


def command_of(number: int) -> list[str]:
    """The command line of a process, [] where it may not be read."""
    return [os.fsdecode(word) for word in _read(number, "cmdline").split(b"\0")[:-1]]


def environment_of(number: int) -> dict[str, str] | None:
    """Return the environment that a process was started with, None if it may not be read."""
    data = _read(number, "environ")
    if not data:
        return {} if _may_read(number) else None
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def started_with(name: str, value: str) -> set[int]:
    """Return the processes that were started with this variable, as far as their environment may be read."""
    entry = os.fsencode(f"{name}={value}")
    return {number for number in _numbers() if entry in _read(number, "environ").split(b"\0")}


def _numbers() -> set[int]:
    try:
        return {int(name) for name in os.listdir(_PROC) if name.isdigit()}  # noqa: PTH208  # every half second
    except OSError:
        return set()


def _read(number: int, name: str) -> bytes:
    """What the system tells of a process, b"" where it is gone or somebody else's."""
    try:
        return (_PROC / str(number) / name).read_bytes()
    except OSError:
        return b""


def _may_read(number: int) -> bool:
    return os.access(_PROC / str(number) / "environ", os.R_OK) and bool(command_of(number))
