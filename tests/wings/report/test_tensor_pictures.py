"""Pictures of a pair are those of its whole tensors, however they are read; of bad input there is a reason instead."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes

from lockstep.comparison import compare_recordings
from lockstep.core.finding import Axes, Pair
from lockstep.core.records import PIECE, Content, Statistics, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.reading.sampled_values import BINS
from lockstep.store.reader import open_recording
from lockstep.testing.fixtures import FaultyPair
from lockstep.testing.made_recordings import write_recording
from lockstep.testing.made_training import MadeTraining, statistics_of
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.tensor_pictures import (
    WORST,
    HeatCells,
    Pictures,
    pictures_of,
    two_roundings,
)

SITE = Site("net", "torch.add", 0, Phase.FORWARD)


def record(value: npt.NDArray[Any], dtype: str, statistics: Statistics | None) -> TensorRecord:
    content = Content(
        0, dtype or str(value.dtype), value.shape, "cpu", None, statistics, loader=lambda: value
    )
    return TensorRecord("rank0", 0, SITE, Role.OUTPUT, 0, "", 0, 0, content)


def pictures(
    left: npt.NDArray[Any],
    right: npt.NDArray[Any],
    *,
    dtype: str = "",
    layout: Axes | None = None,
    beyond: bool = True,
) -> Pictures:
    sides = [record(one, dtype, None) for one in (left, right)]
    with np.errstate(all="ignore"):
        return pictures_of(Pair(*sides, layout=layout), beyond_noise=beyond)


def normal(shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@given(array_shapes(max_dims=3, max_side=9), st.integers(0, 2**32 - 1))
def test_every_picture_is_that_of_the_whole_tensors(shape: tuple[int, ...], seed: int) -> None:
    # given two tensors of any shape
    left, noise = normal(shape, seed), normal(shape, seed + 1)
    right = left + np.float32(0.01) * noise
    found = pictures(left, right)
    errors = right.astype(np.float64) - left.astype(np.float64)
    # then the histogram counts all elements of both between its edges
    assert found.histogram is not None
    for counts, side in (
        (found.histogram.reference, left),
        (found.histogram.candidate, right),
    ):
        assert np.array_equal(counts, np.histogram(side, found.histogram.edges)[0])
    inside = found.histogram.reference.sum() + found.histogram.candidate.sum()
    beside = sum((*found.histogram.below, *found.histogram.above, *found.histogram.not_finite))
    assert inside + beside == 2 * left.size
    # and the worst elements are the largest errors, each at its place
    sizes = np.sort(np.abs(errors).reshape(-1))[::-1]
    assert [abs(one.difference) for one in found.worst] == sizes[sizes > 0][:WORST].tolist()
    for one in found.worst:
        assert (one.reference, one.candidate) == (left[one.index], right[one.index])
        assert one.difference == errors[one.index]
    # and each element has one distance in ulp, and one cell of the map has the largest error
    assert found.ulp is not None
    assert found.ulp.counts.sum() == left.size
    assert np.abs(found.heat_map.values).max() == np.float32(sizes[0])
    assert found.quantiles is not None
    assert len(found.quantiles.error) == min(128, left.size)


def test_a_long_tensor_has_the_pictures_of_its_elements_too() -> None:
    # given tensors of several blocks
    left, noise = normal((5, 2 * PIECE + 3)), normal((5, 2 * PIECE + 3), 1)
    right = left * (1 + np.float32(2**-20) * noise)
    found = pictures(left, right)
    errors = right.astype(np.float64) - left
    # then the map is the largest error, with its sign, of each of its cells
    rows, columns = np.indices(left.shape)
    cells = columns * 64 // left.shape[1]
    for row, column in ((0, 0), (4, 63), (2, 31)):
        inside = errors[(rows == row) & (cells == column)]
        worst = inside[np.argmax(np.abs(inside))]
        assert found.heat_map.values[row, column] == np.float32(worst)
    assert found.heat_map.values.shape == (5, 64)
    # and the histogram loses no element
    assert found.histogram is not None
    total = found.histogram.reference.sum() + found.histogram.below[0] + found.histogram.above[0]
    assert total == left.size
    # and quantiles of a sample are near those of all
    assert found.quantiles is not None
    spacings = np.spacing(np.maximum(np.abs(left), np.abs(right)).astype(np.float32))
    exact = np.quantile(errors / spacings, (np.arange(128) + 0.5) / 128)
    assert np.abs(found.quantiles.error - exact)[8:-8].max() < 0.1 * np.abs(exact).max()


def test_distances_in_ulp_are_counted_by_powers_of_two() -> None:
    left = np.ones(6, np.float32)
    steps = np.array([0, 1, 2, 3, 4, 1000])
    right = (left.view(np.int32) + steps.astype(np.int32)).view(np.float32)
    found = pictures(left, right)
    assert found.ulp is not None
    assert found.ulp.counts.tolist() == [1, 1, 2, 1, 0, 0, 0, 0, 0, 0, 1]
    assert found.worst[0].ulp == 1000


def test_results_rounded_twice_lie_on_the_diagonal() -> None:
    # given numbers that two runs have rounded, each by up to half a unit in the last place
    random = np.random.default_rng(0)
    left = random.uniform(1, 2, 20_000)
    off = random.uniform(-0.5, 0.5, (2, 20_000)) * 2.0**-23
    found = pictures(left + off[0], left + off[1], dtype="float32")
    # then the quantiles of their difference are those of two roundings
    assert found.quantiles is not None
    assert found.quantiles.theoretical == pytest.approx(found.quantiles.error, abs=0.03)
    # and its twin with one that is rounded ten times as coarsely does not
    worse = pictures(left + off[0], left + 10 * off[1], dtype="float32").quantiles
    assert worse is not None
    assert np.abs(worse.error).max() > 4 * np.abs(worse.theoretical).max()


@given(st.floats(0.001, 0.999))
def test_two_roundings_are_the_difference_of_two_uniform_errors(share: float) -> None:
    quantile = float(two_roundings(share))
    # the share of a triangle from -1 to 1 that lies below
    below = (1 + quantile) ** 2 / 2 if quantile < 0 else 1 - (1 - quantile) ** 2 / 2
    assert below == pytest.approx(share)


def test_outliers_stand_beside_the_histogram_and_are_counted() -> None:
    # given one attention mask's number among small ones
    left, right = normal((3000,)), normal((3000,), 1)
    left[5] = -3e38
    found = pictures(left, right).histogram
    # then the others keep their bins, and it is counted
    assert found is not None
    assert found.edges[0] > -10
    assert found.below[0] >= 1
    assert (found.reference > 0).sum() > BINS / 2
    # and without it all are inside
    left[5] = 0
    sound = pictures(left, right).histogram
    assert sound is not None
    assert (sound.below, sound.above) == ((0, 0), (0, 0))


def test_what_is_not_finite_has_a_mark_of_its_own() -> None:
    # given NaN in the candidate alone, and the same infinity in both
    left = normal((4, 5))
    right = left.copy()
    right[1, 2], left[3, 3], right[3, 3] = math.nan, -math.inf, -math.inf
    found = pictures(left, right)
    # then that element comes first, its cell is unknown, and equal infinities are no difference
    assert [one.index for one in found.worst] == [(1, 2)]
    assert math.isnan(found.heat_map.values[1, 2])
    assert found.heat_map.values[3, 3] == 0
    assert found.histogram is not None
    assert found.histogram.not_finite == (1, 2)
    assert found.ulp is not None
    assert found.ulp.not_comparable == 2
    assert found.pattern.sentence == ""


@pytest.mark.parametrize("dtype", ["bool", "int64", "uint8", "complex64", "float16", "float64"])
def test_every_dtype_has_its_pictures(dtype: str) -> None:
    left, right = ((4 * normal((6, 7), seed).clip(0)).astype(dtype) for seed in (0, 1))
    found = pictures(left, right)
    assert found.histogram is not None
    assert found.worst
    floating = dtype in ("float16", "float64")
    assert (found.ulp is not None, found.quantiles is not None) == (floating, floating)


def test_widened_bfloat16_is_counted_in_its_own_ulps() -> None:
    left = np.array([1.0, 1.0], np.float32)
    right = np.array([1.0078125, 1.0], np.float32)
    found = pictures(left, right, dtype="bfloat16")
    assert found.worst[0].ulp == 1
    assert found.quantiles is not None
    assert found.quantiles.error.max() == pytest.approx(0.75, abs=0.26)


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,)], ids=str)
def test_scalars_and_empty_tensors_are_no_exception(shape: tuple[int, ...]) -> None:
    found = pictures(np.ones(shape), np.full(shape, 1.5))
    size = math.prod(shape)
    assert (found.histogram is not None) == (size > 0)
    assert found.heat_map.values.size == size
    assert len(found.worst) == size
    assert found.pattern.sentence == ""


@pytest.mark.parametrize("value", [0.0, 3.0, -1e-30, 1e308])
def test_a_tensor_of_one_number_has_a_bin_for_it(value: float) -> None:
    one = np.full((3,), value)
    found = pictures(one, one).histogram
    assert found is None or (found.reference.max(), found.reference.sum()) == (3, 3)


def test_two_layouts_meet_element_by_element() -> None:
    left = normal((2, 3, 4))
    right = left.transpose(1, 2, 0).copy()
    right[2, 1, 1] += 1
    found = pictures(left, right, layout=(1, 2, 0))
    assert [one.index for one in found.worst] == [(1, 2, 1)]


def test_a_map_of_more_rows_than_it_has_keeps_the_largest_of_each() -> None:
    cells = HeatCells((1000, 3))
    left = np.zeros((1000, 3))
    right = left.copy()
    right[501, 2] = -7
    found = pictures(left, right).heat_map
    assert cells.heat_map().values.shape == found.values.shape == (128, 3)
    assert found.values[501 * 128 // 1000, 2] == -7
    assert np.count_nonzero(found.values) == 1
    assert (found.row_extent, found.column_extent) == (1000, 3)


def test_the_origin_has_its_pictures_and_what_leads_up_to_it(
    lockstep_faulty_pair: FaultyPair,
) -> None:
    # given a candidate whose relu is off by a thousandth
    found = compare_recordings(lockstep_faulty_pair.reference, lockstep_faulty_pair.candidate)
    one, other = map(open_recording, (found.reference, found.candidate))
    data = gather(found, one, other)
    row = data.origins[0]
    detail = data.details[row]
    # then its page says how: by which factor, where, and what its numbers are
    assert detail.pattern is not None
    assert detail.pattern.sentence.startswith("the candidate is the reference times 1.001")
    assert detail.without == ""
    assert detail.reference is not None
    assert detail.candidate is not None
    assert detail.candidate.of("maximum") == pytest.approx(1.001 * detail.reference.of("maximum"))
    # and what entered is there, equal, with the reason why there is no picture
    entered = [
        other
        for other in data.details
        if other < row and data.pairs.operator[other] == data.pairs.operator[row]
    ]
    assert entered
    assert data.details[entered[0]].without == "the two are equal bit by bit"
    # and no more than was asked for is read
    assert len(gather(found, one, other, details=0).details) < len(data.details)


def test_without_whole_tensors_there_is_the_command_that_records_them(tmp_path: Path) -> None:
    # given recordings of sketches
    paths = [
        write_recording(tmp_path / name, MadeTraining(alter=alter))
        for name, alter in (("ref", {}), ("cand", {"relu": lambda value: value * 2}))
    ]
    one, other = map(open_recording, paths)
    data = gather(compare_recordings(one, other), one, other)
    detail = data.details[data.origins[0]]
    # then there are numbers, no picture, and a command for both runs
    assert detail.reference is not None
    assert (detail.histogram, detail.heat_map, detail.pattern) == (None, None, None)
    assert detail.without.startswith("the tensors were not saved whole")
    assert detail.without.count(" record ") == 2
    assert "--save tensors --steps 0" in detail.without


def test_statistics_widen_the_edges_of_what_is_sampled() -> None:
    # given tensors whose largest element is in no part that is looked at for the edges
    left = normal((40 * PIECE,))
    right = left.copy()
    right[PIECE + 7] = 5.5
    sides = [record(side, "", statistics_of(side)) for side in (left, right)]
    with np.errstate(all="ignore"):
        found = pictures_of(Pair(*sides), beyond_noise=True).histogram
    assert found is not None
    assert found.above == (0, 0)
    assert found.edges[-1] >= 5.5


def test_of_a_pair_within_its_noise_no_pattern_is_put_into_words() -> None:
    left = normal((30, 40))
    noisy = pictures(left, left * np.float32(1.0001), beyond=False)
    assert noisy.pattern.factor > 0.99
    assert noisy.pattern.sentence == ""
    assert replace(noisy.pattern, sentence="") == noisy.pattern
