"""At which line each buffer of a module was registered, which is not where a step first meets it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.modules.module import register_module_buffer_registration_hook

from lockstep.capture.patching.callers import without_us

Told = tuple[tuple[str, int, str], ...]
"""File, line and function of each frame, innermost first."""

_MOST_FRAMES = 48


class MadeBuffers:
    """Keeps the call stack of each `register_buffer`, by the module's `id` and the buffer's name."""

    def __init__(self) -> None:
        self._stacks: dict[int, dict[str, Told]] = {}
        self._handle: Any = None

    def listen(self) -> None:
        """Hear of buffers from now on."""
        self._handle = register_module_buffer_registration_hook(self._note)

    def stop(self) -> None:
        """Hear of no more, and forget."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        self._stacks.clear()

    def forget(self, number: int) -> None:
        """A new module has this `id`."""
        self._stacks.pop(number, None)

    def made_at(self, module: torch.nn.Module, names: Iterable[str]) -> Told | None:
        """Return the stack at which the first of these buffers was registered; None if one was made unheard."""
        known = self._stacks.get(id(module), {})
        found = [known.get(name) for name in names]
        return found[0] if found and None not in found else None

    def _note(self, module: torch.nn.Module, name: str, _buffer: torch.Tensor | None) -> None:
        if not torch.compiler.is_compiling():
            self._stacks.setdefault(id(module), {})[name] = _stack()


def _stack() -> Told:
    frames = []
    for frame in without_us(sys._getframe(2)):
        frames.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        if len(frames) == _MOST_FRAMES:
            break
    return tuple(frames)
