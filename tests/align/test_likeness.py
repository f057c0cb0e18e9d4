"""Calls without partner, matched by what they return: near, clear, in order, or not at all."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.align.alignment import align_calls
from lockstep.core.records import Call, Content, Statistics, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.core.sketch import SKETCH_SIZE

_NOISE = 2e-8


def call(
    number: int,
    op: str,
    seed: int,
    *,
    noise: float = 0.0,
    inputs: tuple[int, ...] = (),
    sketched: bool = True,
    shape: tuple[int, ...] = (16, 32),
) -> Call:
    """A call that returns tensor `seed`, off by a relative `noise`."""
    site = Site("net", op, 0, Phase.FORWARD)
    outputs = [(Role.INPUT, one, 0.0) for one in inputs] + [(Role.OUTPUT, seed, noise)]
    records = []
    for index, (role, what, off) in enumerate(outputs):
        values = np.random.default_rng(what).standard_normal(SKETCH_SIZE)
        values *= 1 + off * np.random.default_rng(number + 1000).standard_normal(SKETCH_SIZE)
        norm = float(np.linalg.norm(values))
        content = Content(
            id=what * 1000 + (number + 1 if off else 0),
            dtype="float32",
            shape=shape,
            device="cpu",
            digest=f"{what} {off} {number if off else ''}",
            statistics=Statistics(values.min(), values.max(), values.mean(), norm, 0, 0, 0),
            sketch_loader=partial(np.asarray, values) if sketched else None,
        )
        at = 0 if role is Role.OUTPUT else index
        name = "result" if role is Role.OUTPUT else f"args.{index}"
        records.append(TensorRecord("rank0", 0, site, role, at, name, number, 0, content))
    return Call(
        number, "rank0", 0, CallKind.OPERATOR, site, "", -1, number, (), {}, False, tuple(records)
    )


def matched(left: list[Call], right: list[Call]) -> dict[int, int]:
    return {
        pair.reference.id: pair.candidate.id
        for pair in align_calls(left, right)
        if pair.reference is not None and pair.candidate is not None
    }


@pytest.mark.parametrize("sketched", [True, False], ids=["sketch", "stats"])
def test_a_fused_operator_stands_against_the_last_of_its_parts(sketched: bool) -> None:
    # given one operator against three, of which the last returns the same up to noise
    left = [call(0, "vendor.fused", 7, sketched=sketched)]
    right = [
        call(0, "torch.mul", 1, sketched=sketched),
        call(1, "torch.exp", 2, sketched=sketched),
        call(2, "torch.sum", 7, noise=_NOISE, sketched=sketched),
    ]
    pairs = align_calls(left, right)
    # then these two correspond, in what they return only, and it is said how that was found
    (pair,) = [one for one in pairs if one.reference is not None]
    assert pair.candidate is right[2]
    assert pair.only_results
    assert pair.method.startswith(
        f"content (nearest {'sketch' if sketched else 'statistics'}, rel "
    )
    assert sum(one.reference is None for one in pairs) == 2


def test_a_difference_beyond_noise_is_no_match() -> None:
    assert matched([call(0, "torch.a", 7)], [call(0, "x", 1), call(1, "y", 7, noise=1e-4)]) == {}


def test_two_tensors_that_are_equally_near_are_left_alone() -> None:
    left = [call(0, "torch.a", 7)]
    right = [call(0, "x", 7, noise=_NOISE), call(1, "y", 7, noise=3 * _NOISE)]
    assert matched(left, right) == {}


def test_matches_that_cross_are_left_alone() -> None:
    left = [call(0, "torch.a", 7), call(1, "torch.b", 8), call(2, "torch.c", 9)]
    right = [call(0, "x", 8), call(1, "y", 7), call(2, "z", 5), call(3, "w", 9)]
    assert matched(left, right) == {2: 3}


def test_another_operator_on_equal_inputs_corresponds_in_results_only() -> None:
    left = [call(0, "torch.a", 1), call(1, "torch.b", 7, inputs=(5,))]
    same = [call(0, "x", 2), call(1, "y", 3), call(2, "torch.Tensor.b", 7, inputs=(5,))]
    other = [call(0, "x", 2), call(1, "y", 3), call(2, "torch.Tensor.b", 7, inputs=(6,))]
    for right, only_results in ((same, False), (other, True)):
        pairs = [one for one in align_calls(left, right) if one.method.startswith("content")]
        assert [one.only_results for one in pairs] == [only_results]


def test_a_crowd_of_tensors_in_one_place_is_not_searched() -> None:
    # given many tensors that statistics cannot tell apart
    left = [call(n, f"a{n}", 7, noise=_NOISE, sketched=False) for n in range(60)]
    right = [call(n, f"b{n}", 7, noise=_NOISE, sketched=False) for n in range(61)]
    assert matched(left, right) == {}


programs = st.lists(st.integers(0, 12), max_size=9, unique=True)


@settings(deadline=None)
@given(programs, programs, st.data())
def test_no_call_is_paired_twice_nor_otherwise_when_sides_are_exchanged(
    ours: list[int], theirs: list[int], data: st.DataObject
) -> None:
    # given two programs of unlike operators, some tensors of which are the same
    left = [call(n, f"left{n}", seed) for n, seed in enumerate(ours)]
    right = [call(n, f"right{n}", seed, noise=_NOISE) for n, seed in enumerate(theirs)]
    forth, back = matched(left, right), matched(right, left)
    # then partners are mutual, in order of time, and hold the same tensor
    assert {j: i for i, j in forth.items()} == back
    assert sorted(forth.values()) == [forth[i] for i in sorted(forth)]
    wrong = [i for i, j in forth.items() if ours[i] != theirs[j]]
    assert not wrong or len(ours) == len(theirs) == 1  # the only call stands in the same place


@given(programs, st.integers(0, 9))
def test_a_call_more_moves_no_other_match(ours: list[int], at: int) -> None:
    left = [call(n, f"left{n}", seed) for n, seed in enumerate(ours)]
    seeds = [*ours[:at], 99, *ours[at:]]
    right = [call(n, f"right{n}", seed, noise=_NOISE) for n, seed in enumerate(seeds)]
    found = matched(left, right)
    assert all(ours[i] == seeds[j] for i, j in found.items())
    assert len(found) == len(ours)
