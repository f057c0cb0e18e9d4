"""Trainings under sessions of TensorFlow 1: the operator at fault is named, fused or not; sound pairs are silent."""

from __future__ import annotations

import sys

import pytest
from conftest import Bare, Trained, command_of, compared, ran

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import Phase, Role
from lockstep.report.comparison.verdict_words import headline

FAULTS = [
    ("slope", "conv1", "tf.LeakyRelu"),
    ("log", "log", "tf.AddV2"),
    ("custom_gradient", "", "tf.IdentityN"),
    ("clip", "clip_by_global_norm", "tf."),
    ("adam", "conv1", "tf.train.Adam"),
]


@pytest.mark.parametrize(("fault", "module", "op"), FAULTS)
def test_the_fault_is_named(trained: Trained, fault: str, module: str, op: str) -> None:
    found = compared(trained("session", "plain"), trained("session", "plain", fault))
    assert found.verdict is Verdict.DIVERGED
    print(headline(found))
    origin = found.origins[0]
    assert origin.step == 0
    assert (origin.module.startswith(module), origin.op.startswith(op)) == (True, True), origin
    assert "session_training.py:" in origin.source


@pytest.mark.parametrize("model", ["session", "session-unfused"])
def test_the_fault_is_named_where_a_logarithm_makes_an_infinity_fused_or_not(
    trained: Trained, model: str
) -> None:
    recording = str(trained(model, "plain", "log").path)
    found = ran("-m", "lockstep", "shell", recording, "-c", "ac").stdout
    print(found)
    assert "out of log / tf.Log #0, forward" in found
    sound = ran("-m", "lockstep", "shell", str(trained(model, "plain").path), "-c", "ac").stdout
    assert sound.startswith("0 results of ")


def test_overflow_names_it_while_the_training_runs(forks: list[str]) -> None:
    command = ["-m", "lockstep", "overflow", "--", sys.executable, *forks]
    found = ran(*command, *command_of("session", "plain", "log"))
    assert found.returncode == 1
    assert "tf.Log" in found.stdout
    assert "session_training.py:47" in found.stdout
    assert ran(*command, *command_of("session", "plain")).returncode == 0


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        (("session", "plain"), ("session", "monitored")),
        (("session", "plain"), ("session", "resource")),
        (("session", "plain"), ("session-unfused", "plain")),
    ],
)
def test_sound_pairs_agree(
    trained: Trained, reference: tuple[str, ...], candidate: tuple[str, ...]
) -> None:
    found = compared(trained(*reference), trained(*candidate))
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    assert found.compared > 60


@pytest.mark.parametrize("mode", ["plain", "resource", "monitored"])
def test_recording_changes_no_bit_of_a_session(
    trained: Trained, bare_weights: Bare, mode: str
) -> None:
    assert trained("session-as-written", mode).weights == bare_weights("session-as-written", mode)


def test_a_session_is_recorded_with_gradients_slots_and_batch(trained: Trained) -> None:
    calls = lockstep.open(trained("session", "plain").path).ranks["rank0"].calls(0)
    records = [record for call in calls for record in call.records]
    roles = {record.role for record in records}
    assert {
        Role.LOSS, Role.PARAM, Role.PARAM_AFTER, Role.STATE, Role.STATE_AFTER, Role.PARAM_GRAD, Role.GRAD_INPUT,
    } <= roles  # fmt: skip
    assert {call.site.phase for call in calls} >= {Phase.DATA, Phase.FORWARD, Phase.OPTIMIZER}
