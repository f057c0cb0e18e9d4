"""Extents of axes as products of numbers and symbols, one of which is the number of instances."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

_INSTANCES = "\N{GREEK SMALL LETTER BETA}"
"""Stands for the number of instances, and in the name of every symbol that depends on it."""


@dataclass(frozen=True, slots=True)
class Extent:
    """A number times symbols, as in `12 * instances * sequence`.

    What is no such product, a sum say, is a symbol of its own by its text: two of one text are equal, and of two others
    nothing is known.
    """

    number: int
    symbols: tuple[str, ...] = ()

    @property
    def of_instances(self) -> bool:
        """Whether it depends on the number of instances."""
        return any(_INSTANCES in one for one in self.symbols)

    @property
    def is_one(self) -> bool:
        """Whether it is the number 1."""
        return self.number == 1 and not self.symbols

    def __mul__(self, other: Extent) -> Extent:
        number = self.number * other.number
        return Extent(number, tuple(sorted(self.symbols + other.symbols)) if number else ())

    def __add__(self, other: Extent) -> Extent:
        if self.symbols == other.symbols:
            return self._of(self.number + other.number)
        if not self.number or not other.number:
            return other if not self.number else self
        return symbol("({}+{})", *sorted((self, other), key=str))

    def __neg__(self) -> Extent:
        return Extent(-self.number, self.symbols)

    def __sub__(self, other: Extent) -> Extent:
        return self + -other

    def __floordiv__(self, other: Extent) -> Extent:
        """The quotient; a symbol where it is no product."""
        whole = self.divided_by(other)
        plain = not self.symbols and not other.symbols and self.number >= 0
        if whole is None and plain and other.number > 0:
            return Extent(self.number // other.number)
        return symbol("({}//{})", self, other) if whole is None else whole

    def __mod__(self, other: Extent) -> Extent:
        if self.divided_by(other) is not None:
            return Extent(0)
        if not self.symbols and not other.symbols and other.number > 0:
            return Extent(self.number % other.number)
        return symbol("({}%{})", self, other)

    def divided_by(self, other: Extent) -> Extent | None:
        """The quotient where it is a product again, else None."""
        left = [*self.symbols]
        for one in other.symbols:
            if one not in left:
                return None
            left.remove(one)
        if not other.number or self.number % other.number:
            return None
        return Extent(self.number // other.number, tuple(left))

    def without_instances(self) -> Extent | None:
        """Return the factor of the number of instances; None if this is no such product."""
        rest = self.divided_by(INSTANCES)
        return None if rest is None or rest.of_instances else rest

    def _of(self, number: int) -> Extent:
        return Extent(number, self.symbols if number else ())

    def __str__(self) -> str:
        return "*".join([str(self.number), *self.symbols])


def symbol(form: str, *parts: Extent) -> Extent:
    """An extent of which only its text is known."""
    return Extent(1, (form.format(*parts),))


def named(name: str) -> Extent:
    """A free extent that does not depend on the number of instances."""
    return Extent(1, (name.replace(_INSTANCES, "b"),))


def dependent(name: str) -> Extent:
    """An extent that depends on the number of instances, or on what they hold."""
    return Extent(1, (f"{_INSTANCES}.{name}",))


def product(extents: Iterable[Extent]) -> Extent:
    """All of them multiplied."""
    return reduce(Extent.__mul__, extents, Extent(1))


INSTANCES = Extent(1, (_INSTANCES,))
"""How many instances a batch has."""
