"""How far an update moves a tensor."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from lockstep.core.finding import Pair
from lockstep.core.records import Content, Statistics, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.core.sketch import sketch_of
from lockstep.judge.update_model import inherited_bound, update_size, update_sizes, update_sketch
from lockstep.measure.measured_pair import measure_pair


def record(values: list[float], *, sketched: bool, whole: bool = False) -> TensorRecord:
    array = np.array(values, np.float32)
    numbers = array.min(), array.max(), array.mean(), np.linalg.norm(array)
    content = Content(
        id=0,
        dtype="float32",
        shape=array.shape,
        device="cpu",
        digest=None,
        statistics=Statistics(*map(float, numbers), nan_count=0, inf_count=0, zero_count=0),
        sketch_loader=partial(sketch_of, array) if sketched else None,
        loader=None if sketched and not whole else lambda: array,
    )
    site = Site("", "torch.optim.SGD", 0, Phase.OPTIMIZER)
    return TensorRecord("rank0", 0, site, Role.PARAM, 0, "weight", 0, 0, content)


@pytest.mark.parametrize("sketched", [True, False])
def test_an_update_is_as_large_as_what_it_adds(sketched: bool) -> None:
    before, after = (record(values, sketched=sketched) for values in ([1.0, 2.0], [4.0, 6.0]))
    assert update_size(before, after) == pytest.approx(5.0, rel=0.3 if sketched else 1e-9)
    assert (update_sketch(before, after) is not None) is sketched


@pytest.mark.parametrize("sketched", [True, False])
def test_between_tensors_of_two_shapes_nothing_is_known(sketched: bool) -> None:
    # given what a hostile recording calls the same parameter before and after
    before = record([1.0, 2.0], sketched=sketched)
    after = record([1.0, 2.0, 3.0], sketched=sketched)
    assert update_size(before, after) == 0.0
    assert update_sketch(before, after) is None


@pytest.mark.parametrize("sketched", [True, False])
def test_sizes_to_be_held_against_each_other_are_from_one_source(sketched: bool) -> None:
    # given the same update, of whole tensors on one side, with sketches besides or without on the other
    draw = np.random.default_rng(0).normal(size=(2, 5000))
    exact = tuple(record(list(values), sketched=False) for values in draw)
    other = tuple(record(list(values), sketched=sketched, whole=True) for values in draw)
    # then both have one size, though the sketches' is another
    one, two = update_sizes(exact, other)  # type: ignore[arg-type]
    assert one == two == pytest.approx(np.linalg.norm(draw[1] - draw[0]))
    assert (update_size(*other) == one) is not sketched
    # and where nothing is whole and one side has no sketch nothing is known
    sketches = tuple(record(list(values), sketched=True) for values in draw)
    assert update_sizes(exact, sketches)[1] == 0.0  # type: ignore[arg-type]
    assert min(update_sizes(sketches, sketches)) > 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("state", "is_square"), [("row_var", True), ("variance", True), ("own", False)]
)
def test_a_state_of_squares_may_be_off_by_what_its_gradients_are_off(
    state: str, is_square: bool
) -> None:
    # given gradients that differ by rounding, and a state of them that one run alone has a third larger
    gradients = [record([1.0, 2.0, 2.0 + more], sketched=False) for more in (0.0, 1e-6)]
    states = [record([1.0, 4.0, 4.0 * more], sketched=False) for more in (1.0, 1.3)]
    entered = measure_pair(Pair(*(replace(one, role=Role.PARAM_GRAD) for one in gradients)))
    left = measure_pair(
        Pair(*(replace(one, role=Role.STATE_AFTER, name=f"weight|{state}") for one in states))
    )
    # when it is asked how far it may be off for that reason
    bound = inherited_bound([entered], left, None, margin=1.0)
    # then it is no more than squares follow, where the state is known to hold squares
    assert (bound < 1e-3 < left.distance) is is_square
