"""The parts of a formula for a tensor: stored tensors, views of them, and operations on them.

Capture guesses in these words, the store keeps in them what it has shown to the last bit
(`lockstep.store.derived.search`), and replay reads from them that two runs computed the same.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of the same rank by its shard and its number there."""

    shard: int
    number: int


@dataclass(frozen=True, slots=True)
class View:
    """Elements of a stored tensor in a different order: as `torch.Tensor.as_strided`, all counted in elements."""

    base: Stored
    offset: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation that IEEE 754 defines to the last bit, by its name in a recording, element by element."""

    name: str
    operands: tuple[Formula, ...]


Formula = float | Stored | View | Operation
"""A number stands for itself in the precision of the tensor."""
