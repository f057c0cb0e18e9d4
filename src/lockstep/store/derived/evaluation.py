"""Evaluating formulas window by window, in one compiled loop where that can be had, else with NumPy: the same bits.

Everything that a file says is checked before it is used: what is read lies inside of what is stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lockstep.core.formulas import Formula, Operation, Stored, View
from lockstep.core.mapped import Pages, release_pages
from lockstep.core.records import PIECE, Array, Pieces
from lockstep.kernels import fused_formulas as kernel
from lockstep.kernels.jit import available
from lockstep.store import recycling
from lockstep.store.derived.derived_tensor import OPERANDS, Derived, Elements, Find, FormulaError
from lockstep.store.pieces import Mapped

WINDOW = PIECE
"""Elements evaluated at a time: half a dozen operands of that many stay in a processor's second cache."""

_MAX_NODES = 256
"""Operations and operands of a formula, with those of the tensors that it is made of; a file that has more is hostile.
What is written has far fewer, see `lockstep.store.derived.search`."""

_ARITHMETIC = frozenset({"F32", "F64"})


def elements_of(derived: Derived, find: Find) -> Array:
    """Evaluate a derived tensor: its elements, shape (count,), in the dtype of its corrections.

    Raises FormulaError if it cannot be evaluated without reading beyond what is stored. Raises LookupError if a tensor
    is missing that it is made of.
    """
    resolver = _Resolver(find)
    found = resolver.elements(derived)
    resolver.release()
    return found


def pieces_of(derived: Derived, find: Find) -> Pieces:
    """Open a derived tensor to be evaluated in pieces: its elements as `elements_of` gives them.

    Raises FormulaError, LookupError as `elements_of`.
    """
    resolver = _Resolver(find)
    node = resolver.corrected(derived)
    try:
        np.empty(
            derived.count, derived.values.dtype
        )  # what is hostile and what is not, by the same measure
    except (MemoryError, ValueError) as error:
        raise FormulaError(f"{derived.count} elements do not fit into memory") from error
    if isinstance(node.formula, _Elements) and not derived.places.size:
        return Mapped(node.formula.array[:])
    return _Evaluated(node, resolver)


def windows_of(derived: Derived, find: Find, max_nodes: int) -> Iterator[tuple[int, Array]]:
    """Evaluate a derived tensor window by window: where each begins, and its elements, valid until the next one.

    Raises FormulaError, LookupError as `elements_of`, before the first window; also if it has more than `max_nodes`
    operations and operands.
    """
    node = _Resolver(find, max_nodes).corrected(derived)
    found = np.empty(min(WINDOW, derived.count), derived.values.dtype)
    fill, _ = _filler(node.formula, found.size, found.dtype)
    for start in range(0, derived.count, WINDOW):
        part = found[: min(WINDOW, derived.count - start)]
        fill(start, part)
        node.correct(part, start)
        yield start, part


# --- what formulas are made of ---------------------------------------------------------------------------------------


class _Node(Protocol):
    def part(self, start: int, stop: int) -> Any:
        """Elements from start to stop, or a number where all are equal; not to be written to."""


@dataclass(frozen=True, slots=True)
class _Number:
    value: Any

    def part(self, start: int, stop: int) -> Any:
        return self.value


@dataclass(frozen=True, slots=True)
class _Elements:
    array: Elements

    def part(self, start: int, stop: int) -> Any:
        return self.array[start:stop]


@dataclass(frozen=True, slots=True)
class _Computed:
    name: str
    operands: tuple[_Node, ...]

    def part(self, start: int, stop: int) -> Any:
        return _FUNCTIONS[self.name](*[operand.part(start, stop) for operand in self.operands])


@dataclass(frozen=True, slots=True)
class _Corrected:
    formula: _Node
    derived: Derived

    def part(self, start: int, stop: int) -> Any:
        found = np.empty(stop - start, self.derived.values.dtype)
        found[:] = self.formula.part(start, stop)
        self.correct(found, start)
        return found

    def correct(self, elements: Array, start: int) -> None:
        """Put the corrections in that lie in `elements`, which begins with element `start`."""
        block, places, values = self.derived.block, self.derived.places, self.derived.values
        if not places.size:
            return
        first, whole = start // block, elements.size // block
        low, high = np.searchsorted(places, (first, first + whole))
        elements[: whole * block].reshape(-1, block)[places[low:high] - first] = values[low:high]
        rest = elements.size - whole * block
        if rest and high < places.size and places[high] == first + whole:
            elements[whole * block :] = values[high, :rest]


