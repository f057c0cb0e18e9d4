"""Finding the form in which a tensor takes the least room, and proving that it loses nothing."""

from __future__ import annotations

import numpy as np

from lockstep.core.formulas import Formula
from lockstep.core.records import Array
from lockstep.store.derived.derived_tensor import Derived, Find, FormulaError
from lockstep.store.derived.evaluation import windows_of

_MIN_ELEMENTS = 1024
"""Smaller tensors are stored as they are."""

_MAX_NODES = 16
"""Operations and operands of a formula. It bounds what reading costs, and ends the chain where each step's optimizer
state follows from that of the step before: after two or three steps it is stored as it is. A moment of Adam has 6."""

_MAX_CORRECTED = 1 / 16
"""Share of elements that a formula may miss; each costs twice its bytes."""

ZERO_BLOCK = 256
"""Elements of the blocks in which a tensor of many zeros is kept."""

_MAX_NON_ZERO_BLOCKS = 3 / 4
"""Share of blocks that are not zero, beyond which a tensor is stored as it is."""


def derived(
    number: int, dtype: str, elements: Array, formula: Formula, find: Find
) -> Derived | None:
    """Keep a tensor as a formula, where that gives its bits but for a few.

    Parameters
    ----------
    number, dtype
        Its number in its shard, and its element type by safetensors name.
    elements
        Its elements, shape (count,), without NaN, whose bits no standard fixes.
    formula
        What may give them.
    find
        Finds the tensors in it.

    Returns
    -------
    Derived or None
        None where it has to be stored as it is.
    """
    if elements.size < _MIN_ELEMENTS:
        return None
    bits = _bits_of(elements)
    if bits is None:
        return None
    nothing = np.empty(0, "<u4")
    trial = Derived(number, dtype, elements.size, formula, 1, nothing, elements[:0].reshape(0, 1))
    missed: list[Array] = []
    budget = int(elements.size * _MAX_CORRECTED)
    try:
        for start, part in windows_of(trial, find, _MAX_NODES):
            wrong = np.flatnonzero(part.view(bits.dtype) != bits[start : start + part.size])
            budget -= wrong.size
            if wrong.size > part.size // 2 or budget < 0:
                return None
            missed.append(wrong + start)
    except (FormulaError, LookupError):
        return None
    places = np.concatenate(missed)
    return Derived(
        number, dtype, elements.size, formula, 1, _narrow(places), elements[places].reshape(-1, 1)
    )


def mostly_zero(number: int, dtype: str, elements: Array) -> Derived | None:
    """Keep only those blocks of a tensor that are not zero bits throughout; None where these are most of it."""
    if elements.size < _MIN_ELEMENTS:
        return None
    bits = _bits_of(elements)
    if bits is None:
        return None
    whole = elements.size // ZERO_BLOCK
    used = bits[: whole * ZERO_BLOCK].reshape(-1, ZERO_BLOCK).any(axis=1)
    places = np.flatnonzero(used)
    rest = elements[whole * ZERO_BLOCK :]
    if places.size > whole * _MAX_NON_ZERO_BLOCKS:
        return None
    values = elements[: whole * ZERO_BLOCK].reshape(-1, ZERO_BLOCK)[places]
    if rest.size:
        last = np.zeros((1, ZERO_BLOCK), elements.dtype)
        last[0, : rest.size] = rest
        places, values = np.append(places, whole), np.concatenate([values, last])
    return Derived(number, dtype, elements.size, 0.0, ZERO_BLOCK, _narrow(places), values)


def _bits_of(elements: Array) -> Array | None:
    """The same elements as integers; None where they are wider than these."""
    width = elements.dtype.itemsize
    return elements.view(f"<u{width}") if width in (1, 2, 4, 8) else None


def _narrow(places: Array) -> Array:
    return places.astype("<u4" if not places.size or places[-1] < 2**32 else "<u8")
