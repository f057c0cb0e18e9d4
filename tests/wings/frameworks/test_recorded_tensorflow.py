"""Comparing recordings of TensorFlow that were made once; TensorFlow itself is not needed.

`tests/fixtures/tensorflow` holds one step of a small network, recorded in eager code and as a function, and twice with
one thing wrong; `tests/wings/frameworks_tensorflow` records such trainings anew.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.verdict_words import headline

FIXTURES = Path(__file__).parents[2] / "fixtures" / "tensorflow"


@cache
def compared(reference: str, candidate: str) -> Comparison:
    return lockstep.compare_recordings(FIXTURES / reference, FIXTURES / candidate)


def test_a_wrong_slope_is_named_with_its_line() -> None:
    found = compared("function", "function-slope")
    assert found.verdict is Verdict.DIVERGED
    (origin,) = found.origins
    assert (origin.step, origin.module, origin.op) == (0, "sequential.act", "tf.LeakyRelu")
    assert origin.source == "small.py:21"
    assert ("negative_slope", "0.1", "0.3") in [
        (one.name.split(" ")[0], one.reference, one.candidate) for one in found.setup
    ]


@pytest.mark.exhaustive
def test_a_wrong_slope_is_named_in_a_function_against_eager_code_too() -> None:
    origin = compared("eager", "function-slope").origins[0]
    assert (origin.module, origin.op) == ("sequential.act", "tf.LeakyRelu")


def test_a_wrong_epsilon_of_the_optimizer_is_named() -> None:
    (origin,) = compared("eager", "eager-adam").origins
    assert origin.op == "keras.optimizers.Adam"
    assert "epsilon is 1e-07 in the reference and 0.001 in the candidate" in origin.reason


def test_eager_code_and_a_function_agree_although_a_bias_has_a_gradient_of_zero() -> None:
    """The bias before a normalisation has a gradient that is rounding alone, of another kind in a graph."""
    found = compared("eager", "function")
    assert found.verdict is Verdict.AGREE
    assert found.compared > 150


def test_the_headline_says_what_was_not_looked_at() -> None:
    said = headline(compared("eager", "function"))
    assert "judged without running operators of tensorflow again" in said
    assert "not recorded: what Grappler rewrites in graphs" in said


@pytest.mark.parametrize("pair", [("function", "function-slope"), ("eager", "eager-adam")])
def test_no_command_is_proposed_that_would_run_an_operator_again(pair: tuple[str, str]) -> None:
    found = compared(*pair)
    assert found.what_next is not None
    assert "replay" not in found.what_next.command
