"""Formulas over float32 arrays, run block by block with every result in a processor's first cache.

Each operation rounds as IEEE 754 has it, so the bits are those that NumPy gives; see `lockstep.store.formulas`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lockstep.kernels.jit import exactly, exactly_part

BLOCK = 1024
"""Elements that one operation takes at a time: 4 kB."""

INPUTS = 6
"""How many inputs a program can have."""

ADD, SUB, MUL, DIV, SQRT, FMA = range(6)
_INPUT = "Array(float32, 1, 'C', True, aligned=True)"


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


@exactly(
    f"void(uint64[:, ::1], UniTuple({_INPUT}, {INPUTS}), uint64, float32[:, ::1], float32[::1])"
)
def run(program: Any, inputs: Any, used: Any, table: Any, result: Any) -> None:
    """Run a program.

    Parameters
    ----------
    program
        Operation, rows of three operands and row of the result, uint64 of shape (n, 5).
    inputs
        INPUTS arrays, float32 of shape (count,), of which the first `used` are used; they come into the first rows.
    table
        Room for inputs, numbers and results, float32 of shape (rows, BLOCK); rows of numbers are filled with them.
    result
        What the last operation gives, float32 of shape (count,).
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
