"""A recorded call as a line of Python."""

from __future__ import annotations

import keyword
import math
import re
from collections.abc import Mapping
from typing import Any

import torch

from lockstep.replay.calls.imported import import_named
from lockstep.replay.calls.rebuild import Rebuilt, Slot
from lockstep.replay.calls.refusals import CannotReplay

_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})


def as_name(argument: str, number: int) -> str:
    """Return an argument's name in Python: "args.0" is `args_0`, "0.weight" is `weight`."""
    last = (
        argument.rpartition(".")[2] if not argument.startswith(("args.", "kwargs.")) else argument
    )
    name = re.sub(r"\W", "_", last.removeprefix("kwargs."), flags=re.ASCII)
    if not name or name[0].isdigit() or keyword.iskeyword(name) or name in _TAKEN:
        name = f"tensor_{number}_{name}"
    return name


_TAKEN = frozenset({
    "values", "results", "gradients", "check", "torch", "given", "laid", "hold", "json", "math", "os", "random_state",
})  # fmt: skip
"""Names that a written test uses itself."""


def call_source(rebuilt: Rebuilt, passed: Mapping[int, str]) -> str:
    """The call with the sources of its tensors by number. Raises CannotReplay if an argument cannot be written down."""
    name = rebuilt.op.rpartition(".")[2]
    if name in _PROPERTIES and rebuilt.op.startswith("torch.Tensor."):
        return f"{_source(rebuilt.args[0], passed)}.{name}"
    function = f"torch.ops.{rebuilt.op}" if rebuilt.op.startswith("aten.") else rebuilt.op
    if (imported := import_named(rebuilt.op)) is not None:
        function = f"{imported.module}.{imported.attribute}.apply"
    arguments = [_source(value, passed) for value in rebuilt.args]
    if not all(key.isidentifier() for key in rebuilt.kwargs):
        raise CannotReplay("an argument has a name that is none")
    arguments += [f"{key}={_source(value, passed)}" for key, value in rebuilt.kwargs.items()]
    return f"{function}({', '.join(arguments)})"


def settings_source(settings: Mapping[str, Any]) -> str:
    """Return the source of keyword arguments after a first one.

    Raises CannotReplay if a name is none, or a value cannot be written down.
    """
    if not all(key.isidentifier() for key in settings):
        raise CannotReplay("a setting has a name that is none")
    return "".join(f", {key}={_source(value, {})}" for key, value in settings.items())


def _source(value: Any, passed: Mapping[int, str]) -> str:
    if isinstance(value, Slot):
        return passed[value.index]
    if isinstance(value, (list, tuple)):
        items = ", ".join(_source(item, passed) for item in value)
        if isinstance(value, list):
            return f"[{items}]"
        return f"({items},)" if len(value) == 1 else f"({items})"
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(f"{key!r}: {_source(item, passed)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, torch.device):
        return "DEVICE"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    if isinstance(value, (torch.dtype, torch.memory_format, torch.layout)):
        return str(value)
    if value is ...:
        return "..."
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    raise CannotReplay(f"an argument of type {type(value).__name__} cannot be written down")
