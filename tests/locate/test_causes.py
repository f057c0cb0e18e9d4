"""One cause is one origin, in its phase, in words; its sound twin has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_training import Loop, against_sound, compared
from torch import nn

import lockstep
from lockstep.core.finding import Comparison, Kind, Origin, Verdict
from lockstep.core.site import Phase
from lockstep.locate.run import compare_recordings

SOUND = Loop()


def only_origin(found: Comparison) -> Origin:
    """The one fault."""
    assert [origin.kind for origin in found.origins] == [Kind.FAULT]
    return found.origins[0]


@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_gradients_that_were_not_zeroed(save: str) -> None:
    # Given a candidate without zero_grad
    found = against_sound(Loop(zero_grad=False, steps=3), save)
    # Then that is the one origin, where a step first holds the one before
    origin = only_origin(found)
    assert (origin.step, origin.phase) == (1, Phase.BACKWARD)
    assert "gradients were not zeroed in the candidate" in origin.reason
    assert "each holds the previous step's as well" in origin.reason


def test_gradients_that_the_reference_does_not_zero() -> None:
    found = compared(Loop(zero_grad=False, steps=3), Loop(steps=3))
    assert "gradients were not zeroed in the reference" in only_origin(found).reason


def test_two_runs_that_both_gather_gradients_agree() -> None:
    gathering = Loop(zero_grad=False, steps=3)
    assert compared(gathering, gathering).verdict is Verdict.AGREE


@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_clipping_of_one_run_only(save: str) -> None:
    # Given a candidate that does not clip
    origin = only_origin(against_sound(Loop(clip=None), save))
    # Then it is said in its phase, with the factor that all gradients share
    assert origin.phase is Phase.BACKWARD
    assert "clipping differs: only the reference scales its gradients" in origin.reason
    assert "clip_grad_norm_" not in origin.op


def test_clipping_of_one_run_only_at_level_aten() -> None:
    # Given the kernels of the optimizer as well, the first of which gets gradients of another size
    origin = only_origin(compared(SOUND, Loop(clip=None), level="aten"))
    assert origin.phase is Phase.BACKWARD
    assert "clipping differs: only the reference scales its gradients" in origin.reason


def test_clipping_to_another_norm() -> None:
    origin = only_origin(against_sound(Loop(clip=2e-2)))
    assert "clipping differs: the reference multiplies all by" in origin.reason
    assert "0.01 in the reference and 0.02 in the candidate" in origin.reason


DOUBLED = {
    "loss": Loop(loss=2.0, clip=None),
    "behind backward": Loop(gradients=2.0, clip=None),
    "behind backward, then clipped": Loop(gradients=2.0),
    "undivided loss": Loop(divide=False, clip=None),
}


@pytest.mark.parametrize("name", DOUBLED)
def test_all_gradients_doubled(name: str) -> None:
    # Given a candidate whose gradients are all doubled somewhere
    loop = DOUBLED[name]
    found = compared(replace(SOUND, clip=loop.clip), loop)
    # Then the factor is said at the one origin, wherever that lies
    origin = only_origin(found)
    said = "scales its gradients between backward and optimizer, all by 2" in origin.reason
    assert said or "every gradient is 2.00 times the reference's" in origin.reason
    assert origin.phase is (Phase.BACKWARD if "behind" in name else Phase.FORWARD)
    assert "args.0.0" not in origin.reason


def test_loss_scaling_that_is_taken_out_before_clipping_is_set_up() -> None:
    (origin,) = against_sound(Loop(scaler=True)).origins
    assert (origin.kind, origin.op) == (Kind.SETUP, "loss scaling")
    # But a loss that is scaled and never unscaled is a fault, which clipping hides
    origin = only_origin(against_sound(Loop(loss=1024.0)))
    assert "loss scaling" not in origin.reason


def record_lbfgs(path: Path, **options: int) -> Path:
    torch.manual_seed(0)
    model, inputs = nn.Linear(6, 3), torch.randn(8, 6)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss.detach()

    with lockstep.record(path, steps=2, save="sketch"):
        for _ in range(2):
            optimizer.step(closure)
    return path


def test_options_that_make_an_optimizer_evaluate_more_often_are_named(tmp_path: Path) -> None:
    sound = record_lbfgs(tmp_path / "sound", max_iter=3)
    found = compare_recordings(sound, record_lbfgs(tmp_path / "other", max_iter=2))
    origin = found.origins[0]
    assert origin.kind is Kind.SETUP
    assert "max_iter is 3 in the reference and 2 in the candidate" in origin.reason
    assert (
        "the number of backward passes differs: 3 in this step of the reference, 2" in origin.reason
    )
    again = compare_recordings(sound, record_lbfgs(tmp_path / "again", max_iter=3))
    assert again.verdict is Verdict.AGREE


@pytest.mark.parametrize("decay", [0.0, 2e-5])
def test_a_decay_by_hand_that_the_next_step_alone_shows_is_no_noise(decay: float) -> None:
    # Given parameters that the script makes smaller behind the optimizer, in the two runs by other amounts
    found = compared(Loop(decay=1e-5), Loop(decay=decay))
    origin = only_origin(found)
    assert origin.phase is Phase.OPTIMIZER
    assert "at the next step does not agree" in origin.reason


def test_gradients_that_one_run_turns_before_it_clips_them() -> None:
    # Given gradients that one run changes otherwise than by a factor: a hook, or a reduction over ranks
    origin = only_origin(against_sound(Loop(turned=True)))
    assert (origin.phase, origin.module) == (Phase.BACKWARD, "leave")
    assert "the gradient of leave.weight is changed between backward and optim" in origin.reason


def test_a_stray_detach_is_one_origin() -> None:
    # Given a branch that is cut from the graph, whose layer gets no gradient then
    found = against_sound(Loop("detached"))
    # Then the cut is the one origin, not what lacks its gradient
    origin = only_origin(found)
    assert "the graph is cut here" in origin.reason
    assert origin.module == "blocks.1"


def test_a_layer_in_half_precision_is_said_of_the_forward_pass() -> None:
    # Given a candidate that computes one layer in bfloat16, by hand
    found = against_sound(Loop("half a layer"))
    # Then the first place in order of execution is named, once, and no graph is said to be cut
    assert len(found.origins) == 1
    origin = found.origins[0]
    assert (origin.phase, origin.module.rpartition(".fc")[0] or origin.module) == (
        Phase.FORWARD,
        "blocks.1",
    )
    assert "bfloat16 in the candidate" in origin.reason
    assert "cut" not in origin.reason


def test_two_causes_are_two_origins() -> None:
    # Given a candidate that leaves a residual out, and has another learning rate
    found = against_sound(Loop("no residual", lr=2e-2))
    # Then both are named
    assert [origin.kind for origin in found.origins] == [Kind.FAULT, Kind.SETUP]
