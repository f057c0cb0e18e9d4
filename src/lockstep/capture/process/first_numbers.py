"""The moment before a training's first numbers, at which torch's math library is called once on one thread."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.module import register_module_parameter_registration_hook

from lockstep.capture.silence import Silence
from lockstep.devices.vector_math import prepare_vector_math


def before_first_numbers() -> None:
    """Call each vector function once, if this process has not; it leaves no trace in the training."""
    if prepare_vector_math.cache_info().currsize:
        return
    with Silence():
        prepare_vector_math()


class FirstParameter:
    """Waits for the first parameter that a module of this process is given, whose values may be drawn next.

    It is not done when the recorder is armed, which is right after `import torch`: a script may still set `MKL_CBWR`
    then, and that would not take effect any more.
    """

    def __init__(self) -> None:
        self._handle: Any = None

    def listen(self) -> None:
        """Hear of parameters from now on."""
        self._handle = register_module_parameter_registration_hook(_prepare)

    def stop(self) -> None:
        """Hear of no more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None


def _prepare(_module: torch.nn.Module, _name: str, _parameter: torch.nn.Parameter) -> None:
    if not torch.compiler.is_compiling():
        before_first_numbers()
