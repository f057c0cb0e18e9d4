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

from lockstep.core.sketch import SKETCH_SIZE, block_plan, distance, plan_of, sign_table, sketch_of

STANDARD_ERROR = np.sqrt(1 / (2 * SKETCH_SIZE) + 1 / (2 * 4127))
ACCEPTED_ERROR = 0.2
"""The promise of the design; 4.4 standard errors."""

FINGERPRINT = (-5.442530704809789, 3.5993116973588615, 20.48257252796623, -1.5619260989621098)
"""Four numbers of the sketch of a ramp over three blocks."""

ROW, BLOCK = plan_of(10_000).row, plan_of(300_000).block
MANY_LANES, MOST_LANES = 1 << 19, 1 << 23
"""Element counts from which on there are more lanes."""

Values = npt.NDArray[Any]
Difference = Callable[[tuple[int, int], np.random.Generator], Values]
SMALL = hnp.arrays(np.float64, st.integers(0, SKETCH_SIZE), elements=st.floats(-1e6, 1e6))


# --- differences ------------------------------------------------------------------------------------


def smooth(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    rows, columns = np.indices(shape)
    slow, fast = generator.uniform(3, 300, 2)
    return np.sin(rows / slow + columns / 50) + 0.1 * np.cos(columns / fast)


def sparse(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    difference = np.zeros(shape)
    count = min(difference.size, max(20, difference.size // 1000))
    places = generator.choice(difference.size, count, replace=False)
    difference.ravel()[places] = generator.normal(size=count)
    return difference


def few_elements(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    """One to four equal magnitudes: where two of them met in one number, all would be lost."""
    difference = np.zeros(shape)
    count = min(difference.size, generator.integers(1, 5))
    places = generator.choice(difference.size, count, replace=False)
    difference.ravel()[places] = generator.choice([-1.0, 1.0], places.size)
    return difference


def constant_offset(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    return np.full(shape, generator.normal())


def single_channel(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    difference = np.zeros(shape)
    difference[:, generator.integers(shape[1])] = 1
    return difference


def single_row(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    difference = np.zeros(shape)
    difference[generator.integers(shape[0])] = 1
    return difference


def every_kth_element(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    difference = np.zeros(shape)
    difference.ravel()[:: generator.integers(2, 600)] = 1
    return difference


def permuted(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    values = generator.normal(size=shape)
    return generator.permutation(values.ravel()).reshape(shape) - values


def sign_flipped(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    return -2 * generator.normal(size=shape)


def low_rank(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    """An outer product of signs: the sign pattern of a cheaper sketch."""
    rows, columns = (generator.choice([-1.0, 1.0], extent) for extent in shape)
    return np.outer(rows, columns)


def checkerboard(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    rows, columns = np.indices(shape)
    height, width = generator.integers(1, 9, 2)
    return (-1.0) ** (rows // height + columns // width)


def ramp(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    count = shape[0] * shape[1]
    return (np.arange(count) - generator.uniform(0, count)).reshape(shape)


def heavy_tailed(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    return generator.standard_t(1.5, size=shape)


def noise(shape: tuple[int, int], generator: np.random.Generator) -> Values:
    return generator.normal(size=shape)


CLASSES = (
    smooth,
    sparse,
    few_elements,
    constant_offset,
    single_channel,
    single_row,
    every_kth_element,
    permuted,
    sign_flipped,
    low_rank,
    checkerboard,
    ramp,
    heavy_tailed,
    noise,
)


# --- the estimate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("difference", CLASSES, ids=lambda made: made.__name__)
@settings(
    deadline=None, max_examples=25, derandomize=True
)  # it is a promise about nearly all draws
@given(rows=st.integers(1, 300), columns=st.integers(1, 1100), seed=st.integers(0, 2**32))
def test_the_estimate_stays_within_its_promise(
    difference: Difference, rows: int, columns: int, seed: int
) -> None:
    exact = difference((rows, columns), np.random.default_rng(seed))
    estimated = np.linalg.norm(sketch_of(exact))
    assert estimated == pytest.approx(np.linalg.norm(exact), rel=ACCEPTED_ERROR)


@pytest.mark.parametrize("difference", CLASSES, ids=lambda made: made.__name__)
@pytest.mark.parametrize("shape", [(700, 1024), (1000, 1000), (4, 262_144), (4127, 240)], ids=str)
def test_large_tensors_are_estimated_as_well(
    difference: Difference, shape: tuple[int, int]
) -> None:
    exact = difference(shape, np.random.default_rng(11))
    estimated = np.linalg.norm(sketch_of(exact))
    assert estimated == pytest.approx(np.linalg.norm(exact), rel=ACCEPTED_ERROR)


@pytest.mark.parametrize("shape", [(130, 1 << 16), (4100, 2048)], ids=str)
@pytest.mark.parametrize("difference", [single_channel, single_row, constant_offset])
def test_so_are_those_with_most_lanes(difference: Difference, shape: tuple[int, int]) -> None:
    exact = difference(shape, np.random.default_rng(2))
    assert exact.size > MOST_LANES
    estimated = np.linalg.norm(sketch_of(exact))
    assert estimated == pytest.approx(np.linalg.norm(exact), rel=ACCEPTED_ERROR)


@pytest.mark.parametrize("columns", [4099, 4111, 4127, 2 * 4127, 3 * 4099, 16_493])
@pytest.mark.parametrize("rows", [1, 7, 60, 130])
def test_a_channel_is_no_lane_even_where_it_has_the_period_of_a_row(
    rows: int, columns: int
) -> None:
    exact = single_channel((rows, columns), np.random.default_rng(rows))
    estimated = np.linalg.norm(sketch_of(exact))
    assert estimated == pytest.approx(np.linalg.norm(exact), rel=ACCEPTED_ERROR)


@settings(deadline=None)
@given(count=st.integers(SKETCH_SIZE + 1, 10**10))
def test_no_stride_that_comes_from_a_shape_stays_in_one_lane(count: int) -> None:
    plan = plan_of(count)
    assert count % plan.row
    assert plan.block % (2 * plan.row) == 0
    assert 260_000 < plan.block < 264_200


@settings(deadline=None, max_examples=30)
@given(values=SMALL)
def test_a_small_tensor_is_its_own_sketch(values: Values) -> None:
    np.testing.assert_array_equal(sketch_of(values)[: values.size], values)
    assert not sketch_of(values)[values.size :].any()


def test_two_elements_in_different_lanes_cannot_cancel() -> None:
    """Whichever two of up to ROW elements differ: all columns have length 1 and no two are near each other."""
    columns = np.stack([sketch_of(unit) for unit in np.eye(ROW - 1, dtype=np.float32)])
    cosines = columns @ columns.T
    np.testing.assert_allclose(np.diag(cosines), 1, rtol=1e-12)
    np.fill_diagonal(cosines, 0)
    # sqrt(1 - 0.36) = 0.8: two equal magnitudes are then within the promise
    assert np.abs(cosines).max() < 0.36
    assert cosines.std() == pytest.approx(1 / np.sqrt(SKETCH_SIZE), rel=0.01)


@pytest.mark.parametrize("difference", [smooth, sparse, few_elements, single_channel, ramp, noise])
def test_the_estimate_is_unbiased(difference: Difference) -> None:
    """Over many places in the sign table, the mean squared estimate is the squared norm."""
    ratios = []
    for trial in range(100):
        exact = difference((40, 200), np.random.default_rng(trial))
        padded = np.concatenate([np.zeros(trial * 2611), exact.ravel()])
        ratios.append((sketch_of(padded) ** 2).sum() / (exact**2).sum())
    # The spread of one squared ratio is twice that of a distance; the mean of 100 is finer.
    assert np.mean(ratios) == pytest.approx(1, abs=4 * 2 * STANDARD_ERROR / np.sqrt(100))
    assert np.std(ratios) < 1.25 * 2 * STANDARD_ERROR


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


# --- the map ----------------------------------------------------------------------------------------


@settings(deadline=None)
@given(count=st.integers(0, 3 * ROW), scale=st.floats(-1e3, 1e3), seed=st.integers(0, 2**32))
def test_it_is_linear(count: int, scale: float, seed: int) -> None:
    left, right = np.random.default_rng(seed).standard_t(1.5, size=(2, count))
    combined = sketch_of(left + scale * right)
    room = 1e-12 * (np.abs(left).sum() + abs(scale) * np.abs(right).sum()) + 1e-300
    np.testing.assert_allclose(combined, sketch_of(left) + scale * sketch_of(right), atol=room)


@pytest.mark.parametrize(
    "size",
    [1, 256, 257, ROW - 1, ROW, ROW + 1, BLOCK - 1, BLOCK, BLOCK + 1, MANY_LANES, MANY_LANES + 1],
)
def test_the_last_element_counts_at_every_boundary(size: int) -> None:
    values = np.zeros(size)
    values[-1] = 2.0
    sketch = sketch_of(values)
    assert sketch.shape == (SKETCH_SIZE,)
    assert np.linalg.norm(sketch) == pytest.approx(2.0, rel=1e-12)


def test_an_empty_tensor_and_a_scalar() -> None:
    assert not sketch_of(np.zeros((0, 3))).any()
    assert distance(sketch_of(np.float32(3)), sketch_of(np.float32(-1))) == 4


def test_layout_and_dtype_do_not_matter() -> None:
    values = np.random.default_rng(1).integers(-8, 8, (33, 70)).astype(np.float32)
    expected = sketch_of(values)
    for other in (np.asfortranarray(values), values.astype(np.float16), values.astype(np.int8)):
        np.testing.assert_array_equal(sketch_of(other), expected)


@pytest.mark.parametrize("size", [8, 900])
def test_non_finite_elements_count_as_zero(size: int) -> None:
    values = np.arange(float(size))
    broken = values.copy()
    broken[[1, 2, 3]] = [np.nan, np.inf, -np.inf]
    values[[1, 2, 3]] = 0
    np.testing.assert_array_equal(sketch_of(broken), sketch_of(values))


@pytest.mark.parametrize("size", [5, 500, 5000])
def test_the_parts_of_a_complex_number_do_not_hide_each_other(size: int) -> None:
    """One number off by 1 + 1j is off by sqrt(2), though both parts belong to one element."""
    for place in range(0, size, max(1, size // 20)):
        values = np.zeros(size, np.complex64)
        values[place] = 1 + 1j
        assert np.linalg.norm(sketch_of(values)) == pytest.approx(np.sqrt(2), rel=ACCEPTED_ERROR)


def test_masks_leave_the_sketch_finite() -> None:
    mask = np.zeros(20_000, np.float32)
    mask[::3] = np.finfo(np.float32).min
    norm = np.linalg.norm(mask.astype(np.float64))
    assert np.linalg.norm(sketch_of(mask)) == pytest.approx(norm, rel=ACCEPTED_ERROR)


# --- the plan ---------------------------------------------------------------------------------------


def test_the_plan_never_changes() -> None:
    """Recordings of different days and machines are compared: these numbers are the format."""
    assert [
        (plan_of(count).row, plan_of(count).parts) for count in (1000, MANY_LANES, MOST_LANES)
    ] == [
        (4127, 1),
        (16_493, 4),
        (66_047, 16),
    ]
    assert set(np.unique(sign_table())) == {-1.0, 1.0}
    assert abs(sign_table().mean()) < 0.01
    count = 3 * BLOCK // 2
    values = np.arange(count, dtype=np.float64) / count
    assert sketch_of(values)[[0, 1, 100, 255]] == pytest.approx(FINGERPRINT, rel=1e-9)


def test_blocks_do_not_repeat_each_other() -> None:
    plans = [block_plan(block) for block in range(1000)]
    assert len({offset for offset, _, _ in plans}) > 990
    assert 400 < sum(sign > 0 for _, sign, _ in plans) < 600
    assert len({shift % ROW for _, _, shift in plans}) > 800
