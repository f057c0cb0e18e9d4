"""MindSpore trainings as they are recorded: mistakes are named, sound pairs agree, and no bit changes."""

from __future__ import annotations

from typing import Any

import pytest

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.manifest import OptimizerSetup
from lockstep.core.site import CallKind, Phase, Role
from lockstep.report.comparison.verdict_words import headline


def compared(reference: Any, candidate: Any) -> Comparison:
    return lockstep.compare_recordings(reference.path, candidate.path)


@pytest.mark.parametrize(
    ("fault", "module", "op"),
    [
        ("slope", "act", "ms.Mul"),
        ("bfloat16", "half", "Half"),
        ("epsilon", "bn", "ms.BatchNorm"),
        ("gelu", "", "ms.GeLU"),
        ("adam", "c1", "mindspore.nn.Adam"),
    ],
)
def test_a_mistake_is_named_with_its_line(trained: Any, fault: str, module: str, op: str) -> None:
    found = compared(trained("functional"), trained("functional", fault))
    assert found.verdict is Verdict.DIVERGED
    print(headline(found))
    (origin,) = found.origins
    assert (origin.step, origin.module, origin.op) == (0, module, op)
    assert "mindspore_training.py:" in origin.source


def test_the_same_training_agrees_also_where_a_cell_makes_its_step(trained: Any) -> None:
    again, cells = trained("functional", "again"), trained("cells")
    for candidate in (again, cells):
        found = compared(trained("functional"), candidate)
        assert found.verdict is Verdict.AGREE, headline(found)
        assert found.compared > 500
        assert "judged without running operators of mindspore again" in headline(found)


def test_recording_changes_no_bit(trained: Any, bare_weights: str) -> None:
    assert trained("functional").printed.split()[-1] == bare_weights


def test_forward_backward_and_update_are_recorded_with_their_setup(trained: Any) -> None:
    rank = lockstep.open(trained("functional").path).ranks["rank0"]
    calls = rank.calls(0)
    conv = next(call for call in calls if call.site.op == "ms.Conv2D")
    # the operator, its parameter by name, and the gradient that enters it
    assert conv.site.module == "c1"
    assert [record.name for record in conv.with_role(Role.INPUT)] == ["args.0", "c1.weight"]
    assert len(conv.with_role(Role.GRAD_OUTPUT)) == 1
    # operators of the backward are calls of their own
    backward = [
        call
        for call in calls
        if call.site.phase is Phase.BACKWARD and call.kind is CallKind.OPERATOR
    ]
    assert len(backward) > 20
    # an update has the parameter before and after it, its gradient and both moments
    update = next(call for call in calls if call.kind is CallKind.OPTIMIZER)
    assert {record.role for record in update.records} == {
        Role.PARAM, Role.PARAM_GRAD, Role.STATE, Role.PARAM_AFTER, Role.STATE_AFTER,
    }  # fmt: skip
    setup: OptimizerSetup = rank.manifest.optimizers[0]
    assert (setup.groups[0]["eps"], setup.groups[0]["learning_rate"]) == (1e-08, 0.01)


def test_of_graphs_nothing_is_seen_and_that_is_said(trained: Any) -> None:
    assert (
        "nothing was recorded: MindSpore was imported, and graph mode is not seen"
        in trained("graph").said
    )
    # of a compiled function inside of a step the rest is recorded, and the headline says what is not
    found = compared(trained("jit"), trained("jit", "again"))
    assert "not recorded: functions under @jit" in headline(found)


def test_a_process_that_trains_with_both_frameworks_has_both_recorded(trained: Any) -> None:
    both = trained("beside-torch")
    assert (
        "this process trains with PyTorch too; the MindSpore training is recorded as rank0-1"
        in both.said
    )
    assert set(lockstep.open(both.path).ranks) == {"rank0", "rank0-1"}


def test_what_cannot_be_kept_to_is_said_and_nothing_is_recorded(trained: Any) -> None:
    said = trained("--calibrate", "functional").said
    assert "--calibrate cannot be kept to in a MindSpore training; leave it out" in said


def test_an_older_release_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = pytest.importorskip("lockstep_frameworks.mindspore.environment")
    assert environment.why_unsupported() == ""
    monkeypatch.setattr(environment.mindspore, "__version__", "2.6.0")
    assert "install mindspore>=2.10" in environment.why_unsupported()
