"""How far an update moves a tensor."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from lockstep.compare.update_model import update_size, update_sketch
from lockstep.core.record import Content, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.core.sketch import sketch_of


def record(values: list[float], *, sketched: bool) -> TensorRecord:
    array = np.array(values, np.float32)
    content = Content(
        id=0,
        dtype="float32",
        shape=array.shape,
        device="cpu",
        digest=None,
        statistics=None,
        sketch_loader=partial(sketch_of, array) if sketched else None,
        loader=None if sketched else lambda: array,
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
