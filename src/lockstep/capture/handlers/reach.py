"""Which modules a plain function may call: those that it holds, closes over, names or is given."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch.nn import Module

_MAX_DEPTH = 4


def modules_reached(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[Module, ...]:
    """Modules within reach of a call of a function, each once; parts of another one may be among them.

    Looked for are the object of a method, closures, defaults, globals that the code names, the
    arguments, and the same of functions met on the way.
    """
    found: dict[int, Module] = {}
    seen: set[int] = set()
    for value in (function, *args, *kwargs.values()):
        for module in _modules_in(value, seen, _MAX_DEPTH):
            found.setdefault(id(module), module)
    return tuple(found.values())


def compiled_name(function: Callable[..., Any]) -> str:
    """Return a compiled function's name as one recorded operator."""
    return f"torch.compile({getattr(function, '__qualname__', type(function).__name__)})"


def _modules_in(value: Any, seen: set[int], depth: int) -> Iterator[Module]:
    if isinstance(value, Module):
        yield value
    elif depth and id(value) not in seen:
        seen.add(id(value))
        for part in _parts_of(value):
            yield from _modules_in(part, seen, depth - 1)


def _parts_of(value: Any) -> Iterator[Any]:
    if isinstance(value, MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, FunctionType):
        yield from (cell.cell_contents for cell in value.__closure__ or () if not _is_empty(cell))
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        yield from (
            value.__globals__[name]
            for name in _names_in(value.__code__)
            if name in value.__globals__
        )
    elif isinstance(value, (tuple, list)):
        yield from value
    elif isinstance(value, Mapping):
        yield from value.values()
    elif type(value).__module__ not in _WITHOUT_MODULES and hasattr(value, "__dict__"):
        yield from (part for part in vars(value).values() if isinstance(part, Module))


_WITHOUT_MODULES = frozenset({"builtins", "torch", "torch.nn.parameter", "numpy"})


def _names_in(code: CodeType) -> Iterator[str]:
    """Names that code, and functions made within it, look up."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def _is_empty(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - raises where nothing was put into it yet
    except ValueError:
        return True
    return False
