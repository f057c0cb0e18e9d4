"""The sketch: linear, and a fair estimate of distance whatever the difference looks like."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep.core.sketch import (
    BLOCK,
    ROW,
    SKETCH_SIZE,
    block_plan,
    distance,
    fold_lanes,
    lane_plan,
    sign_table,
    sketch_of,
)

STANDARD_ERROR = 1 / np.sqrt(2 * SKETCH_SIZE)
ACCEPTED_ERROR = 0.2
"""The promise of the design; 4.5 standard errors."""

FINGERPRINT = (-0.16049646255184413, 46.477990058550866, 27.524205598926564, -56.14058306904125)
"""Four numbers of the sketch of a ramp over three blocks."""

Values = npt.NDArray[Any]
DOUBLES = hnp.arrays(
    np.float64,
    st.integers(0, 300),
    elements=st.floats(-1e6, 1e6).map(lambda value: round(value, 3)),
)


def smooth(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    rows, columns = np.indices(shape)
    return np.sin(rows / 7 + columns / 50) + 0.1 * np.cos(columns / 3)


def sparse(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    difference = np.zeros(shape)
    places = generator.choice(difference.size, max(40, difference.size // 1000), replace=False)
    difference.ravel()[places] = generator.normal(size=places.size)
    return difference


def constant_offset(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    return np.ones(shape)


def single_channel(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    difference = np.zeros(shape)
    difference[:, shape[1] // 2] = 1
    return difference


def single_row(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    difference = np.zeros(shape)
    difference[shape[0] // 2] = 1
    return difference


def permuted(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    values = generator.normal(size=shape)
    return generator.permutation(values.ravel()).reshape(shape) - values


def sign_flip(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    return -2 * generator.normal(size=shape)


def noise(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    return generator.normal(size=shape)


CLASSES = (
    smooth,
    sparse,
    constant_offset,
    single_channel,
    single_row,
    permuted,
    sign_flip,
    noise,
)
SHAPES = ((64, 64), (96, 512), (257, 1024), (1000, 1000), (4099, 240), (4, 262_144))


@pytest.mark.parametrize("difference", CLASSES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_estimate_stays_within_its_promise(
    difference: Callable[[tuple[int, int], np.random.Generator], Values], shape: tuple[int, int]
) -> None:
    generator = np.random.default_rng(11)
    exact = difference(shape, generator)
    estimated = np.linalg.norm(sketch_of(exact))
    assert estimated == pytest.approx(np.linalg.norm(exact), rel=ACCEPTED_ERROR)


@pytest.mark.parametrize("difference", [smooth, sparse, permuted, noise])
def test_the_estimate_is_unbiased(
    difference: Callable[[tuple[int, int], np.random.Generator], Values],
) -> None:
    """Over many places in the sign table, the mean squared estimate is the squared norm."""
    ratios = []
    for trial in range(60):
        exact = difference((40, 200), np.random.default_rng(trial))
        padded = np.concatenate([np.zeros(trial * BLOCK // 7), exact.ravel()])
        ratios.append((sketch_of(padded) ** 2).sum() / (exact**2).sum())
    # The spread of one squared ratio is twice that of a distance; the mean of 60 is finer.
    assert np.mean(ratios) == pytest.approx(1, abs=4 * 2 * STANDARD_ERROR / np.sqrt(60))
    assert np.std(ratios) < 2 * 2 * STANDARD_ERROR


@pytest.mark.parametrize("relative", [1e-6, 1e-3, 0.1, 1.0])
def test_relative_distances_are_estimated_at_every_scale(relative: float) -> None:
    generator = np.random.default_rng(5)
    reference = 3 + generator.normal(size=100_000)
    candidate = reference + relative * generator.normal(size=reference.size)
    estimated = distance(sketch_of(reference), sketch_of(candidate))
    exact = float(np.linalg.norm(candidate - reference))
    assert estimated == pytest.approx(exact, rel=ACCEPTED_ERROR)


def test_a_permuted_tensor_is_told_from_the_right_one() -> None:
    values = np.random.default_rng(0).normal(size=(128, 256))
    turned = np.ascontiguousarray(values.T)
    exact = np.linalg.norm(values.ravel() - turned.ravel())
    estimated = distance(sketch_of(values), sketch_of(turned))
    assert estimated == pytest.approx(exact, rel=ACCEPTED_ERROR)


@settings(deadline=None)
@given(left=DOUBLES, scale=st.sampled_from([-2.0, 0.0, 0.5, 3.0]), data=st.data())
def test_it_is_linear(left: Values, scale: float, data: st.DataObject) -> None:
    right = data.draw(hnp.arrays(np.float64, left.shape, elements=st.floats(-1e6, 1e6)))
    combined = sketch_of(left + scale * right)
    room = 1e-12 * (np.abs(left).sum() + abs(scale) * np.abs(right).sum()) + 1e-300
    np.testing.assert_allclose(combined, sketch_of(left) + scale * sketch_of(right), atol=room)


@settings(deadline=None)
@given(values=DOUBLES.filter(lambda values: values.size > 0), data=st.data())
def test_one_element_keeps_its_size(values: Values, data: st.DataObject) -> None:
    """Every column of the matrix holds a single +1 or -1."""
    place = data.draw(st.integers(0, values.size - 1))
    alone = np.zeros_like(values)
    alone[place] = values[place]
    assert np.count_nonzero(sketch_of(alone)) == np.count_nonzero(alone)
    assert np.linalg.norm(sketch_of(alone)) == np.abs(values[place])


@pytest.mark.parametrize("size", [0, 1, ROW - 1, ROW, ROW + 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_the_last_element_counts_at_every_boundary(size: int) -> None:
    values = np.zeros(size)
    if size:
        values[-1] = 2.0
    sketch = sketch_of(values)
    assert sketch.shape == (SKETCH_SIZE,)
    assert np.linalg.norm(sketch) == (2.0 if size else 0.0)


def test_layout_and_dtype_do_not_matter() -> None:
    values = np.random.default_rng(1).integers(-8, 8, (33, 70)).astype(np.float32)
    expected = sketch_of(values)
    for other in (np.asfortranarray(values), values.astype(np.float16), values.astype(np.int8)):
        np.testing.assert_array_equal(sketch_of(other), expected)


def test_non_finite_elements_count_as_zero() -> None:
    values = np.arange(8.0)
    broken = values.copy()
    broken[[1, 2, 3]] = [np.nan, np.inf, -np.inf]
    values[[1, 2, 3]] = 0
    np.testing.assert_array_equal(sketch_of(broken), sketch_of(values))


def test_the_plan_never_changes() -> None:
    """Recordings of different days and machines are compared: these numbers are the format."""
    buckets, signs = lane_plan()
    assert (ROW, SKETCH_SIZE, BLOCK) == (4099, 256, 4099 * 64)
    assert set(np.unique(sign_table())) == set(np.unique(signs)) == {-1.0, 1.0}
    assert (buckets.min(), buckets.max()) == (0, SKETCH_SIZE - 1)
    assert abs(sign_table().mean()) < 0.01
    ramp = np.arange(3 * BLOCK, dtype=np.float64) / BLOCK
    assert sketch_of(ramp)[[0, 1, 100, 255]] == pytest.approx(FINGERPRINT, rel=1e-9)


def test_blocks_do_not_repeat_each_other() -> None:
    plans = [block_plan(block) for block in range(1000)]
    assert len({offset for offset, _ in plans}) > 990
    assert 400 < sum(sign > 0 for _, sign in plans) < 600


def test_folding_adds_lanes_by_bucket_and_sign() -> None:
    buckets, signs = lane_plan()
    folded = fold_lanes(signs)
    np.testing.assert_array_equal(folded, np.bincount(buckets, minlength=SKETCH_SIZE))
