"""Plain arguments of two calls: which differ, and which are one number with noise."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.align.settings import differing_settings, given_in_one, rounded_apart


@pytest.mark.parametrize(
    ("reference", "candidate", "apart"),
    [
        # what `norm.item()` may give on two devices
        ({"args.1": 0.143905590502}, {"args.1": 0.143905578159}, 8.577e-8),
        ({"a": 2.0, "b": -3.0}, {"a": 2.000002, "b": -3.000003}, 2e-6),
        ({"args.1": 0.5, "args.2": "torch.float32"}, {"args.1": 0.5000001, "args.2": "torch.float64"}, 2e-7),
        # what somebody wrote otherwise
        ({"eps": 1e-5}, {"eps": 1e-6}, 0.0),
        ({"p": 0.1}, {"p": 0.1001}, 0.0),
        ({"a": 1.0, "mode": "tanh"}, {"a": 1.0000001, "mode": "none"}, 0.0),
        ({"a": 1.0, "n": 3}, {"a": 1.0000001, "n": 4}, 0.0),
        ({"a": 1.0}, {"a": 1.0}, 0.0),
    ],
)  # fmt: skip
def test_numbers_that_python_has_from_tensors_are_told_from_those_that_were_written(
    reference: dict[str, Any], candidate: dict[str, Any], apart: float
) -> None:
    # given the arguments of two calls, when those that differ are looked at in either order
    for left, right in ((reference, candidate), (candidate, reference)):
        found = rounded_apart(differing_settings(left, right))
        # then they are as far apart as rounding may bring them, or not by rounding at all
        assert found == pytest.approx(apart, rel=1e-2)


GIVEN = 'approximate is "tanh" in the candidate and left out in the reference'


@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        ({}, {"kwargs.approximate": "tanh"}, [GIVEN]),
        ({"args.1": 3}, {"args.1": 4, "kwargs.approximate": "tanh"}, [GIVEN]),
        # what is given, as it is without
        ({}, {"kwargs.dtype": None}, []),
        ({"kwargs.p": 0.1}, {"kwargs.p": 0.2}, []),
        # the same one by its place and by its name
        ({"args.1": -1}, {"kwargs.dim": -1}, []),
    ],
)
def test_what_one_call_alone_is_given_is_said(
    reference: dict[str, Any], candidate: dict[str, Any], words: list[str]
) -> None:
    assert list(map(str, given_in_one(reference, candidate))) == words
    # and the other way round, of the other one
    turned = [
        one.replace("candidate", "?").replace("reference", "candidate").replace("?", "reference")
        for one in words
    ]
    assert list(map(str, given_in_one(candidate, reference))) == turned
