"""An uncaught exception of a recorded script reads as it does without Lockstep."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from lockstep.capture.patching.callers import STAND_IN

_OURS = str(Path(__file__).parents[1])


def show_tracebacks_without_us() -> None:
    """Take Lockstep's frames out of the traceback that ends the process.

    A hook that the script itself has set stays.
    """
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _show


def _show(kind: type[BaseException], value: BaseException, traceback: TracebackType | None) -> None:
    for error in _related(value):
        error.__traceback__ = _without_us(error.__traceback__)
    sys.__excepthook__(kind, value, _without_us(traceback))


def _related(error: BaseException) -> Iterator[BaseException]:
    """The exception with all that it was raised from or while handling."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        item = waiting.pop()
        if item is not None and id(item) not in seen:
            seen.add(id(item))
            waiting += [item.__cause__, item.__context__, *getattr(item, "exceptions", ())]
            yield item


def _without_us(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames and without torch's detour through its function mode."""
    kept: list[TracebackType] = []
    after_us = False
    while traceback is not None:
        code = traceback.tb_frame.f_code
        ours = code.co_name == STAND_IN or code.co_filename.startswith(_OURS)
        if ours and not after_us and kept and _is_detour(kept[-1]):
            # handle_torch_function, and the function that turned to it: it follows once more below.
            del kept[-2:]
        if not ours:
            kept.append(traceback)
        after_us = ours
        traceback = traceback.tb_next
    for entry, following in zip(kept, [*kept[1:], None], strict=True):
        entry.tb_next = following
    return kept[0] if kept else None


def _is_detour(entry: TracebackType) -> bool:
    code = entry.tb_frame.f_code
    return code.co_name == "handle_torch_function" and code.co_filename.endswith("overrides.py")
