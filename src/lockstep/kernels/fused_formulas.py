"""Formulas and distances over arrays, run block by block with every result in a processor's first cache.

Each operation rounds as IEEE 754 has it, so the bits are those that NumPy gives; see `lockstep.store.derived.search`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.kernels.jit import exactly, exactly_part, inlined

BLOCK = 1024
"""Elements that one operation takes at a time: 4 kB."""

INPUTS = 6
"""How many inputs a program can have."""

ADD, SUB, MUL, DIV, SQRT, FMA = range(6)
_INPUT = "Array(float32, 1, 'C', True, aligned=True)"
OPERAND = (
    f"Tuple((uint64[:, ::1], float32[::1], uint64, {_INPUT}, {_INPUT}, float32, uint64,"
    " Array(uint64, 1, 'C', True, aligned=True), Array(float32, 2, 'C', True, aligned=True)))"
)
"""An `Operand` in Numba's notation."""

FIRST, SECOND, RESULT, NONE = range(4)

NO_LINES, NO_NUMBERS = np.empty((0, 5), np.uint64), np.empty(0, np.float32)
NO_PLACES, NO_VALUES = np.empty(0, np.uint64), np.empty((0, 1), np.float32)


class Operand(NamedTuple):
    """Float32 elements that compiled code makes block by block: a formula over one or two inputs, or an input alone.

    program: As for `run`, where inputs come first, then numbers; of shape (0, 5) if the first input is all there is.
    numbers: What the program calls numbers, float32.
    used: 1 or 2 inputs.
    first, second: The inputs, float32 of shape (count,); an empty one stands for elements that are all `filled`.
    filled: A number.
    corrected: What has corrections: FIRST, SECOND, RESULT or NONE.
    places, values: The corrections: blocks in ascending order, uint64 of shape (n,), and their elements, float32, (n,
        block).
    """

    program: npt.NDArray[np.uint64]
    numbers: npt.NDArray[np.float32]
    used: int
    first: npt.NDArray[np.float32]
    second: npt.NDArray[np.float32]
    filled: float
    corrected: int = NONE
    places: npt.NDArray[np.uint64] = NO_PLACES
    values: npt.NDArray[np.float32] = NO_VALUES


@exactly_part
def _operate(
    code: Any, table: Any, first: Any, second: Any, third: Any, target: Any, count: Any
) -> None:
    """One operation on rows of the table; rows rather than slices of it, which would cost more than the work."""
    if code == ADD:
        for place in range(count):
            table[target, place] = table[first, place] + table[second, place]
    elif code == SUB:
        for place in range(count):
            table[target, place] = table[first, place] - table[second, place]
    elif code == MUL:
        for place in range(count):
            table[target, place] = table[first, place] * table[second, place]
    elif code == DIV:
        for place in range(count):
            table[target, place] = table[first, place] / table[second, place]
    elif code == SQRT:
        for place in range(count):
            table[target, place] = math.sqrt(table[first, place])
    else:
        for place in range(count):
            product = np.float64(table[first, place]) * np.float64(table[second, place])
            table[target, place] = np.float32(product + np.float64(table[third, place]))


@exactly_part
def _copy(source: Any, start: Any, table: Any, row: Any, count: Any) -> None:
    for place in range(count):
        table[row, place] = source[start + place]


@exactly_part
def _correct(places: Any, values: Any, start: Any, table: Any, row: Any, count: Any) -> None:
    """Put corrections into a row that holds `count` elements from `start` on."""
    one, block = np.uint64(1), np.uint64(values.shape[1])
    low, high = np.uint64(0), np.uint64(places.size)
    while low < high:  # the first block that does not end before `start`
        middle = (low + high) >> one
        if (places[middle] + one) * block <= start:
            low = middle + one
        else:
            high = middle
    while low < np.uint64(places.size) and places[low] * block < start + count:
        first = places[low] * block
        for place in range(max(first, start), min(first + block, start + count)):
            table[row, place - start] = values[low, place - first]
        low += one


@exactly_part
def _fill(number: Any, table: Any, row: Any, count: Any) -> None:
    for place in range(count):
        table[row, place] = number


@exactly_part
def new_table(program: Any, numbers: Any, used: Any) -> Any:
    """Room for `evaluate`."""
    table = np.empty((used + numbers.size + program.shape[0], BLOCK), np.float32)
    for number in range(numbers.size):
        table[used + number] = numbers[number]
    return table


@exactly_part
def _load(source: Any, filled: Any, table: Any, row: Any, start: Any, count: Any) -> None:
    if source.size:
        _copy(source, start, table, row, count)
    else:
        for place in range(count):
            table[row, place] = filled


