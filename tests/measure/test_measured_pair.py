"""Measuring many sketched pairs at once says the very same as measuring them one by one."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.finding import Pair
from lockstep.core.records import Content, Statistics, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.core.sketch import distance, distances, sketch_of
from lockstep.measure.measured_pair import measure_pair, sketched_distances

_SITE = Site("net", "torch.add", 0, Phase.FORWARD)
_numbers = itertools.count()


def record(
    values: Any, digest: str | None, *, sketched: bool = True, whole: bool = False
) -> TensorRecord:
    with np.errstate(all="ignore"):
        norm = float(np.sqrt((values**2).sum()))
        sketch = sketch_of(values)
    content = Content(
        next(_numbers),
        "float64",
        values.shape,
        "cpu",
        digest,
        Statistics(values.min(), values.max(), values.mean(), norm, 0, 0, 0),
        partial(np.asarray, sketch) if sketched else None,
        loader=partial(np.asarray, values) if whole else None,
    )
    return TensorRecord("rank0", 0, _SITE, Role.OUTPUT, 0, "", 0, 0, content)


@st.composite
def pairs(draw: st.DrawFn) -> Pair:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = 10.0 ** draw(st.sampled_from([-200, -3, 0, 5, 300]))
    left = random.standard_normal(draw(st.sampled_from([5, 300, 5000]))) * size
    right = left * (1 + 10.0 ** draw(st.integers(-9, 1)) * random.standard_normal(left.shape))
    same = draw(st.booleans())
    sides = [
        record(values, digest, sketched=draw(st.booleans()), whole=draw(st.booleans()))
        for values, digest in ((left, "same"), (left if same else right, "same" if same else None))
    ]
    return Pair(*sides)


@settings(deadline=None, max_examples=80)
@given(some=st.lists(pairs(), max_size=4), read_tensors=st.booleans())
def test_pairs_measured_at_once_are_measured_alike(some: list[Pair], read_tensors: bool) -> None:
    found = list(sketched_distances(some, read_tensors=read_tensors))
    assert len(found) == len(some)
    for pair, sketched in zip(some, found, strict=True):
        at_once = measure_pair(pair, read_tensors=read_tensors, sketched=sketched)
        alone = measure_pair(pair, read_tensors=read_tensors)
        assert repr(at_once) == repr(alone)  # to the last bit; repr, as NaN equals nothing


def test_more_pairs_than_fit_in_one_go_are_all_measured() -> None:
    left, right = record(np.ones(9), "left"), record(np.full(9, 2.0), "right")
    found = list(sketched_distances([Pair(left, right)] * 2500, read_tensors=False))
    assert found == [3.0] * 2500


@settings(deadline=None)
@given(seed=st.integers(0, 2**32), size=st.sampled_from([1e-300, 1.0, 1e200, 1e307]))
def test_distances_at_once_are_those_one_by_one(seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    left, right = random.standard_normal((2, 7, 256)) * size
    with np.errstate(all="ignore"):
        alone = [distance(one, other) for one, other in zip(left, right, strict=True)]
    assert distances(list(left), list(right)) == alone
    assert distances([], []) == []
