"""Formulas within the compiled pass: the numbers of a pair are those of the whole tensors, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.core.formulas import Formula, Operation, Stored
from lockstep.core.records import Array
from lockstep.kernels.fused_formulas import NONE
from lockstep.kernels.jit import available
from lockstep.measure.metrics import measure_tensors
from lockstep.measure.passes import CHUNK_ELEMENTS, STRETCH_CHUNKS
from lockstep.store.derived.derived_tensor import Derived
from lockstep.store.derived.evaluation import elements_of
from lockstep.store.derived.search import derived
from lockstep.store.schema import shard_name
from lockstep.store.tensor_files import TensorFiles
from lockstep.store.tensors import RawTensor, write_shard

pytestmark = pytest.mark.skipif(not available(), reason="Numba cannot be used here")

COUNT = STRETCH_CHUNKS * CHUNK_ELEMENTS + 3 * CHUNK_ELEMENTS + 77
A, B, C, SPARSE = (Stored(0, number) for number in range(1, 5))


def op(name: str, *operands: Formula) -> Operation:
    return Operation(name, operands)


FORMULAS: dict[str, Formula] = {
    "one input": op("add", op("mul", A, 0.9), 1.5),
    "one input, used twice": op("mul", op("sqrt", op("mul", A, A)), 0.5),
    "two inputs": op("div", op("fma", A, 0.25, B), op("add", B, 3.0)),
    "an input with corrections": op("add", op("mul", SPARSE, 0.1), A),
    "islands in zeros": SPARSE,
    "another tensor": B,
}
LARGER: dict[str, Formula] = {
    "three inputs": op("add", op("mul", A, B), C),
    "corrections in the middle": op("sub", SPARSE, op("mul", SPARSE, B)),
}


def values(number: int) -> Array:
    random = np.random.default_rng(number)
    found = random.standard_normal(COUNT).astype(np.float32)
    found[:: 997 + number] = 0
    found[5], found[-3] = np.nan, np.inf
    return found


def sparse() -> Array:
    found = np.zeros(COUNT, np.float32)
    found[CHUNK_ELEMENTS - 5 : CHUNK_ELEMENTS + 9] = np.arange(14)
    found[-4:] = 7
    return found


def files_with(formula: Formula, directory: Path, *, wrong: bool) -> tuple[TensorFiles, Array]:
    """Tensors 1 to 3 and 5 as they are, 4 as islands, 9 as a formula; and the elements of 9, some off where `wrong`."""
    kept = {number: values(number) for number in (1, 2, 3, 5)}
    find: dict[int, Any] = {number: ("F32", array) for number, array in kept.items()}
    block = 16
    places = np.flatnonzero(np.add.reduceat(sparse() != 0, range(0, COUNT, block))).astype("<u4")
    padded = np.append(sparse(), np.zeros(-COUNT % block, np.float32)).reshape(-1, block)
    find[4] = Derived(4, "F32", COUNT, 0.0, block, places, padded[places])
    exact = Derived(9, "F32", COUNT, formula, 1, np.empty(0, "<u4"), np.empty((0, 1), "<f4"))
    with np.errstate(all="ignore"):
        expected = elements_of(exact, lambda stored: find[stored.number]).copy()
    if wrong:
        expected[[0, 2047, 2048, CHUNK_ELEMENTS, COUNT - 1]] += 1
    form = derived(9, "F32", expected, formula, lambda stored: find[stored.number])
    assert form is not None
    raws = [
        RawTensor(number, "float32", array.shape, array.view(np.uint8), None, 0)
        for number, array in kept.items()
    ]
    directory.mkdir()
    with (directory / shard_name(0)).open("wb") as file:
        write_shard(file, [*raws, find[4], form])
    return TensorFiles(directory), expected


@pytest.mark.sampled(3)
@pytest.mark.parametrize("other", [5, 9])
@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("name", [*FORMULAS, *LARGER])
def test_a_formula_is_measured_as_the_tensor_that_it_stands_for(
    name: str, wrong: bool, other: int, tmp_path: Path
) -> None:
    # given a tensor that is kept as a formula, and another one that is kept as it is, or by the same formula
    formula = (FORMULAS | LARGER)[name]
    files, expected = files_with(formula, tmp_path / "rank0", wrong=wrong)
    # when they are measured as they are read
    found = measure_tensors(files.open(0, other), files.open(0, 9), dtype="float32")
    # then the numbers are those of the two whole tensors, the last bit included
    against = expected if other == 9 else values(other)
    assert repr(found) == repr(measure_tensors(against, expected, dtype="float32"))


@pytest.mark.parametrize("name", FORMULAS)
def test_formulas_over_one_or_two_tensors_are_made_by_compiled_code(
    name: str, tmp_path: Path
) -> None:
    files, _ = files_with(FORMULAS[name], tmp_path / "rank0", wrong=False)
    assert files.open(0, 9).operand is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", LARGER)
def test_what_compiled_code_does_not_know_is_left_to_the_general_way(
    name: str, tmp_path: Path
) -> None:
    files, _ = files_with(LARGER[name], tmp_path / "rank0", wrong=True)
    assert files.open(0, 9).operand is None  # type: ignore[attr-defined]


def test_corrections_of_a_result_are_made_by_compiled_code(tmp_path: Path) -> None:
    files, _ = files_with(FORMULAS["one input"], tmp_path / "rank0", wrong=True)
    assert files.open(0, 9).operand.corrected != NONE  # type: ignore[attr-defined]