@exactly_part
def _evaluate_block(
    program: Any, used: Any, first: Any, second: Any, filled: Any, corrected: Any, places: Any, values: Any,
    table: Any, start: Any, count: Any,
) -> Any:  # fmt: skip
    """Put at most BLOCK elements of an operand into a row of the table; returns which."""
    _load(first, filled, table, np.uint64(0), start, count)
    if used > 1:
        _load(second, filled, table, np.uint64(1), start, count)
    if corrected < np.uint64(RESULT):
        _correct(places, values, start, table, corrected, count)
    last = np.uint64(0)
    for line in range(np.uint64(program.shape[0])):
        last = program[line, 4]
        _operate(
            program[line, 0],
            table,
            program[line, 1],
            program[line, 2],
            program[line, 3],
            last,
            count,
        )
    if corrected == np.uint64(RESULT):
        _correct(places, values, start, table, last, count)
    return last


@exactly_part
def evaluate(
    program: Any, used: Any, first: Any, second: Any, filled: Any, corrected: Any, places: Any, values: Any,
    table: Any, start: Any, rows: Any, row: Any, count: Any,
) -> None:  # fmt: skip
    """Put elements of an operand from `start` on into a row; it comes in parts, as taking it apart takes time."""
    for offset in range(np.uint64(0), count, np.uint64(BLOCK)):
        some = min(np.uint64(BLOCK), count - offset)
        last = _evaluate_block(
            program, used, first, second, filled, corrected, places, values, table, start + offset, some
        )  # fmt: skip
        for place in range(some):
            rows[row, offset + place] = table[last, place]


@exactly(
    f"void(uint64[:, ::1], UniTuple({_INPUT}, {INPUTS}), uint64, float32[:, ::1], float32[::1])"
)
def run(program: Any, inputs: Any, used: Any, table: Any, result: Any) -> None:
    """Run a program.

    program: Operation, rows of three operands and row of the result, uint64 of shape (n, 5).
    inputs: INPUTS arrays, float32 of shape (count,), of which the first `used` are used; they come into the first rows.
    table: Room for inputs, numbers and results, float32 of shape (rows, BLOCK); rows of numbers are filled with them.
    result: What the last operation gives, float32 of shape (count,).
    """
    last = np.uint64(program.shape[0] - 1)
    for start in range(np.uint64(0), np.uint64(result.size), np.uint64(BLOCK)):
        count = min(np.uint64(BLOCK), np.uint64(result.size) - start)
        for row in range(used):
            _copy(inputs[row], start, table, row, count)
        for line in range(last + np.uint64(1)):
            _operate(
                program[line, 0],
                table,
                program[line, 1],
                program[line, 2],
                program[line, 3],
                program[line, 4],
                count,
            )
        row = program[last, 4]
        for place in range(count):
            result[start + place] = table[row, place]


GRIDS = {"float64": 64, "float32": 32, "bfloat16": 16, "float16": 5}
"""Numbers that ULPs are counted on, by dtype: how wide they are, or for float16, which is no shorter single, how wide
their exponent is."""


@inlined
def _bfloat16_place(number: Any) -> Any:
    """Place among the bfloat16 numbers: the upper half of a single, rounded to nearest even."""
    bits = np.int64(np.float32(number).view(np.int32))
    size = bits & 0x7FFF_FFFF
    size = (size + 0x7FFF + ((size >> 16) & 1)) >> 16
    return -size if bits < 0 else size


@inlined
def _float16_place(number: Any) -> Any:
    """Place among the float16 numbers, rounded to nearest even; 0.5 has the spacing of the subnormal ones."""
    size = abs(np.float32(number))
    bits = np.int64(np.float32(size).view(np.int32))
    normal = (bits - (112 << 23) + 0xFFF + ((bits >> 13) & 1)) >> 13
    shifted = np.float32(size + np.float32(0.5))
    subnormal = np.int64(shifted.view(np.int32)) - 0x3F00_0000
    found: Any = min(normal if size >= np.float32(2.0**-14) else subnormal, 0x7C00)
    return -found if number < 0 else found


@inlined
def _single_place(number: Any) -> Any:
    """Place among the singles, zero at 0."""
    bits = np.int64(np.float32(number).view(np.int32))
    size = bits & 0x7FFF_FFFF
    return -size if bits < 0 else size


@inlined
def most_ulps(left: Any, right: Any, grid: int) -> float:
    """Numbers of a grid between two, at most; `grid` is one of `GRIDS`, or 0 for none."""
    most = np.int64(0)
    if grid == 32:
        for place in range(left.size):
            most = max(most, abs(_single_place(left[place]) - _single_place(right[place])))
    elif grid == 16:
        for place in range(left.size):
            most = max(most, abs(_bfloat16_place(left[place]) - _bfloat16_place(right[place])))
    elif grid == 5:
        for place in range(left.size):
            most = max(most, abs(_float16_place(left[place]) - _float16_place(right[place])))
    return np.float64(most)


@inlined
def most_double_ulps(left: Any, right: Any) -> float:
    """The same for doubles, whose places may be more than `2**63` apart."""
    most = np.uint64(0)
    for place in range(left.size):
        one, two = left[place], right[place]
        one = -(one & 0x7FFF_FFFF_FFFF_FFFF) if one < 0 else one
        two = -(two & 0x7FFF_FFFF_FFFF_FFFF) if two < 0 else two
        most = max(most, np.uint64(max(one, two)) - np.uint64(min(one, two)))
    return np.float64(most)
