"""Forms of a step: each is recorded, agrees with the plain one where it computes the same, and changes no bit."""

from __future__ import annotations

from typing import Any

import pytest

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.verdict_words import headline

FORMS = (
    "plain",
    "scan",
    "remat",
    "branches",
    "callback",
    "eager",
    "jits",
    "donate",
    "static",
    "method",
)


def compared(reference: Any, candidate: Any) -> Comparison:
    return lockstep.compare_recordings(reference.path, candidate.path)


@pytest.mark.parametrize("form", FORMS)
def test_no_bit_is_changed_and_two_steps_are_recorded(
    trained_here: Any, bare_here: Any, form: str
) -> None:
    recorded = trained_here("jax_forms", form)
    assert recorded.printed == bare_here("jax_forms", form)
    assert list(lockstep.open(recorded.path).ranks["rank0"].steps) == [0, 1]


@pytest.mark.parametrize("form", ["eager", "jits", "donate", "static", "method"])
def test_a_step_agrees_with_the_same_one_in_a_different_form(trained_here: Any, form: str) -> None:
    found = compared(trained_here("jax_forms", "plain"), trained_here("jax_forms", form))
    assert found.verdict is Verdict.AGREE, headline(found)
    assert found.compared > 400


def test_a_loop_agrees_with_the_same_one_computed_again_in_the_backward(trained_here: Any) -> None:
    found = compared(trained_here("jax_forms", "scan"), trained_here("jax_forms", "remat"))
    assert found.verdict is Verdict.AGREE, headline(found)


def test_the_same_step_without_jit_agrees(trained: Any, trained_here: Any) -> None:
    without = trained("jax_forms", "plain", JAX_DISABLE_JIT="1")
    found = compared(trained_here("jax_forms", "plain"), without)
    assert found.verdict is Verdict.AGREE, headline(found)


@pytest.mark.parametrize("form", ["plain", "scan", "remat", "eager"])
def test_a_mistake_in_a_layer_is_named_with_its_line(trained_here: Any, form: str) -> None:
    found = compared(trained_here("jax_forms", form), trained_here("jax_forms", form, "slope"))
    assert found.verdict is Verdict.DIVERGED
    origin = found.origins[0]
    assert (origin.step, origin.phase, origin.op) == (0, Phase.FORWARD, "jax.mul")
    assert "jax_forms.py:38" in origin.source


def test_a_mistake_in_a_gradient_of_the_scripts_own_is_named(trained_here: Any) -> None:
    found = compared(
        trained_here("jax_forms", "branches"), trained_here("jax_forms", "branches", "custom")
    )
    origin = found.origins[0]
    assert (origin.step, origin.phase, origin.op) == (0, Phase.BACKWARD, "jax.mul")


@pytest.mark.parametrize("form", ["plain", "jits", "eager"])
def test_a_mistake_in_the_update_is_named(trained_here: Any, form: str) -> None:
    found = compared(trained_here("jax_forms", form), trained_here("jax_forms", form, "rate"))
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].phase) == (0, Phase.OPTIMIZER)


def test_a_callback_runs_once_and_what_it_gives_is_said_to_be_unseen(trained_here: Any) -> None:
    recorded = trained_here("jax_forms", "callback")
    assert recorded.printed.count("called") == 3
    found = compared(recorded, trained_here("jax_forms", "callback", "again"))
    assert "what callbacks into Python give" in headline(found)


def test_steps_inside_of_a_loop_are_said_to_be_unseen_and_change_no_bit(
    trained: Any, bare_here: Any
) -> None:
    recorded = trained("jax_forms", "looped")
    assert "steps inside of a loop of JAX or of a shard_map" in recorded.said
    assert recorded.printed == bare_here("jax_forms", "looped")
