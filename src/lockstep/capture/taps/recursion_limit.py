"""Raise the recursion limit by the frames that recording adds between two calls of the script."""

from __future__ import annotations

import sys
import threading
from types import TracebackType

_FRAMES = 3
"""What recording adds to the stack with each module inside of another: counted with nests of modules as deep as a limit
allows, bare and recorded (`tests/capture/test_recursion_limit.py`). Not one more: a script that never stops has to hit
a limit."""

STRIDE = 16
"""The limit is raised for so many modules at a time."""

_INNERMOST = 200
"""What recording itself needs below the innermost call."""

_changing = threading.Lock()


class RaisedLimit:
    """Raises the recursion limit around the call of a module as far as recording adds to the stack.

    depth: Modules around it, a multiple of `STRIDE`.
    """

    __slots__ = ("_frames",)

    def __init__(self, depth: int) -> None:
        self._frames = _FRAMES * STRIDE + (0 if depth else _INNERMOST)

    def __enter__(self) -> None:
        _raise_limit(self._frames)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        _raise_limit(-self._frames)


def _raise_limit(frames: int) -> None:
    with _changing:  # what one thread has read another one must not write meanwhile
        sys.setrecursionlimit(sys.getrecursionlimit() + frames)
