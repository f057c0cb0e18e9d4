"""Gradients of dropout where some of what arrives is infinite."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from replay_bench import altered, judged, loaded, operators, recorded

from lockstep.core.site import Role


@pytest.mark.parametrize("wrong", ["candidate", "reference"])
def test_a_wrong_gradient_of_dropout_is_seen_beside_infinite_ones(
    tmp_path: Path, wrong: str
) -> None:
    # given gradients that arrive at dropped elements and at kept ones, of which some are infinite
    def program() -> None:
        x = torch.linspace(1.0, 2.0, 64, requires_grad=True)
        arriving = torch.ones(64)
        arriving[:16] = math.inf
        (F.dropout(x.sin(), 0.5) * arriving).sum().backward()

    (call,) = (
        one for one in operators(recorded(tmp_path / "ref", program)) if "dropout" in one.site.op
    )
    sent = loaded(call, Role.GRAD_INPUT).numpy()
    # when one run sends back a hundredth too much, and when (the twin) it rounds otherwise
    for factor, seen in ((1.01, True), (1.0 + 2.0**-23, False)):
        runs = [call, altered(call, Role.GRAD_INPUT, 0, sent * np.float32(factor))]
        found = judged(*(runs if wrong == "candidate" else runs[::-1]), role=Role.GRAD_INPUT)
        # then the first alone is wrong, in that run
        assert found.local
        assert found.unexplained is seen
        assert (f"in the {wrong} the gradient is not the incoming one" in found.words) is seen
