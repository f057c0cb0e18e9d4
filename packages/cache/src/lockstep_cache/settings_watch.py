"""Tell quickly, before each sample, whether a setting of a data set has changed.

What is seen: which values attributes, classes, variables around functions and short collections have. What lies in
arrays, in long lists and in many short ones is looked at when an epoch begins.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from lockstep_cache.plain_words import PLAIN

_SHORT = 64
_MOST_ITEMS = 1024
"""Of collections; one lookup more of each before each sample."""

_values = operator.methodcaller("values")


class SettingsWatch:
    """Remembers values by what holds them.

    ignored: Names that do not count.
    """

    def __init__(self, ignored: frozenset[str]) -> None:
        self._ignored = ignored
        self._mappings: list[Mapping[Any, Any]] = []
        self._filtered: list[Mapping[str, Any]] = []
        self._sequences: list[Any] = []
        self._long: list[list[Any]] = []
        self._cells: list[Any] = []
        self._names: dict[int, tuple[dict[str, Any], set[str]]] = {}
        self._tensors: list[Any] = []
        self._environment: list[str] = []
        self._left = _MOST_ITEMS

    def attributes(self, held: Mapping[str, Any]) -> None:
        """Of an object or a class."""
        (self._filtered if self._ignored else self._mappings).append(held)

    def collection(self, held: Any) -> None:
        """A list, dict or the like: all of a short one, of a long list some of it."""
        self._left -= 1 + min(len(held), _SHORT)
        if self._left < 0 or isinstance(held, (tuple, frozenset)):
            return
        if len(held) <= _SHORT:
            (self._mappings if hasattr(held, "values") else self._sequences).append(held)
        elif isinstance(held, list):
            self._long.append(held)

    def cells(self, cells: Iterable[Any]) -> None:
        """Variables of functions around a function."""
        self._cells += cells

    def names(self, held: dict[str, Any], names: Iterable[str]) -> None:
        """Variables of a module."""
        self._names.setdefault(id(held), (held, set()))[1].update(names)

    def environment(self, names: Iterable[str]) -> None:
        """Variables of the environment."""
        self._environment += names

    def tensor(self, tensor: Any) -> None:
        """One of torch's, which counts how often it was written to."""
        if not tensor.is_inference():
            self._tensors.append(tensor)

    def begin(self) -> None:
        """From now on is "before"."""
        self._getters = [
            (operator.itemgetter(*names, *names), held) for held, names in self._names.values()
        ]  # each name twice: of a single one it would give no tuple
        self._then, self._counted = self._now(), self._counts()

    def have_changed(self) -> bool:
        """Whether something may be another than when `begin` was called."""
        try:
            now = self._now()
            return self._counts() != self._counted or not (
                all(map(operator.is_, now, self._then)) or all(map(_is_equal, now, self._then))
            )
        except (KeyError, RuntimeError, ValueError):  # a name is gone, or somebody writes just now
            return True

    def _now(self) -> list[Any]:
        ignored = self._ignored
        return list(
            chain(
                chain.from_iterable(self._mappings),
                chain.from_iterable(map(_values, self._mappings)),
                [
                    one
                    for held in self._filtered
                    for name, one in held.items()
                    if name not in ignored
                ],
                chain.from_iterable(self._sequences),
                chain.from_iterable([one[:: max(len(one) // 8, 1)] for one in self._long]),
                [one.cell_contents for one in self._cells],
                chain.from_iterable([get(held) for get, held in self._getters]),
                map(os.environ.get, self._environment),
            )
        )

    def _counts(self) -> list[int]:
        sized = chain(self._mappings, self._sequences, self._long)
        named = [len(held.keys() - self._ignored) for held in self._filtered]
        return [*map(len, sized), *named, *[one._version for one in self._tensors]]


def _is_equal(one: Any, other: Any) -> bool:
    """The same in words: 1 is neither 1.0 nor True, and 0.0 is not -0.0."""
    if one is other:
        return True
    return type(one) in PLAIN and type(one) is type(other) and repr(one) == repr(other)
