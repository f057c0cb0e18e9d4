"""Find torch's own function where a script has replaced it.

A function of torch asks the modes on the stack before it does its work, and names itself by the attribute that it is
found at. Where a script has wrapped that attribute, the script's wrapper has been called already, calls torch's own
function, and that one names the wrapper: a mode that called it would run the wrapper twice. Here torch's own is found.
"""

from __future__ import annotations

from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import handle_torch_function

_TORCH = str(Path(torch.__file__).parent)
_ASKING = handle_torch_function.__code__


def is_torchs(function: Any) -> bool:
    """Whether a function is torch's own, or not a plain function at all, as all that is not in Python."""
    code = getattr(function, "__code__", None)
    if code is None:
        return not _is_in_place(function)
    return bool(code.co_filename.startswith(_TORCH))


def _is_in_place(function: Any) -> bool:
    """Whether an object that is called like a function stands among the methods of tensors."""
    return not type(function).__module__.startswith(("builtins", "torch")) and _name(function) != ""


class Originals:
    """Finds the functions that were wrapped, each once."""

    def __init__(self) -> None:
        self._found: dict[CodeType, tuple[Any, str]] = {}

    def of(self, function: Any, caller: FrameType | None) -> tuple[Any, str | None]:
        """The function of torch's own that is asking, and its name.

        Parameters
        ----------
        function
            What it says it is, and is none of torch's.
        caller
            Who called the mode.

        Returns
        -------
        tuple
            `function` and None where it is what it says: a function of another package that asks modes.
        """
        if caller is None or caller.f_code is not _ASKING:
            return self._compiled(function)
        asking = caller.f_back
        if asking is None or asking.f_code is getattr(function, "__code__", None):
            return function, None
        found = self._found.get(asking.f_code)
        if found is None:
            found = self._found[asking.f_code] = _in_python(function, asking)
        return found

    def _compiled(self, function: Any) -> tuple[Any, str | None]:
        name = _name(function)
        original = getattr(torch._C.TensorBase, name, None) if name else None
        if original is None:
            return function, None
        return original, f"torch.Tensor.{name}"


def _name(function: Any) -> str:
    """The name of the tensors' method that a function stands for."""
    named = (name for name, value in vars(torch.Tensor).items() if value is function)
    return next(named, "")


_OWNERS = {"torch._tensor": "torch.Tensor", "torch.nn.functional": "torch.nn.functional"}
"""Where functions of a module are found."""


def _in_python(function: Any, asking: FrameType) -> tuple[Any, str]:
    code = asking.f_code
    name = f"{_OWNERS.get(asking.f_globals['__name__'], 'torch')}.{code.co_name}"
    if not code.co_freevars:
        return FunctionType(code, asking.f_globals), name
    return _wrapped_in(function, code) or function, name


def _wrapped_in(function: Any, code: CodeType, depth: int = 0) -> Any:
    """The function with some code that another one keeps in its closure, at whatever depth."""
    if getattr(function, "__code__", None) is code:
        return function
    for cell in getattr(function, "__closure__", None) or () if depth < 8 else ():
        try:
            found = _wrapped_in(cell.cell_contents, code, depth + 1)
        except ValueError:  # an empty cell
            continue
        if found is not None:
            return found
    return None
