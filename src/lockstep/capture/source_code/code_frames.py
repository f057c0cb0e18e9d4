"""Frames of the code that is being run, as recordings keep them. No torch here."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import CodeType, FrameType

from lockstep.capture.source_code.user_code import is_of_the_user, short_path
from lockstep.core.members import own_folders
from lockstep.core.records import Frame

_MOST_FRAMES = 24

_hidden: dict[tuple[CodeType, tuple[str, ...]], bool] = {}


def frames_here(hidden: tuple[str, ...] = ()) -> tuple[Frame, ...]:
    """The stack of the caller, innermost frame first, without Lockstep's and files that begin with `hidden`."""
    frame: FrameType | None = sys._getframe(1)
    frames: list[Frame] = []
    while frame is not None:
        code = frame.f_code
        skip = _hidden.get((code, hidden))
        if skip is None:
            skip = code.co_filename.startswith((*own_folders(), "<frozen ", *hidden))
            _hidden[code, hidden] = skip
        if not skip:
            frames.append(frame_of(code.co_filename, frame.f_lineno or 0, code.co_name))
        frame = frame.f_back
    return innermost(frames)


def innermost(frames: Sequence[Frame]) -> tuple[Frame, ...]:
    """The innermost frames of a stack that is too long, and behind them those of the user's own code."""
    if len(frames) <= _MOST_FRAMES:
        return tuple(frames)
    half = _MOST_FRAMES // 2
    own = [frame for frame in frames[half:] if not frame.library]
    return (*frames[:half], *own[:half])


_names: dict[str, tuple[str, bool]] = {}


def frame_of(file: str, line: int, function: str) -> Frame:
    """A frame that is told by file, line and function."""
    known = _names.get(file)
    if known is None:
        own = file.startswith("<") or is_of_the_user(os.path.abspath(file))  # noqa: PTH100
        known = _names[file] = (short_path(file), not own)
    return Frame(known[0], line, function, known[1])
