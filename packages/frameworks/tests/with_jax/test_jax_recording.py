"""JAX trainings as they are recorded: mistakes are named, sound pairs agree, and no bit changes."""

from __future__ import annotations

from typing import Any

import pytest

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import CallKind, Phase, Role
from lockstep.report.comparison.verdict_words import headline


def compared(reference: Any, candidate: Any) -> Comparison:
    return lockstep.compare_recordings(reference.path, candidate.path)


@pytest.mark.parametrize("mode", ["hand", "linen"])
def test_recording_changes_no_bit(trained: Any, bare: Any, mode: str) -> None:
    assert trained("jax_training", mode).printed == bare("jax_training", mode)


@pytest.mark.parametrize("mode", ["hand", "linen"])
def test_the_same_training_agrees(trained_here: Any, mode: str) -> None:
    found = compared(
        trained_here("jax_training", mode), trained_here("jax_training", mode, "again")
    )
    assert found.verdict is Verdict.AGREE, headline(found)
    assert found.compared > 300
    assert "judged without running operators of jax again" in headline(found)


@pytest.mark.parametrize(
    ("mode", "fault", "phase", "module", "op"),
    [
        ("hand", "gelu", Phase.FORWARD, "", "jax.mul"),
        ("hand", "rate", Phase.OPTIMIZER, "fc1", "jax.mul"),
        ("linen", "epsilon", Phase.FORWARD, "norm", "jax.add"),
        ("linen", "b1", Phase.OPTIMIZER, "fc1", "jax.mul"),
    ],
)
def test_a_mistake_is_named_with_its_line(
    trained_here: Any, mode: str, fault: str, phase: Phase, module: str, op: str
) -> None:
    found = compared(trained_here("jax_training", mode), trained_here("jax_training", mode, fault))
    print(headline(found))
    assert found.verdict is Verdict.DIVERGED
    origin = found.origins[0]
    assert (origin.step, origin.phase, origin.module, origin.op) == (0, phase, module, op)
    assert "jax_training.py:" in origin.source


def test_forward_backward_and_update_are_recorded(trained_here: Any) -> None:
    rank = lockstep.open(trained_here("jax_training", "linen").path).ranks["rank0"]
    assert list(rank.steps) == [0, 1]
    calls = rank.calls(0)
    # given the product of the first layer, then its parameter has its name
    product = next(call for call in calls if call.site.op == "jax.dot_general")
    assert product.site.module == "fc1"
    assert [record.name for record in product.with_role(Role.INPUT)] == ["args.0", "fc1.kernel"]
    # then operators of the backward are calls of their own, in the module that they are of
    backward = [call for call in calls if call.site.phase is Phase.BACKWARD]
    assert {"fc1", "norm", "fc2"} <= {call.site.module for call in backward}
    # then an update has the parameter before and after it, its gradient and both moments
    update = next(call for call in calls if call.kind is CallKind.OPTIMIZER)
    assert sorted(record.name for record in update.with_role(Role.STATE)) == [
        "fc1.bias|mu", "fc1.bias|nu",
    ]  # fmt: skip
    assert {record.role for record in update.records} == {
        Role.PARAM, Role.PARAM_GRAD, Role.STATE, Role.PARAM_AFTER, Role.STATE_AFTER,
    }  # fmt: skip


def test_what_cannot_be_kept_to_is_said_and_nothing_is_recorded(trained: Any) -> None:
    said = trained("--calibrate", "jax_training", "hand").said
    assert "--calibrate cannot be kept to in a JAX training; leave it out" in said


def test_an_older_release_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = pytest.importorskip("lockstep_frameworks.jax.environment")
    assert environment.why_unsupported() == ""
    monkeypatch.setattr(environment.jax, "__version__", "0.4.30")
    assert "install jax>=0.10" in environment.why_unsupported()
