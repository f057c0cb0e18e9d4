"""Call stacks of the user's own code, each distinct one once."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import CodeType, FrameType

import torch

import lockstep
from lockstep.core.record import Frame

_HIDDEN = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(lockstep.__file__).parent) + os.sep,
    "<frozen ",
)
_MAX_FRAMES = 24


class Stacks:
    """Numbers distinct call stacks of the calling thread, without the frames of torch and of Lockstep."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}
        self._hidden: dict[CodeType, bool] = {}
        self._frames: dict[tuple[CodeType, int], Frame] = {}

    def here(self) -> tuple[int, tuple[Frame, ...] | None]:
        """Number of the caller's stack, and its frames (innermost first) if it is a new one."""
        frame: FrameType | None = sys._getframe(1)
        codes: list[CodeType] = []
        lines: list[int] = []
        hidden = self._hidden
        while frame is not None and len(codes) < _MAX_FRAMES:
            code = frame.f_code
            hide = hidden.get(code)
            if hide is None:
                hide = hidden[code] = code.co_filename.startswith(_HIDDEN)
            if not hide:
                codes.append(code)
                lines.append(frame.f_lineno)
            frame = frame.f_back
        key = (*codes, *lines)
        number = self._numbers.get(key)
        if number is not None:
            return number, None
        number = self._numbers[key] = len(self._numbers)
        return number, tuple(map(self._frame, codes, lines))

    def _frame(self, code: CodeType, line: int) -> Frame:
        found = self._frames.get((code, line))
        if found is None:
            found = self._frames[(code, line)] = Frame(
                short_path(code.co_filename), line, code.co_name
            )
        return found


def short_path(file: str) -> str:
    """A file's path as a person would say it: below the working directory, or from its package on."""
    path = os.path.abspath(file)
    below = os.path.relpath(path, os.getcwd())
    if not below.startswith(".."):
        for marker in ("site-packages", "dist-packages"):
            if f"{os.sep}{marker}{os.sep}" in path:
                return path.split(f"{os.sep}{marker}{os.sep}", 1)[1]
        return below
    for root in sorted(sys.path, key=len, reverse=True):
        if (
            root
            and path.startswith(os.path.abspath(root) + os.sep)
            and os.path.abspath(root) != os.sep
        ):
            return os.path.relpath(path, os.path.abspath(root))
    return path
