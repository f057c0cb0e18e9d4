"""Gradients of dropout where some of what arrives is infinite, or what leaves is no number."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replay_bench import altered, judged, loaded, operators, recorded

from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.protocol import Judgement


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Call:
    """Dropout to whose elements, dropped and kept, some infinite gradients arrive."""

    def program() -> None:
        x = torch.linspace(1.0, 2.0, 64, requires_grad=True)
        arriving = torch.ones(64)
        arriving[:16] = math.inf
        (F.dropout(x.sin(), 0.5) * arriving).sum().backward()

    found = operators(recorded(tmp_path_factory.mktemp("dropout") / "ref", program))
    return next(one for one in found if "dropout" in one.site.op)


def judged_with(call: Call, sent: np.ndarray, wrong: str) -> Judgement:
    """What is said of a run that sends this back."""
    runs = [call, altered(call, Role.GRAD_INPUT, 0, sent)]
    found = judged(*(runs if wrong == "candidate" else runs[::-1]), role=Role.GRAD_INPUT)
    assert found.local
    assert found.unexplained is (f"in the {wrong} the gradient is not the incoming" in found.words)
    return found


@pytest.mark.parametrize("wrong", ["candidate", "reference"])
def test_a_wrong_gradient_is_seen_beside_infinite_ones(call: Call, wrong: str) -> None:
    # given a run that sends back a hundredth too much, and (the twin) one that rounds otherwise
    sent = loaded(call, Role.GRAD_INPUT).numpy()
    for factor, seen in ((1.01, True), (1.0 + 2.0**-23, False)):
        # when they are held, then the first alone is wrong
        found = judged_with(call, sent * np.float32(factor), wrong)
        assert found.unexplained is seen


@pytest.mark.parametrize("wrong", ["candidate", "reference"])
def test_no_number_is_wrong_where_there_is_one_and_right_at_a_dropped_infinity(
    call: Call, wrong: str
) -> None:
    # given gradients of which a finite one, an infinite one, or the infinite ones that were dropped are replaced
    sent, kept = loaded(call, Role.GRAD_INPUT).numpy(), loaded(call, Role.OUTPUT).numpy() != 0
    infinite = np.arange(64) < 16
    for where, value, seen in (
        (np.flatnonzero(~infinite)[0], math.nan, True),
        (np.flatnonzero(infinite & kept)[0], 1.0, True),
        (np.flatnonzero(infinite & ~kept), 1.0, True),
        (np.flatnonzero(infinite & ~kept), 0.0, False),
        (np.flatnonzero(infinite & ~kept), math.nan, False),
    ):
        other = sent * np.float32(1.0 + 2.0**-23)
        other[where] = value
        # when they are held, then what multiplies by zero as some kernels do is right, and all else is not
        assert judged_with(call, other, wrong).unexplained is seen
