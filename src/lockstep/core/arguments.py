"""Check arguments from other people's code: take them as meant, or refuse them in one sentence."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from pathlib import Path

from lockstep.core.errors import UsageError

LEAST_MEMORY_BYTES = 1 << 20
"""Less memory than this does not do."""
MOST_SEED = 2**32 - 1
"""The largest seed that NumPy takes."""


def path_of(name: str, value: object) -> Path:
    """A path that is not empty.

    Raises
    ------
    UsageError
        If it is something else.
    """
    if not isinstance(value, (str, os.PathLike)):
        raise UsageError(f"{name} is {_what(value)}; give a path")
    path = os.fspath(value)
    if not isinstance(path, str) or not path:
        raise UsageError(f"{name} is {path!r}; give a path, or . for the current folder")
    return Path(path)


def integer_of(name: str, value: object, *, least: int, most: int | None = None) -> int:
    """A whole number within bounds; True is none.

    Raises
    ------
    UsageError
        If it is something else.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UsageError(f"{name} is {_what(value)}; give a whole number")
    number = int(value)
    if number < least or (most is not None and number > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{name} is {number}; give a whole number {bounds}")
    return number


def choice_of(name: str, value: object, choices: Sequence[str]) -> str:
    """One of several words.

    Raises
    ------
    UsageError
        If it is something else.

    Examples
    --------
    >>> choice_of("rule", "fixed", ("error-model", "fixed"))
    'fixed'
    """
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{name} {value!r}: choose one of {', '.join(choices)}")
    return value


def steps_of(name: str, steps: Collection[int] | None) -> frozenset[int] | None:
    """Numbers of steps, or None where all are meant.

    Raises
    ------
    UsageError
        If it is something else.
    """
    if steps is None:
        return None
    if isinstance(steps, (str, bytes)) or not isinstance(steps, Iterable):
        raise UsageError(f"{name} is {steps!r:.40}; give numbers of steps, as in {{0, 1}}")
    return frozenset(integer_of(name, step, least=0) for step in steps)


def patterns_of(name: str, value: object) -> list[str]:
    """Shell patterns; a single string is one of them, not its letters.

    Raises
    ------
    UsageError
        If it is something else.
    """
    given = value if isinstance(value, Iterable) and not isinstance(value, str) else [value]
    patterns: list[str] = []
    for pattern in given:
        if not isinstance(pattern, str) or not pattern:
            raise UsageError(f"{name} has {_what(pattern)}; give patterns, as in ['encoder.*']")
        patterns.append(pattern)
    return patterns


def truth_of(name: str, value: object) -> bool:
    """True or False.

    Raises
    ------
    UsageError
        If it is something else.
    """
    if not isinstance(value, bool):
        raise UsageError(f"{name} is {_what(value)}; give True or False")
    return value


def _what(value: object) -> str:
    """A value that is not what it should be, in words."""
    return "None" if value is None else f"{value!r:.40}, of type {type(value).__name__}"
