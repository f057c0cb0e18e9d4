"""Two layouts of one tensor: recognised by what no order changes, never guessed."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.finding import Evidence, Pair
from lockstep.core.records import Content, Statistics, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.measure.axis_order import is_transposed, may_be_transposed, other_layout
from lockstep.measure.measured_pair import measure_pair

Array = npt.NDArray[np.float32]


def content(value: Array, *, whole: bool = False) -> Content:
    flat = value.astype(np.float64).ravel()
    statistics = Statistics(
        float(flat.min()),
        float(flat.max()),
        float(flat.mean()),
        float(np.linalg.norm(flat)),
        0,
        0,
        int((flat == 0).sum()),
    )
    digest = str(hash(value.tobytes()))
    load = (lambda: value) if whole else None
    return Content(0, "float32", value.shape, "cpu", digest, statistics, loader=load)


def record(of: Content) -> TensorRecord:
    site = Site("m", "torch.add", 0, Phase.FORWARD)
    return TensorRecord("rank0", 0, site, Role.OUTPUT, 0, "result", 0, 0, of)


def values(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@given(st.permutations(range(4)))
def test_axes_are_found_from_shapes_and_statistics(axes: list[int]) -> None:
    value = values(2, 3, 4, 5)
    turned = np.ascontiguousarray(value.transpose(axes))
    expected = None if axes == [0, 1, 2, 3] else tuple(axes)
    assert other_layout(content(value), content(turned)) == expected
    assert other_layout(content(value), content(turned + np.float32(0.01))) is None


def test_whole_tensors_tell_equal_extents_apart() -> None:
    value = values(4, 4, 3)
    turned = np.ascontiguousarray(value.transpose(2, 1, 0))
    found = other_layout(content(value, whole=True), content(turned, whole=True))
    assert found == (2, 1, 0)


def test_other_elements_follow_a_layout_that_is_known() -> None:
    value, other = values(2, 3, 4), values(2, 4, 3)
    assert other_layout(content(value), content(other * 2)) is None
    assert other_layout(content(value), content(other * 2), known={(0, 2, 1)}) == (0, 2, 1)
    assert other_layout(content(value), content(values(2, 4, 4)), known={(0, 2, 1)}) is None


def test_two_layouts_are_measured_exactly_from_whole_tensors() -> None:
    value = values(2, 3, 4)
    turned = np.ascontiguousarray(value.transpose(0, 2, 1))
    turned[0, 0, 0] += 0.5
    pair = Pair(
        record(content(value, whole=True)), record(content(turned, whole=True)), layout=(0, 2, 1)
    )
    measured = measure_pair(pair, read_tensors=True)
    assert measured.metrics.max_abs == pytest.approx(0.5)
    assert not measured.shape_differs


def test_two_layouts_are_measured_by_statistics_from_anything_less() -> None:
    value = values(2, 3, 4)
    turned = np.ascontiguousarray(value.transpose(0, 2, 1))
    pair = Pair(record(content(value)), record(content(turned)), layout=(0, 2, 1))
    measured = measure_pair(pair)
    assert measured.metrics.evidence is Evidence.STATISTICS
    assert measured.difference < 1e-6
    assert not measured.equal
    # and without the layout nothing agrees
    assert math.isinf(measure_pair(Pair(pair.reference, pair.candidate)).difference)


def test_whole_square_matrices_tell_a_transpose_from_another_order() -> None:
    value = values(6, 6)
    turned, rolled = np.ascontiguousarray(value.T), np.roll(value, 1, axis=0)
    for other, expected in ((turned, True), (rolled, False)):
        left, right = content(value, whole=True), content(other, whole=True)
        assert may_be_transposed(left, right)
        assert is_transposed(left, right, otherwise=not expected) is expected
