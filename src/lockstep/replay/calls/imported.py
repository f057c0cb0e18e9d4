"""Custom autograd functions that a user asks to be imported, so that calls of them can be run again.

A recording may be anybody's, so nothing of it is ever imported by its name; what is imported is named on the command
line, and runs the user's own code.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from lockstep.core.errors import UsageError
from lockstep.core.text import message
from lockstep.replay.calls.refusals import CannotReplay

_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True, slots=True)
class Import:
    """A custom function by where it is imported from.

    module: As `import` takes it.
    attribute: The class in it, with dots where it stands within another one.
    """

    module: str
    attribute: str

    def __str__(self) -> str:
        """As it is given: `package.module:Class`."""
        return f"{self.module}:{self.attribute}"

    def means(self, op: str) -> bool:
        """Whether a recorded operator is this function: the same class in that module, or in the script itself."""
        recorded = op.removesuffix(f".{self.attribute}")
        if recorded == op:
            return False
        inner, outer = sorted((recorded, self.module), key=len)
        return recorded == "__main__" or inner == outer or outer.endswith(f".{inner}")


def import_of(text: str) -> Import:
    """Return the function that `--import` names. Raises UsageError if it is no `MODULE:ATTR`."""
    module, colon, attribute = text.partition(":")
    if not colon or not _NAME.fullmatch(module) or not _NAME.fullmatch(attribute):
        raise UsageError(
            f"--import {text}: give the module and the class in it, as in my_package.functions:Scale"
        )
    return Import(module, attribute)


_known: dict[Import, Callable[..., Any]] = {}


def bring(wanted: Sequence[Import]) -> None:
    """Import these functions, and let go of all others.

    Raises CannotReplay if one cannot be imported, or is no custom autograd function.
    """
    _known.clear()
    if not wanted:
        return
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.append(folder)
    for one in wanted:
        _known[one] = _apply_of(one, folder)


def imported_function(op: str) -> Callable[..., Any] | None:
    """The function that a recorded operator is, among those that were imported."""
    return next((function for one, function in _known.items() if one.means(op)), None)


def import_named(op: str) -> Import | None:
    """Where the function that a recorded operator is was imported from."""
    return next((one for one in _known if one.means(op)), None)


def _apply_of(wanted: Import, folder: str) -> Callable[..., Any]:
    import torch

    try:
        found: Any = import_module(wanted.module)
    except ModuleNotFoundError as error:
        missing = error.name or wanted.module
        raise CannotReplay(
            f"--import {wanted}: there is no module {missing!r}; it is looked for in {folder} and where Python looks,"
            " so run this in its folder, or set PYTHONPATH"
        ) from error
    except (Exception, SystemExit) as error:  # the user's code, which may do anything
        raise CannotReplay(
            f"--import {wanted}: importing {wanted.module} failed, {type(error).__name__}: {message(str(error))[:80]};"
            " it runs where nothing may be written, started or reached, and a script keeps its training under"
            " `if __name__ == '__main__'`"
        ) from error
    for name in wanted.attribute.split("."):
        if not hasattr(found, name):
            classes = ", ".join(_functions_in(import_module(wanted.module))) or "none"
            raise CannotReplay(
                f"--import {wanted}: {wanted.module} has no {wanted.attribute}; its custom functions are {classes}"
            )
        found = getattr(found, name)
    if not (isinstance(found, type) and issubclass(found, torch.autograd.Function)):
        raise CannotReplay(
            f"--import {wanted}: {wanted.attribute} is no torch.autograd.Function, which is what can be run again"
        )
    apply: Callable[..., Any] = found.apply
    return apply


def _functions_in(module: Any) -> list[str]:
    import torch

    return sorted(
        name
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, torch.autograd.Function)
        and value is not torch.autograd.Function
    )
