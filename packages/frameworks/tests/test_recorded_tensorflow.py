"""Comparing recordings of TensorFlow that were made once; TensorFlow itself is not needed.

`fixtures/tensorflow` holds one step of a small network, recorded in eager code and as a function, and twice with
one thing wrong, of `with_tensorflow/tensorflow_fixture.py` under the name `small.py`.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.verdict_words import headline
from lockstep_gate.nearest import machine_of

FIXTURES = Path(__file__).parent / "fixtures" / "tensorflow"


@cache
def compared(reference: str, candidate: str) -> Comparison:
    return lockstep.compare_recordings(FIXTURES / reference, FIXTURES / candidate)


def test_a_wrong_slope_is_named_with_its_line() -> None:
    found = compared("function", "function-slope")
    assert found.verdict is Verdict.DIVERGED
    (origin,) = found.origins
    assert (origin.step, origin.module, origin.op) == (0, "sequential.act", "tf.LeakyRelu")
    assert origin.source == "small.py:33"
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


def test_what_would_run_an_operator_again_is_refused_in_a_sentence() -> None:
    recording = lockstep.open(FIXTURES / "eager")
    with pytest.raises(
        UsageError, match="a training of tensorflow, and Lockstep can run operators"
    ):
        recording.check_can_run_again()


def test_a_page_is_drawn_of_a_pair_that_does_not_tell_every_number(tmp_path: Path) -> None:
    """These recordings were made before subnormal numbers were counted."""
    page = tmp_path / "page.html"
    main(["report", str(FIXTURES / "function"), str(FIXTURES / "function-slope"), "-o", str(page)])
    assert "tf.LeakyRelu" in page.read_text(encoding="utf-8")


def test_check_names_the_option_of_the_optimizer_and_blames_no_earlier_build(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["check", str(FIXTURES / "eager"), str(FIXTURES / "eager-adam")])
    said = " ".join(capsys.readouterr().out.split())
    assert "epsilon: 1e-07 in the reference, 0.001 in the candidate" in said
    assert "seeds and random states: a recording does not tell it" in said


def test_a_golden_is_named_by_its_framework() -> None:
    name = machine_of(lockstep.open(FIXTURES / "function")).name
    assert "tensorflow2." in name
    assert "torch" not in name
