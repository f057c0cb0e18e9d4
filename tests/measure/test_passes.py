"""The two ways over a pair of arrays: the compiled one gives what NumPy's does, for everything it takes."""

from __future__ import annotations

import dataclasses
import math
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep.core.finding import Metrics
from lockstep.kernels.pair_sums import BLOCK_ELEMENTS
from lockstep.measure import passes
from lockstep.measure.metrics import measure_tensors
from lockstep.measure.passes import CHUNK_ELEMENTS

NUMBERS = [field.name for field in dataclasses.fields(Metrics) if field.name != "evidence"]
LARGEST = {"float16": 65504.0, "float32": 2.0**127, "float64": 2.0**390}


def by_numpy(reference: Any, candidate: Any, dtype: str) -> Metrics:
    with patch.object(passes, "available", lambda: False):
        return measure_tensors(reference, candidate, dtype=dtype)


def assert_both_ways_agree(reference: Any, candidate: Any, dtype: str) -> None:
    found = measure_tensors(reference, candidate, dtype=dtype)
    expected = by_numpy(reference, candidate, dtype)
    for name in NUMBERS:
        tolerance = 1e-12 if name in ("cosine", "kl_divergence") else 1e-300
        if name == "standard_deviation":  # of an almost constant difference: cancellation
            tolerance += 1e-12 * np.nan_to_num(expected.max_abs)
        want = pytest.approx(getattr(expected, name), 1e-10, tolerance, nan_ok=True)
        assert getattr(found, name) == want, name


@st.composite
def pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """Two arrays, each of its own dtype, with many equal, zero, subnormal, huge and special elements."""
    sides = []
    size = draw(st.integers(0, 40))
    for dtype in (draw(st.sampled_from(sorted(LARGEST))) for _ in range(2)):
        limit, width = LARGEST[dtype], 8 * np.dtype(dtype).itemsize
        least = 2.0**-390 if dtype == "float64" else 0.0
        usual = st.floats(-limit, limit, width=width).filter(
            lambda x, least=least: x == 0 or abs(x) > least
        )
        special = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, 0.25])
        elements = st.one_of(usual, special)
        sides.append(draw(hnp.arrays(dtype, size, elements=elements)))
    equal = draw(hnp.arrays(np.bool_, size))
    with np.errstate(over="ignore"):
        return sides[0], np.where(equal, sides[0].astype(sides[1].dtype), sides[1])


@settings(deadline=None, max_examples=300)
@given(pairs(), st.sampled_from(["float16", "bfloat16", "float32", "float8_e4m3fn"]))
@example((np.array([1e-45, -1e-45], "f4"), np.array([-1e-45, 3e38], "f4")), "float32")
@example((np.array([3e38], "f4"), np.array([-3e38], "f4")), "float32")
def test_both_ways_agree_on_anything(pair: tuple[Any, Any], dtype: str) -> None:
    with np.errstate(all="ignore"):
        assert_both_ways_agree(*pair, dtype)
        if pair[0].dtype == pair[1].dtype == np.float64:
            assert_both_ways_agree(*pair, "float64")


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize(
    "size",
    [0, 1, BLOCK_ELEMENTS - 1, BLOCK_ELEMENTS, BLOCK_ELEMENTS + 1, 5 * CHUNK_ELEMENTS + 3],
)
@pytest.mark.parametrize("kind", ["noise", "far", "zeros", "holes", "equal"])
def test_no_edge_of_a_block_or_a_chunk_shows(dtype: str, size: int, kind: str) -> None:
    # Given two arrays of which some blocks are equal, hold zeros or numbers that are not finite,
    generator = np.random.default_rng(size)
    reference = generator.normal(1, 1, size).astype(dtype)
    far = 1.0 if kind == "far" else 1e-3
    candidate = (reference * (1 + far * generator.normal(size=size))).astype(dtype)
    candidate[: size // 2] = reference[: size // 2]
    if kind == "zeros":
        reference[::7] = candidate[::5] = 0
    if kind == "holes":
        reference[size // 3 :: 911] = np.nan
        candidate[size // 3 :: 1822] = np.nan
        candidate[-1:] = np.inf
    if kind == "equal":
        candidate = reference.copy()
    # then no number depends on where they are cut.
    assert_both_ways_agree(reference, candidate, dtype)


def test_numbers_do_not_depend_on_how_many_threads_there_are() -> None:
    generator = np.random.default_rng(1)
    reference = generator.normal(size=9 * CHUNK_ELEMENTS + 11).astype(np.float32)
    candidate = (reference + generator.normal(size=reference.size)).astype(np.float32)
    found = []
    for threads in (1, 2, 5):
        with patch.object(passes, "threads", lambda count=threads: count):
            found.append(measure_tensors(reference, candidate, dtype="float32"))
    assert found[0] == found[1] == found[2]


def test_read_only_unaligned_and_strided_arrays_are_measured_alike() -> None:
    generator = np.random.default_rng(2)
    reference = generator.normal(size=(1030, 1026)).astype(np.float32)
    candidate = reference + np.float32(1e-3)
    straight = measure_tensors(reference, candidate, dtype="float32")
    held = np.frombuffer(b"." + reference.tobytes(), np.float32, offset=1).reshape(reference.shape)
    assert not held.flags.aligned
    assert not held.flags.writeable
    for other in (held, np.repeat(reference, 2, axis=-1)[..., ::2]):
        assert measure_tensors(other, candidate, dtype="float32") == straight


@pytest.mark.parametrize("extreme", [2.0**-1060, 2.0**-700, 2.0**700])
def test_doubles_of_an_extreme_size_are_left_to_numpy(extreme: float) -> None:
    reference = np.full(CHUNK_ELEMENTS + 5, 1.5 * extreme)
    candidate = reference.copy()
    candidate[-1] *= 2
    found = measure_tensors(reference, candidate, dtype="float64")
    assert found == by_numpy(reference, candidate, "float64")
    assert found.max_relative == pytest.approx(1)


def test_a_failure_in_a_helping_thread_is_not_lost() -> None:
    arrays = np.zeros((2, 8 * CHUNK_ELEMENTS), np.float32)

    def broken(*arguments: Any, **keywords: Any) -> bool:
        raise MemoryError("no room")

    with (
        patch.object(passes, "add_chunks", broken),
        pytest.raises(MemoryError, match="no room"),
    ):
        measure_tensors(*arrays, dtype="float32")
