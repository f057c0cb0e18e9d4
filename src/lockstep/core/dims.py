"""The axes of a tensor that several ranks hold in parts: `b s h[tp] d`, `t[cp:zigzag]`, `h[tp:partial]`.

The notation is that of SGLang's dump comparator: an axis by its name, in brackets the axes of the mesh of ranks that it
is spread over, the outermost first. A mesh axis that no axis names holds copies.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import product

DIMS_FILE = "dims.yaml"
"""The file in a recording or a dump that says what axes mean."""

COPIES = "replicated"
"""Dims of a tensor that every rank holds whole, however many axes it has."""


class How(Enum):
    """How an axis, or the tensor, is spread over one axis of the mesh."""

    BLOCKS = "sharded"
    """One behind the other, in the order of the ranks."""
    ZIGZAG = "zigzag"
    """Of 2n chunks rank i has the i-th from the front and the i-th from the back, as context parallelism deals them."""
    PARTIAL = "partial"
    """Each rank has a summand."""


@dataclass(frozen=True, slots=True)
class Split:
    """One axis of the mesh, and how a tensor's axis is spread over it."""

    over: str
    how: How = How.BLOCKS


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis of a tensor; `splits` with the outermost first."""

    name: str
    splits: tuple[Split, ...] = ()


@dataclass(frozen=True, slots=True)
class Dims:
    """The meaning of a tensor's axes.

    Parameters
    ----------
    axes
        All of them, in order; None for any number of which none is spread.
    text
        As it was written.
    """

    axes: tuple[Axis, ...] | None
    text: str

    @property
    def splits(self) -> tuple[tuple[int, Split], ...]:
        """The axes that are spread, with their numbers, in the order in which parts are put together: the innermost of
        each axis first."""
        return tuple(
            (number, split)
            for number, axis in enumerate(self.axes or ())
            for split in reversed(axis.splits)
        )

    @property
    def over(self) -> frozenset[str]:
        """The axes of the mesh that it names."""
        return frozenset(split.over for _, split in self.splits)


_AXIS = re.compile(r"(\d|[A-Za-z_]\w*|\([A-Za-z_]\w*(?:\*[A-Za-z_]\w*)+\))(?:\[([^\]]+)\])?")
_SPLIT = re.compile(r"\s*([A-Za-z_]\w*)\s*(?::\s*([a-z+]+)\s*)?")
_IN_ORDER = frozenset({How.BLOCKS.value, "natural"})


def dims_of(text: str) -> Dims:
    """Return the meaning of axes that a text states.

    Raises
    ------
    ValueError
        If it says nothing, or not in this notation.

    Examples
    --------
    >>> [axis.name for axis in dims_of("b s[cp:zigzag] h[tp] d").axes]
    ['b', 's', 'h', 'd']
    >>> dims_of("b h[tp:partial]").splits
    ((1, Split(over='tp', how=<How.PARTIAL: 'partial'>)),)
    """
    written, _, said = text.partition("#")
    if written.strip() == COPIES:
        return Dims(None, text)
    axes = [_axis(word, text) for word in re.sub(r",\s+", ",", written).split()]
    if not axes:
        raise ValueError(f"{text!r} names no axis")
    over = [split.over for axis in axes for split in axis.splits]
    names = [one for axis in axes for one in axis.name.strip("()").split("*") if axis.name != "1"]
    copied = [word.partition(":")[0] for word in said.split() if word.endswith(f":{COPIES}")]
    for what in (over, names):
        if len(what) != len(set(what)):
            raise ValueError(
                f"{text!r} names {next(one for one in what if what.count(one) > 1)} twice"
            )
    if both := sorted(set(copied) & set(over)):
        raise ValueError(f"{text!r} says of {both[0]} that it holds parts, and copies")
    return Dims(tuple(axes), text)


def _axis(word: str, text: str) -> Axis:
    found = _AXIS.fullmatch(word)
    if found is None:
        raise ValueError(
            f"{word!r} in {text!r} is no axis; write b, h[tp], (h*d)[tp], t[cp:zigzag] or h[tp:partial]"
        )
    return Axis(
        found[1], tuple(_split(one, word) for one in found[2].split(",")) if found[2] else ()
    )


def _split(text: str, word: str) -> Split:
    found = _SPLIT.fullmatch(text)
    hows = set((found[2] or "").split("+")) - {""} - _IN_ORDER if found else set()
    if found is None or len(hows) > 1 or not hows <= {How.ZIGZAG.value, How.PARTIAL.value}:
        raise ValueError(
            f"{text!r} in {word!r} is no axis of a mesh; write tp, cp:zigzag or tp:partial"
        )
    return Split(found[1], How(hows.pop()) if hows else How.BLOCKS)


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks as a grid: how many stand along each axis, the last one's next to each other.

    >>> Mesh({"dp": 2, "tp": 2}).place(1)
    {'dp': 0, 'tp': 1}
    """

    sizes: Mapping[str, int]

    @property
    def ranks(self) -> int:
        """How many."""
        return math.prod(self.sizes.values())

    def place(self, rank: int) -> dict[str, int]:
        """Where a rank stands."""
        places = list(product(*map(range, self.sizes.values())))
        return dict(zip(self.sizes, places[rank], strict=True))


__all__ = ["COPIES", "Axis", "Dims", "How", "Mesh", "Split", "dims_of"]