def _fused_multiply_add(factor: Any, other: Any, summand: Any) -> Any:
    """`factor * other + summand` in float32: the product is exact in float64, and a tie is one in 2**29 sums."""
    product = np.multiply(factor, other, dtype=np.float64)
    return np.add(product, summand, dtype=np.float64).astype(np.float32)


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "sqrt": np.sqrt,
    "fma": _fused_multiply_add,
}
_CODES = {
    "add": kernel.ADD,
    "sub": kernel.SUB,
    "mul": kernel.MUL,
    "div": kernel.DIV,
    "sqrt": kernel.SQRT,
    "fma": kernel.FMA,
}


# --- resolving -------------------------------------------------------------------------------------------------------


class _Resolver:
    """Finds what one formula is made of, checked against the tensors that its parts stand for."""

    def __init__(self, find: Find, max_nodes: int = _MAX_NODES) -> None:
        self._find = find
        self._max_nodes = max_nodes
        self._count = 0
        self._known: dict[tuple[Stored, str, int], _Node] = {}
        self._read: list[Array] = []
        self._pages: list[Pages] = []

    def release(self) -> None:
        """Release the tensors that were read for a formula; a file's pages would stay in memory otherwise."""
        for array in self._read:
            release_pages(array)

    def release_part(self, start: int, stop: int) -> None:
        """Release the parts that these elements were made of, as `release` does."""
        for pages in self._pages:
            pages.release(start, stop)

    def elements(self, derived: Derived) -> Array:
        """The whole of a derived tensor."""
        node = self.corrected(derived)
        try:
            if isinstance(node.formula, _Number) and not node.formula.value:
                found = np.zeros(derived.count, derived.values.dtype)
                node.correct(found, 0)
                return found
            if isinstance(node.formula, _Elements) and not derived.places.size:
                return node.formula.array[:]
            found = recycling.empty(derived.count, derived.values.dtype)
        except (MemoryError, ValueError) as error:
            raise FormulaError(f"{derived.count} elements do not fit into memory") from error
        fill, at_once = _filler(node.formula, found.size, found.dtype)
        for start in range(0, derived.count, at_once):
            fill(start, found[start : start + at_once])
        node.correct(found, 0)
        return found

    def corrected(self, derived: Derived) -> _Corrected:
        """A derived tensor, its corrections checked."""
        block, places, shape = derived.block, derived.places, derived.values.shape
        if derived.count < 0 or not 1 <= block <= WINDOW or block & (block - 1):
            raise FormulaError(f"blocks of {block} in {derived.count} elements")
        if shape != (places.size, block):
            raise FormulaError(f"{places.size} corrections with values {shape}")
        if places.size and (
            int(places[-1]) >= -(-derived.count // block) or np.any(places[1:] <= places[:-1])
        ):
            raise FormulaError("corrections out of order or beyond the tensor")
        return _Corrected(self._node(derived.formula, derived), derived)

    def _node(self, formula: Formula, owner: Derived) -> _Node:
        if isinstance(formula, Stored):
            return self._operand(formula, owner)
        self._count += 1
        if self._count > self._max_nodes:
            raise FormulaError(f"more than {self._max_nodes} operations")
        match formula:
            case View():
                return _Elements(self._viewed(formula, owner))
            case Operation(name, operands):
                if owner.dtype not in _ARITHMETIC or (name == "fma" and owner.dtype != "F32"):
                    raise FormulaError(f"{name} of {owner.dtype}")
                if len(operands) != OPERANDS[name]:
                    raise FormulaError(f"{name} of {len(operands)} operands")
                return _Computed(name, tuple(self._node(operand, owner) for operand in operands))
            case _:
                if formula and owner.dtype not in _ARITHMETIC:
                    raise FormulaError(f"the number {formula} in {owner.dtype}")
                with np.errstate(over="ignore"):
                    return _Number(owner.values.dtype.type(formula))

    def _operand(self, stored: Stored, owner: Derived) -> _Node:
        key = (stored, owner.dtype, owner.count)
        known = self._known.get(key)
        if known is not None:
            return known
        self._count += 1
        if self._count > self._max_nodes:
            raise FormulaError(f"more than {self._max_nodes} operations")
        found = self._find(stored)
        if isinstance(found, Derived):
            dtype, count = found.dtype, found.count
        else:
            dtype, count = found[0], found[1].size
        if (dtype, count) != (owner.dtype, owner.count):
            raise FormulaError(
                f"{count} elements of {dtype} in a formula for {owner.count} of {owner.dtype}"
            )
        node = self.corrected(found) if isinstance(found, Derived) else self._stored(found[1])
        self._known[key] = node
        return node

    def _stored(self, elements: Elements) -> _Elements:
        if isinstance(elements, np.ndarray):
            self._read_from(elements)
        return _Elements(elements)

    def _read_from(self, array: Array) -> None:
        self._read.append(array)
        self._pages.append(Pages(array))

    def _viewed(self, view: View, owner: Derived) -> Array:
        found = self._find(view.base)
        if isinstance(found, Derived):
            dtype, array = found.dtype, self.elements(found)
        else:
            dtype, array = found[0], found[1][:]
        extents, strides = view.extents, view.strides
        if dtype != owner.dtype or math.prod(extents) != owner.count:
            raise FormulaError(f"a view {extents} of {dtype} for {owner.count} of {owner.dtype}")
        if len(extents) != len(strides) or min((*extents, *strides, view.offset)) < 0:
            raise FormulaError(f"a view of extents {extents} and strides {strides}")
        if owner.count == 0:
            return array[:0]
        steps = zip(extents, strides, strict=True)
        last = view.offset + sum((extent - 1) * stride for extent, stride in steps)
        if last >= array.size:
            raise FormulaError(f"a view up to element {last} of {array.size}")
        try:
            seen = np.lib.stride_tricks.as_strided(
                array[view.offset :],
                extents,
                [stride * array.itemsize for stride in strides],
                writeable=False,
            )
            elements = seen.reshape(-1)
        except (MemoryError, ValueError, OverflowError) as error:
            raise FormulaError(f"a view of extents {extents} ({error})") from error
        release_pages(array)
        self._read_from(elements)  # where it is no copy
        return elements


class _Evaluated:
    """A derived tensor as pieces."""

    is_made = True

    def __init__(self, node: _Corrected, resolver: _Resolver) -> None:
        self._node, self._resolver = node, resolver
        self.size, self.dtype = node.derived.count, node.derived.values.dtype
        self.operand = _operand_of(node) if available() else None

    @cached_property
    def _filler(self) -> tuple[_Fill, int]:
        return _filler(self._node.formula, self.size, self.dtype)

    def part(self, start: int, stop: int, out: Array | None = None) -> Array:
        found = np.empty(stop - start, self.dtype) if out is None else out[: stop - start]
        fill, at_once = self._filler
        for first in range(0, found.size, at_once):
            fill(start + first, found[first : first + at_once])
        self._node.correct(found, start)
        return found

    def release(self, start: int, stop: int) -> None:
        self._resolver.release_part(start, stop)


# --- running ---------------------------------------------------------------------------------------------------------

_Fill = Callable[[int, Array], None]


def _filler(node: _Node, count: int, dtype: np.dtype[Any]) -> tuple[_Fill, int]:
    """What fills a window of `count` elements, given where it begins; and how many it takes at once."""
    if available() and dtype == np.float32 and isinstance(node, _Computed):
        program = _Program(node)
        if program.can_run:
            return program.fill, max(count, 1) if program.in_memory else WINDOW

    def fill(start: int, window: Array) -> None:
        with np.errstate(all="ignore"):
            window[:] = node.part(start, start + window.size)

    return fill, WINDOW


class _Program:
    """A formula as the lines of `kernels.formulas.run`: inputs have the first numbers, then numbers, then results."""

    def __init__(self, node: _Computed) -> None:
        self.inputs: list[_Node] = []
        self.numbers: list[Any] = []
        self._lines: list[tuple[int, tuple[str, int], tuple[str, int], tuple[str, int]]] = []
        self._places: dict[int, tuple[str, int]] = {}
        self._place(node)
        first = {
            "input": 0,
            "number": len(self.inputs),
            "line": len(self.inputs) + len(self.numbers),
        }
        self.lines = np.array(
            [
                (code, *(first[kind] + number for kind, number in operands), first["line"] + line)
                for line, (code, *operands) in enumerate(self._lines)
            ],
            np.uint64,
        )
        # One of numbers alone is the same everywhere, and is left to NumPy.
        self.can_run = 0 < len(self.inputs) <= kernel.INPUTS
        self.in_memory = all(map(_is_in_memory, self.inputs))
        self._rows = len(self.inputs) + len(self.numbers) + len(self._lines)

    def fill(self, start: int, window: npt.NDArray[np.float32]) -> None:
        """Evaluate one window; several threads may do so at a time."""
        table = np.empty((self._rows, kernel.BLOCK), np.float32)
        for row, number in enumerate(self.numbers, start=len(self.inputs)):
            table[row] = number
        stop = start + window.size
        parts = [node.part(start, stop) for node in self.inputs]
        if not self.in_memory:
            parts = [_aligned(part) for part in parts]
        parts += parts[:1] * (kernel.INPUTS - len(parts))
        kernel.run(self.lines, tuple(parts), len(self.inputs), table, window)

    def _place(self, node: _Node) -> tuple[str, int]:
        if isinstance(node, _Corrected) and not node.derived.places.size:
            node = node.formula
        known = self._places.get(id(node))
        if known is None:
            known = self._places[id(node)] = self._new_place(node)
        return known

    def _new_place(self, node: _Node) -> tuple[str, int]:
        if isinstance(node, _Number):
            self.numbers.append(node.value)
            return "number", len(self.numbers) - 1
        if isinstance(node, _Computed):
            operands = [self._place(operand) for operand in node.operands]
            operands += operands[:1] * (3 - len(operands))
            self._lines.append((_CODES[node.name], operands[0], operands[1], operands[2]))
            return "line", len(self._lines) - 1
        self.inputs.append(node)
        return "input", len(self.inputs) - 1


def _operand_of(node: _Corrected) -> kernel.Operand | None:
    """A float32 tensor as what compiled code can make block by block; None where that takes more than it knows."""
    if node.derived.values.dtype != np.float32:
        return None
    inputs, program, numbers = [node.formula], kernel.NO_LINES, kernel.NO_NUMBERS
    if isinstance(node.formula, _Computed):
        compiled = _Program(node.formula)
        inputs, program = compiled.inputs, compiled.lines
        numbers = np.array(compiled.numbers, np.float32)
    if len(inputs) not in (1, 2):
        return None
    corrected = [(kernel.RESULT, node.derived)] if node.derived.places.size else []
    sources, filled = [], []
    for number, one in enumerate(inputs):
        if isinstance(one, _Corrected):
            corrected.append((number, one.derived))
            one = one.formula
        if isinstance(one, _Number):
            filled.append(float(one.value))
            sources.append(kernel.NO_NUMBERS)
        elif isinstance(one, _Elements) and _is_in_memory(one):
            sources.append(one.array[:])
        else:
            return None
    if len(corrected) > 1 or len(filled) > 1:
        return None
    found = kernel.Operand(
        program, numbers, len(inputs), sources[0], sources[-1], filled[0] if filled else 0.0
    )
    return _with_corrections(found, *corrected[0]) if corrected else found


def _with_corrections(
    operand: kernel.Operand, which: int, derived: Derived
) -> kernel.Operand | None:
    values = derived.values
    if derived.places.size > _MOST_PLACES or not (
        values.flags.aligned and values.flags.c_contiguous
    ):
        return None
    return operand._replace(corrected=which, places=derived.places.astype(np.uint64), values=values)


_MOST_PLACES = 1 << 18
"""Corrections whose places are kept in memory, 2 MB."""


def _is_in_memory(node: _Node) -> bool:
    """Whether the whole of an input is there already, or in a memory map."""
    return (
        isinstance(node, _Elements)
        and isinstance(node.array, np.ndarray)
        and node.array.flags.aligned
        and node.array.flags.c_contiguous
        and node.array.dtype == np.float32
    )


def _aligned(part: Array) -> Array:
    flags = part.flags
    if part.dtype == np.float32 and flags.c_contiguous and flags.aligned:
        return part
    return np.require(part, np.float32, ["C", "A"])
