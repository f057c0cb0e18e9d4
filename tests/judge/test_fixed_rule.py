"""The fixed rule of the source document, at each of its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
from test_error_model import measured

from lockstep.core.finding import Evidence, Metrics
from lockstep.core.site import Role
from lockstep.judge.fixed_rule import FixedRule, accuracy_reached
from lockstep.judge.protocol import Operation
from lockstep.measure.metrics import IDENTICAL


@pytest.mark.parametrize(
    ("cosine", "max_abs", "reached"),
    [
        (1.0, 0.0, True),
        (0.99, 1.0, True),  # both limits are still inside
        (0.95, 0.001, True),  # a low cosine over tiny values
        (0.95, 0.0011, False),
        (0.9, 0.001, True),
        (0.8999, 0.0, False),
        (1.0, 1.001, False),
        (-1.0, 0.0, False),
        (1.0, math.inf, False),
        (0.5, math.nan, False),  # the cosine alone decides
        (math.nan, 2.0, False),  # the error alone decides
        (0.95, math.nan, None),
        (math.nan, 0.5, None),
        (math.nan, math.nan, None),
    ],
)
def test_the_rule_decides_as_documented(
    cosine: float, max_abs: float, reached: bool | None
) -> None:
    assert accuracy_reached(Metrics(Evidence.TENSORS, cosine=cosine, max_abs=max_abs)) is reached


def test_equal_digests_reach_it() -> None:
    assert accuracy_reached(IDENTICAL) is True


@pytest.mark.parametrize("mismatch", [{"nan_mismatch": 1}, {"inf_mismatch": 1}])
def test_elements_that_are_non_finite_on_one_side_do_not_reach_it(mismatch: dict[str, int]) -> None:
    metrics = Metrics(Evidence.TENSORS, cosine=1.0, max_abs=0.0, **mismatch)
    assert accuracy_reached(metrics) is False


def test_whole_numbers_are_exact_or_named() -> None:
    # given indices of which a few are off by so little that the thresholds for real numbers pass them
    right = np.arange(1000, 2000)
    wrong = right + (np.arange(1000) % 100 == 0)
    indices = measured(right, wrong, Role.OUTPUT)
    scores = np.linspace(0.0, 1.0, 1000, dtype=np.float32)
    same, noisy = measured(scores, scores), measured(scores, scores * np.float32(1.0 + 2.0**-20))

    # then from equal inputs they are wrong, but not where a decision may have flipped
    assert FixedRule().operator(Operation(op="torch.topk", inputs=(same,)), indices).unexplained
    flipped = FixedRule().operator(Operation(op="torch.topk", inputs=(noisy,)), indices)
    assert flipped.beyond_floor
    assert not flipped.unexplained
    # and equal ones are not, nor real numbers as near
    for near in (measured(right, right, Role.OUTPUT), measured(right * 1.0, wrong * 1.0)):
        judgement = FixedRule().operator(Operation(op="torch.topk", inputs=(same,)), near)
        assert not judgement.beyond_floor
