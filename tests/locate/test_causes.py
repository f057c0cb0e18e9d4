"""One cause is one origin, in its phase, in words; its sound twin has none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_training import Loop, against_sound, compared
from torch import nn

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Kind, Origin, Outcome, Verdict
from lockstep.core.site import Phase
from lockstep.report.comparison.end_words import idle_settings
from lockstep.report.comparison.screen import headline, render_comparison

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
    assert "clipping" in origin.op
    assert not any(word in origin.op for word in ("clip_grad_norm_", "foreach", "stack"))


def test_clipping_of_one_run_only_at_level_aten() -> None:
    # Given the kernels of the optimizer as well, the first of which gets gradients of another size
    origin = only_origin(compared(SOUND, Loop(clip=None), level="aten"))
    assert origin.phase is Phase.BACKWARD
    assert "clipping differs: only the reference scales its gradients" in origin.reason


def test_clipping_to_another_norm() -> None:
    # Given a candidate that clips to a norm of its own choice
    (origin,) = against_sound(Loop(clip=2e-2)).origins
    # Then it is a matter of set-up, with both norms and what comes of them
    assert origin.kind is Kind.SETUP
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


def test_forgotten_clipping_is_the_first_thing_said() -> None:
    # Given a candidate that does not clip, or clips where the reference does not
    for reference, candidate in ((SOUND, Loop(clip=None)), (Loop(clip=None), SOUND)):
        first = headline(compared(reference, candidate))
        # Then the first sentence is about clipping, and not about the calls of which clipping is made
        assert first.startswith("DIVERGED at step 0, backward of the model (gradient between")
        assert "clipping" in first
        assert not any(word in first for word in ("foreach", "stack", "vector_norm"))


def test_clipping_that_never_takes_hold_is_told_under_the_agreement() -> None:
    # Given a run that clips where no gradient is large enough, and one that does not
    for reference, candidate, side in (
        (Loop(clip=1e3), Loop(clip=None), "reference"),
        (Loop(clip=None), Loop(clip=1e3), "candidate"),
    ):
        # When they are compared
        found = compared(reference, candidate)
        # Then all is equal bit by bit, and the clipping is named all the same
        assert (found.verdict, found.origins) == (Verdict.AGREE, ())
        (setting,) = idle_settings(found)
        assert setting.facts.names == ("gradient clipping by norm",)
        assert f"in the {side}, not in the" in setting
        assert all(one.outcome is not Outcome.DIFFER for one in found.findings)
    # But where both clip, nothing is told
    assert compared(Loop(clip=1e3), Loop(clip=1e3)).verdict is Verdict.AGREE


def record_lbfgs(path: Path, *, lr: float = 0.1, **options: int) -> Path:
    torch.manual_seed(0)
    model, inputs = nn.Linear(6, 3), torch.randn(8, 6)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=lr, **options)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        loss.backward()
        return loss.detach()

    with lockstep.record(path, steps="0:2", save="sketch"):
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


def test_a_learning_rate_that_an_optimizer_uses_while_it_evaluates_is_one_origin(
    tmp_path: Path,
) -> None:
    # Given parameters that LBFGS has moved otherwise before its second evaluation in the first step
    sound = record_lbfgs(tmp_path / "sound", max_iter=3)
    found = compare_recordings(sound, record_lbfgs(tmp_path / "other", lr=0.2, max_iter=3))
    # Then the update is named with both values, and no layer that is evaluated with what it left
    origin, *others = found.origins
    assert (found.verdict, origin.kind, origin.phase) == (
        Verdict.DIVERGED,
        Kind.SETUP,
        Phase.OPTIMIZER,
    )
    assert (origin.step, origin.op, origin.tensor) == (0, "torch.optim.LBFGS", "weight")
    assert "lr is 0.1 in the reference and 0.2 in the candidate" in origin.reason
    assert others == []
    # And nothing is said of a tolerance where nothing differs yet
    assert "is 0 times" not in render_comparison(found).plain


class ByHand:
    """Momentum that a script writes out, without a class of torch."""

    def __init__(self, parameters: list[nn.Parameter], momentum: float) -> None:
        self.parameters, self.momentum = parameters, momentum
        self.velocities = [torch.zeros_like(one) for one in parameters]

    @torch.no_grad()
    def step(self) -> None:
        for parameter, velocity in zip(self.parameters, self.velocities, strict=True):
            assert parameter.grad is not None
            velocity.mul_(self.momentum).add_(parameter.grad)
            parameter.sub_(0.05 * velocity)


class Momentum(torch.optim.Optimizer):
    """The same as a class of the user's, with a constant in it that is no option."""

    def __init__(self, parameters: list[nn.Parameter], momentum: float) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.by_hand = ByHand(parameters, momentum)

    def step(self, closure: object = None) -> None:  # type: ignore[override]
        self.by_hand.step()


def record_momentum(path: Path, made: type[ByHand] | type[Momentum], momentum: float) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    inputs, targets = torch.randn(3, 8, 6), torch.randn(3, 8, 3)
    optimizer = made(list(model.parameters()), momentum)
    with lockstep.record(path, model=model, steps="0:3"):
        for batch, target in zip(inputs, targets, strict=True):
            model.zero_grad()
            nn.functional.mse_loss(model(batch), target).backward()
            optimizer.step()
    return path


@pytest.mark.parametrize("made", [ByHand, Momentum])
def test_a_constant_inside_of_a_hand_written_optimizer(
    made: type[ByHand] | type[Momentum], tmp_path: Path
) -> None:
    # Given a momentum of 0.8 for 0.9, which the second update is the first to use
    sound = record_momentum(tmp_path / "sound", made, 0.9)
    found = compare_recordings(sound, record_momentum(tmp_path / "other", made, 0.8))
    # Then that update of a parameter is named, by its gradient that is equal in both runs
    updates = [one for one in found.origins if one.phase is Phase.OPTIMIZER]
    assert (found.verdict, len(updates), updates[0].step) == (Verdict.DIVERGED, 1, 1)
    assert updates[0].tensor in {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert "inputs are bitwise equal, param_after does not agree" in updates[0].reason
    # And where its calls are seen, the one with the constant stands first
    if made is ByHand:
        first = found.origins[0]
        assert (first.step, first.op) == (1, "torch.Tensor.mul_")
        assert "argument 1 is 0.9 in the reference and 0.8 in the candidate" in first.reason
    again = compare_recordings(sound, record_momentum(tmp_path / "again", made, 0.9))
    assert (again.verdict, again.origins) == (Verdict.AGREE, ())


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
