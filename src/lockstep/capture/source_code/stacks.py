"""Call stacks of the user's own code, each distinct one once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, FrameType

import torch

from lockstep.capture.patching.callers import STAND_IN
from lockstep.capture.source_code.source_lines import NamedLine
from lockstep.capture.source_code.user_code import is_of_the_user, short_path
from lockstep.core.members import own_folders
from lockstep.core.records import Frame

_HIDDEN = (
    str(Path(torch.__file__).parent) + os.sep,
    *own_folders(),
    "<frozen ",
)
_MAX_FRAMES = 24

_Lines = tuple[int, ...]
"""Code object (its `id`: hashing one is slow) and line, frame by frame."""


class Stacks:
    """Numbers distinct call stacks of the calling thread, without the frames of torch and of Lockstep.

    border: Code that runs a recorded call from the inside: what lies outside of its frame is the stack that this call
        was numbered with, and is not looked at again for what it calls.
    """

    def __init__(self, border: CodeType) -> None:
        self._border = border
        self._numbers: dict[_Lines, int] = {}
        self._stacks: list[_Lines] = []
        self._lines: dict[tuple[int, int], int] = {}
        self._codes: dict[int, tuple[CodeType, bool]] = {}
        self._frames: dict[tuple[int, int], Frame] = {}
        self._told: dict[tuple[str, str], int] = {}

    def here(self, around: int, frame: FrameType | None) -> tuple[int, tuple[Frame, ...] | None]:
        """Number of the stack from a frame on, and its frames (innermost first) if it is a new one.

        `around` is the number of the stack of the recorded call around, -1 where there is none.
        """
        lines: list[int] = []
        at = self._lines
        codes, border = self._codes, self._border if around >= 0 else None
        while frame is not None:
            code = frame.f_code
            if code is border:
                lines += self._stacks[around]
                break
            known = codes.get(id(code)) or self._met(code)
            if not known[1]:
                place = (id(code), frame.f_lasti)
                line = at.get(place)
                if line is None:
                    line = at[place] = (
                        frame.f_lineno or 0
                    )  # slow: Python looks through the code's table
                lines += (place[0], line)
                if len(lines) == 2 * _MAX_FRAMES:
                    break
            frame = frame.f_back
        key = tuple(lines[: 2 * _MAX_FRAMES])
        number = self._numbers.get(key)
        return self._numbered(key) if number is None else (number, None)

    def told(
        self, told: Sequence[tuple[str, int, str]], around: int
    ) -> tuple[int, tuple[Frame, ...] | None]:
        """As `here`, for a stack that is told: file, line and function of each frame, innermost first."""
        lines: list[int] = []
        for file, line, function in told[:_MAX_FRAMES]:
            if not file.startswith(_HIDDEN):
                identity = self._told.setdefault((file, function), -1 - len(self._told))
                if (identity, line) not in self._frames:
                    self._frames[(identity, line)] = Frame(short_path(file), line, function)
                lines += (identity, line)
        lines += self._stacks[around] if around >= 0 else ()
        return self._numbered(tuple(lines[: 2 * _MAX_FRAMES]))

    def named_lines(self) -> list[NamedLine]:
        """The lines of all stacks, each once: the user's innermost ones, then where libraries call, then others."""
        ranked: dict[NamedLine, int] = {}
        paths = {identity: file for (file, _), identity in self._told.items()}
        for lines in self._stacks:
            own_met = False
            for depth, place in enumerate(zip(lines[::2], lines[1::2], strict=True)):
                identity, line = place
                path = paths[identity] if identity < 0 else self._codes[identity][0].co_filename
                own = path.startswith("<") or is_of_the_user(path)
                wanted = 0 if own and not own_met else 1 if depth == 0 else 2 if own else 3
                own_met = own_met or own
                named = NamedLine(self._frame(identity, line).file, path, line)
                ranked[named] = min(wanted, ranked.get(named, wanted))
        return sorted((one for one in ranked if ranked[one] < 3), key=ranked.__getitem__)

    def _numbered(self, key: _Lines) -> tuple[int, tuple[Frame, ...] | None]:
        number = self._numbers.get(key)
        if number is not None:
            return number, None
        number = self._numbers[key] = len(self._stacks)
        self._stacks.append(key)
        frames = list(map(self._frame, key[::2], key[1::2]))
        return number, tuple(
            frames
        )  # made in one go, which another thread's look at the heap cannot disturb

    def _met(self, code: CodeType) -> tuple[CodeType, bool]:
        """Keep a code object, and with it its `id`; with whether its frames are hidden."""
        hidden = code.co_name == STAND_IN or code.co_filename.startswith(_HIDDEN)
        known = self._codes[id(code)] = (code, hidden)
        return known

    def _frame(self, identity: int, line: int) -> Frame:
        found = self._frames.get((identity, line))
        if found is None:
            code = self._codes[identity][0]
            found = self._frames[(identity, line)] = Frame(
                short_path(code.co_filename), line, code.co_name
            )
        return found
