"""The rooms that one real comparison goes through, drawn from what is called while it runs."""

from __future__ import annotations

import contextlib
import gc
import inspect
import io
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch

import lockstep
from lockstep.cli.main import main
from lockstep.kernels import every_loop

_SOURCE = Path(lockstep.__file__).parent
_SAID_BY_ALL = ("core", "kernels")
"""Vocabulary and arithmetic: every room enters them."""


def drawn() -> str:
    """Each room once, behind it the files through which it is entered, and who else enters it.

    To be asked of a new process: what one has called before and kept, it does not call again.
    """
    callers: dict[str, list[str]] = {}
    doors: dict[str, set[str]] = {}
    for caller, callee, file in _calls():
        callers.setdefault(callee, []).append(caller)
        doors.setdefault(callee, set()).add(file)
    # The command line opens recordings and shows answers: a room that others enter too is drawn below those.
    order = {
        room: sorted(dict.fromkeys(found), key="cli".__eq__) for room, found in callers.items()
    }
    return "\n".join(["```", *_tree("cli", order, doors | {"cli": {"compare.py"}}, 0), "```"])


def _tree(
    room: str, callers: dict[str, list[str]], doors: dict[str, set[str]], depth: int
) -> Iterator[str]:
    also = ", ".join(callers.get(room, [])[1:])
    files = ", ".join(sorted(doors[room]))
    shown = textwrap.wrap(files + (f" (and from {also})" if also else ""), 96)
    yield f"{'  ' * depth + room:<14} {shown[0]}"
    yield from (f"{'':<14} {line}" for line in shown[1:])
    for below, found in callers.items():
        if found[0] == room:
            yield from _tree(below, callers, doors, depth + 1)


def _calls() -> list[tuple[str, str, str]]:
    """Who called whom, as rooms, and by which file of the called one, in order of the first time."""
    every_loop.main()  # compiling one calls whatever it likes
    with tempfile.TemporaryDirectory() as folder:
        paths = [
            _recorded(Path(folder) / name, rate) for name, rate in (("ref", 0.1), ("cand", 0.2))
        ]
        seen: dict[tuple[str, str, str], None] = {}

        def look(frame: FrameType, event: str, _: Any) -> None:
            to, caller = _place(frame), frame.f_back
            if frame.f_code.co_name.startswith("<"):
                return  # what a room was handed, and calls, it does not enter
            while event == "call" and to is not None and caller is not None:
                if caller.f_code.co_name == "<module>" and _is_ours(caller):
                    return  # a module is being loaded
                come = _place(caller)
                if come is not None:
                    if come[0] != to[0]:
                        seen[come[0], to[0], to[1]] = None
                    return
                caller = caller.f_back

        # On one thread: of several, which first does what all of them would is not the same twice.
        alone = mock.patch("lockstep.measure.prefetch.threads", return_value=1)
        with alone, contextlib.redirect_stdout(io.StringIO()):
            gc.collect()  # what recording left is swept away now, and not by the comparison
            sys.setprofile(look)
            try:
                main(["compare", *paths])
            finally:
                sys.setprofile(None)
    return list(seen)


def _place(frame: FrameType) -> tuple[str, str] | None:
    """Room and file of a function of Lockstep's."""
    if not _is_ours(frame) or not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return None
    room, *rest = Path(frame.f_code.co_filename).relative_to(_SOURCE).parts
    if room in _SAID_BY_ALL or room in ("plugins.py", "wings"):
        return None
    return (room, "/".join(rest)) if rest else (room.removesuffix(".py"), room)


def _is_ours(frame: FrameType) -> bool:
    return frame.f_code.co_filename.startswith(str(_SOURCE))


def _recorded(path: Path, rate: float) -> str:
    """Two steps of a small training."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU(), torch.nn.Dropout(rate))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:2", save="tensors"):
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
    return str(path)


if __name__ == "__main__":
    print(drawn())
