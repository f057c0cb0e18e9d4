"""The known facts about a graph's values: the place of their batch axis, and their shape arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from lockstep_serve.independence.extents import INSTANCES, Extent
from lockstep_serve.servable import Array

Shape = tuple[Extent, ...]
ONE = Extent(1)


class Mixes(Exception):  # noqa: N818 -- it is a finding
    """An operator brings instances together; the text says how, after "it"."""

    words = "mixes the batch"

    def told(self) -> str:
        """In words, after the operator's name."""
        return f"{self.words}: it {self}"


class NotListed(Mixes):
    """An operator may bring instances together: nobody has looked at it yet."""

    words = "may mix the batch"


@dataclass(frozen=True, slots=True)
class Place:
    """Which axis counts instances: element `(o * instances + i) * inner + n` of it is of instance i.

    axis: Its number.
    outer, inner: How many blocks of all instances it has, and how many elements each instance has in a block; 1 and 1
        where it counts instances alone. `outer` is None where all elements along the axis are equal.
    """

    axis: int
    outer: Extent | None = ONE
    inner: Extent = ONE

    def at(self, axis: int) -> Place:
        """The same in another axis."""
        return replace(self, axis=axis)


class Content(Enum):
    """The known numbers of a value."""

    NUMBERS = "numbers"
    ROW_NUMBERS = "row numbers"
    """Instance i has i times a `stride`."""
    WITHIN_ROW = "within the row"
    """Instance i has numbers from i times a `stride` to below the next instance's."""
    ROW_FIRST = "row number first"
    """The last axis is an index; its first element is the instance's own number."""


@dataclass(frozen=True, slots=True)
class Value:
    """One value of a graph.

    shape: Its extents; None where not even their number is known.
    place: Its batch axis; None where it is the same in every batch.
    numbers: Small whole numbers that are known: an array of `Extent`. These may depend on the number of instances.
    content, stride: Whether it holds numbers of instances, as an index by which each finds its own.
    below: Its numbers are whole, and from 0 to below this; None where that is not known.
    mixed: The node that brought instances together on the way here, and how; empty where none did.
    """

    shape: Shape | None
    place: Place | None = None
    numbers: Array | None = None
    content: Content = Content.NUMBERS
    stride: Extent = ONE
    below: Extent | None = None
    mixed: str = ""

    @property
    def rank(self) -> int:
        """How many axes it has. Raises Mixes if that is not known."""
        if self.shape is None:
            raise Mixes("has an input of which the number of axes is not known")
        return len(self.shape)

    @property
    def extents(self) -> Shape:
        """Its shape, where it has to be known."""
        return (self.shape or ())[: self.rank]

    @property
    def counts_instances(self) -> bool:
        """Whether its known numbers depend on how many instances there are."""
        return self.numbers is not None and any(one.of_instances for one in self.numbers.ravel())


@dataclass(frozen=True, slots=True)
class Call:
    """An operator with its operands, as the rules see it in graphs of either kind.

    tensors: Operands that are data; None where one is left out.
    options: By name: attributes, and operands that say how (axes, sizes), each as Python has it or as a `Value`.
    shapes: Of its results, where they are known.
    """

    tensors: Sequence[Value | None]
    options: Mapping[str, Any] = field(default_factory=dict)
    shapes: Sequence[Shape | None] = ()

    @property
    def first(self) -> Value:
        """The first operand."""
        found = self.tensors[0]
        assert found is not None
        return found

    @property
    def given(self) -> list[Value]:
        """The operands that are there."""
        return [one for one in self.tensors if one is not None]

    @property
    def result(self) -> Shape:
        """The shape of the first result. Raises Mixes if it is not known."""
        if not self.shapes or self.shapes[0] is None:
            raise Mixes("has a result whose shape is not known")
        return self.shapes[0]

    def whole(self, name: str, default: int | None = None) -> int:
        """A whole number among the options. Raises Mixes if it is not known."""
        found = self.several(name, None if default is None else [default])
        if len(found) != 1:
            raise Mixes(f"has a {name} that is not known")
        return found[0]

    def several(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Whole numbers among the options. Raises Mixes if they are not known."""
        found = self.options.get(name)
        if found is None:
            found = default
        if isinstance(found, Value):
            found = None if found.numbers is None else [*found.numbers.ravel()]
        if found is None:
            raise Mixes(f"has {name} that are not known")
        plain = [*found] if isinstance(found, Sequence) else [found]
        if any(isinstance(one, Extent) and one.symbols for one in plain):
            raise Mixes(f"has {name} that depend on the shape of a request")
        return [one.number if isinstance(one, Extent) else int(one) for one in plain]


Rule = Callable[[Call], "Sequence[Place | Mixes | None]"]
"""Gives the places of an operator's results: one for all of them, or one for each. Raises `Mixes`."""


def numbers_alone(value: Value) -> str:
    """Why a value is no operand for arithmetic; empty where it is."""
    if value.counts_instances:
        return "computes with the number of instances"
    if value.content is not Content.NUMBERS:
        return "computes with the place of an instance in the batch"
    return ""


def placed(shape: Shape | None, place: Place | None) -> Value:
    """A value with its batch axis.

    Raises Mixes if another axis depends on the number of instances too, or its own does otherwise.
    """
    if place is None:
        if shape is not None and any(one.of_instances for one in shape):
            raise Mixes("gives a shape that depends on the number of instances")
        return Value(shape)
    if shape is None:
        raise Mixes("has a result whose shape is not known")
    known = shape[place.axis]
    if known == INSTANCES:
        place = place if place.outer is not None else Place(place.axis)
    own = known if place.outer is None else place.outer * INSTANCES * place.inner
    if known != own and (known.of_instances or not known.symbols):
        raise Mixes(f"gives {known} where its instances are {own}")
    fixed = (*shape[: place.axis], own, *shape[place.axis + 1 :])
    if own.without_instances() is None or any(
        one.of_instances for at, one in enumerate(fixed) if at != place.axis
    ):
        raise Mixes("gives a shape with the number of instances in it twice, or not as a factor")
    return Value(fixed, place)
