"""Updates and losses that are wrong in a JAX training: none agrees, and each sound twin does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import CallKind, Phase, Role
from lockstep.report.comparison.verdict_words import headline

SCRIPT = Path(__file__).parent / "jax_updates.py"
UPDATES = ("left out", "kept", "half", "twice", "scaled", "swapped", "crossed", "layer")
BETWEEN = ("outside", "reset", "reset outside")
LOSSES = ("frozen", "term", "stop")


def compared(trained: Any, form: str, *fault: str) -> Comparison:
    sides = trained("jax_updates", form), trained("jax_updates", form, *fault)
    return lockstep.compare_recordings(*(one.path for one in sides))


@pytest.mark.parametrize("fault", [*UPDATES, *BETWEEN, *LOSSES])
@pytest.mark.parametrize("form", ["whole", "nnx", "eqx", "filter", "jits", "eager"])
def test_what_is_wrong_in_an_update_does_not_agree(
    trained_here: Any, form: str, fault: str
) -> None:
    found = compared(trained_here, form, fault)
    assert found.verdict is Verdict.DIVERGED, headline(found)
    assert found.origins[0].step == (1 if fault in ("reset", "reset outside") else 0)


@pytest.mark.parametrize(
    ("form", "fault", "line"),
    [
        ("eager", "scaled", "one * 1.001"),
        ("eager-adamw", "leaf", "leaves[0] * 1.001"),
        ("eager-adamw", "clip", "0.999 * norm"),
        ("eager-adamw", "coupled", "OPTIMIZER.update"),
        ("eager-adamw", "root", "OPTIMIZER.update"),
        ("eager-sgd", "leaf", "leaves[0] * 1.001"),
        ("split-adamw", "scaled", "one * 1.001"),
        ("scan-adamw", "scaled", "one * 1.001"),
        ("scan-sgd", "clip", "0.999 * norm"),
        ("loose", "scaled", "one * 1.001"),
    ],
)  # fmt: skip
def test_a_hair_that_an_optimizer_hides_is_named_with_its_line(
    trained_here: Any, form: str, fault: str, line: str
) -> None:
    # given an update in which Adam takes most of the fault out again
    found = compared(trained_here, form, fault)
    # then the operator is named that makes it, and the same training is silent
    assert found.verdict is Verdict.DIVERGED, headline(found)
    first = found.origins[0]
    assert (first.step, first.phase) == (0, Phase.OPTIMIZER)
    number = int(first.source.partition(" ")[0].rpartition(":")[2])
    assert line in SCRIPT.read_text().splitlines()[number - 1]
    again = compared(trained_here, form, "again")
    assert again.verdict is Verdict.AGREE, headline(again)


@pytest.mark.parametrize("fault", ["decay", "late", "swapped", "kept", "scaled"])
def test_what_is_wrong_beside_an_average_of_parameters_does_not_agree(
    trained_here: Any, fault: str
) -> None:
    found = compared(trained_here, "ema", fault)
    assert found.verdict is Verdict.DIVERGED, headline(found)
    assert (found.origins[0].step, found.origins[0].phase) == (0, Phase.OPTIMIZER)


def test_an_average_is_kept_for_its_parameter_and_is_none(trained_here: Any) -> None:
    calls = lockstep.open(trained_here("jax_updates", "ema").path).ranks["rank0"].calls(0)
    update = next(call for call in calls if call.kind is CallKind.OPTIMIZER)
    assert {one.name.partition("|")[2] for one in update.with_role(Role.STATE)} == {
        "mu", "nu", "ema",
    }  # fmt: skip


@pytest.mark.parametrize(
    "form", ["whole", "nnx", "loose", "eqx", "filter", "jits", "eager", "split", "ema"]
)
def test_the_same_training_agrees_and_no_bit_is_changed(
    trained_here: Any, bare_here: Any, form: str
) -> None:
    found = compared(trained_here, form, "again")
    assert found.verdict is Verdict.AGREE, headline(found)
    assert "between two steps" not in headline(found)
    assert "operators of the update" not in headline(found)
    assert trained_here("jax_updates", form).printed == bare_here("jax_updates", form)


def test_a_change_between_two_steps_that_both_make_is_said_to_be_unseen(trained_here: Any) -> None:
    path = trained_here("jax_updates", "whole", "outside").path
    found = lockstep.compare_recordings(path, path)
    assert "not recorded: " in headline(found)
    assert "what changes parameters between two steps" in headline(found)


@pytest.mark.parametrize("form", ["donate", "jits", "split", "eager"])
def test_another_split_into_functions_agrees(trained_here: Any, form: str) -> None:
    sides = trained_here("jax_updates", "whole"), trained_here("jax_updates", form)
    found = lockstep.compare_recordings(*(one.path for one in sides))
    assert found.verdict is Verdict.AGREE, headline(found)
    assert "operators of the update" not in headline(found)
