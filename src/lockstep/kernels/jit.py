"""Compiling the loops that have to run at memory speed, with Numba (https://numba.pydata.org).

The machine code is kept beside the source, or in the user's cache where that is read-only, so that only the first
process after an installation compiles. Where Numba cannot be used (a NumPy newer than it knows, `NUMBA_DISABLE_JIT`)
`available` is false, and callers take their general path: slower, the same numbers up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, TypeVar, cast

Function = TypeVar("Function", bound=Callable[..., Any])


@cache
def available() -> bool:
    """Whether loops can be compiled here; loads Numba, which takes a quarter of a second."""
    try:
        numba = import_module("numba")
    except ImportError:
        return False
    return not numba.config.DISABLE_JIT


_EXACT: dict[str, Any] = {
    "nogil": True,
    "error_model": "numpy",  # a division by zero gives infinity, as in NumPy
}
# Sums may be reordered to use vector registers; NaN and infinities keep their meaning.
_OPTIONS = _EXACT | {"fastmath": {"reassoc", "contract", "arcp", "nsz"}}


@dataclass(frozen=True, slots=True)
class _Part:
    """A function that waits to be compiled into others."""

    function: Callable[..., Any]
    options: dict[str, Any]

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments)


def part(function: Function) -> Function:
    """A loop that the compiled functions of the same file are made of.

    In another file its change would not be noticed: what is kept is tied to one file each.
    """
    return cast(Function, _Part(function, _OPTIONS))


def exactly_part(function: Function) -> Function:
    """As `part`, for `exactly`."""
    return cast(Function, _Part(function, _EXACT))


def compiled(signature: str) -> Callable[[Function], Function]:
    """Compile a function for one signature in Numba's notation, the first time it is called.

    It takes and returns contiguous arrays and numbers, and lets other threads run.

    Examples
    --------
    >>> @compiled("float64(float64[::1])")
    ... def total(values):
    ...     result = 0.0
    ...     for position in range(values.size):
    ...         result += values[position]
    ...     return result
    """
    return _decorator(signature, _OPTIONS)


def exactly(signature: str) -> Callable[[Function], Function]:
    """As `compiled`, with every operation rounded as it is written."""
    return _decorator(signature, _EXACT)


def _decorator(signature: str, options: dict[str, Any]) -> Callable[[Function], Function]:
    def decorate(function: Function) -> Function:
        @cache
        def ready() -> Callable[..., Any]:
            return _compile(function, signature, options) if available() else function

        def call(*arguments: Any) -> Any:
            return ready()(*arguments)

        call.__doc__, call.__name__ = function.__doc__, function.__name__
        return cast(Function, call)

    return decorate


def _compile(
    function: Callable[..., Any], signature: str, options: dict[str, Any]
) -> Callable[..., Any]:
    import numba  # late: what measures no tensor should start without it

    names = function.__globals__
    for name, value in list(names.items()):
        if isinstance(value, _Part):  # Numba finds by its name what a function calls
            names[name] = numba.njit(**value.options)(value.function)
    try:
        dispatcher = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # no place to keep it: neither beside the source nor in a home
        dispatcher = numba.njit(**options)(function)
    with suppress(OSError):  # a full disk: compiled all the same, but not kept
        dispatcher.compile(signature)
    dispatcher.disable_compile()
    return cast(Callable[..., Any], dispatcher)
