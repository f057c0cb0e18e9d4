"""Calls of one run alone: named where they could have changed something, silent where nothing depends on them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.remarks import On
from lockstep.core.site import Phase
from lockstep.report.comparison.end_words import idle_settings
from lockstep.report.comparison.lone_calls import unaligned_sentences
from lockstep.report.comparison.screen import headline

FAR = 1e6
"""Beyond all numbers of this training."""


class Wrapper(nn.Module):
    """Passes what it gets on to a module that it does not own."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self._inner = [inner]

    def forward(self, hidden: Tensor) -> Tensor:
        out: Tensor = self._inner[0](hidden)
        return out


def train(extra: str) -> None:
    """Three steps with one thing more than the plain training."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0, enabled=extra == "loss scaling")
    total = torch.zeros(())
    for _ in range(3):
        inputs, targets = torch.randn(5, 6), torch.randint(3, (5,))
        if extra == "checkpoint":
            inputs.requires_grad_()
            hidden = checkpoint(lambda x: model[1](model[0](x)), inputs, use_reentrant=True)
        elif extra == "wrapper":
            hidden = model[1](Wrapper(model[0])(inputs))
        else:
            hidden = model[1](model[0](inputs))
        if extra == "clamped activation":
            hidden = hidden.clamp(-FAR, FAR)
        if extra == "mask with nothing to mask":
            hidden = hidden.masked_fill(hidden > FAR, 0.0)
        outputs = model[2](hidden)
        loss = functional.cross_entropy(outputs, targets)
        loss = loss + 0.0 * outputs.square().mean() if extra == "term of weight 0" else loss
        loss = loss / 1 if extra == "division by 1" else loss
        watch(extra, hidden, outputs, targets, loss, total)
        optimizer.zero_grad(set_to_none=extra != "gradients zeroed in place")
        scaler.scale(loss).backward()
        change(extra, parameters)
        scaler.step(optimizer)
        scaler.update()


def watch(
    extra: str, hidden: Tensor, outputs: Tensor, targets: Tensor, loss: Tensor, total: Tensor
) -> None:
    """What a script looks at while it trains."""
    if extra == "metric":
        (outputs.argmax(1) == targets).float().mean().item()
    if extra == "masked metric":
        (hidden.detach() * torch.ones(5, 1)).mean().item()
    if extra == "loss that is logged":
        total += loss.detach()
    if extra == "check":
        assert torch.isfinite(loss).all()
        assert torch.isfinite(outputs).all()


def change(extra: str, parameters: list[nn.Parameter]) -> None:
    """What a script does between backward and the update."""
    gradients = [one.grad for one in parameters if one.grad is not None]
    norm = torch.zeros(())
    if "norm" in extra:
        norm = torch.sqrt(sum((one.square().sum() for one in gradients), torch.zeros(())))
    if extra == "clipping by norm":
        nn.utils.clip_grad_norm_(parameters, FAR)
    if extra == "clipping by norm, one by one":
        nn.utils.clip_grad_norm_(parameters, FAR, foreach=False)
    if extra == "clipping by norm, by hand":
        for gradient in gradients:
            gradient.mul_(min(1.0, FAR / norm.item()))
    if extra == "clipping by value":
        nn.utils.clip_grad_value_(parameters, FAR)
    if extra == "gradients clamped and put back":
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.clamp(-FAR, FAR)
    if extra == "gradient norm that is logged":
        norm.item()
    if extra == "clipping without a limit, for its norm":
        nn.utils.clip_grad_norm_(parameters, float("inf"))
    if extra == "copies that are clamped for a log":
        for gradient in gradients:
            gradient.clone().clamp_(-FAR, FAR).max().item()
    with torch.no_grad():
        for parameter in parameters:
            if extra == "decay of 0":
                parameter.mul_(1.0)
            if extra.startswith("small decay"):
                parameter.mul_(1 - 1e-5)
            if extra == "clamped weights":
                parameter.clamp_(-FAR, FAR)


@cache
def recorded(extra: str = "") -> Path:
    folder = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    with lockstep.record(folder, steps="0:2"):
        train(extra)
    return folder


@cache
def against_plain(extra: str, *, plain_first: bool = True) -> Comparison:
    runs = (recorded(), recorded(extra))
    return lockstep.compare_recordings(*(runs if plain_first else runs[::-1]))


IDLE = {
    "clipping by norm": "gradient clipping by norm",
    "clipping by norm, one by one": "gradient clipping by norm",
    "clipping by norm, by hand": "gradient clipping by norm",
    "clipping by value": "gradient clipping by value",
    "gradients clamped and put back": "gradient clipping by value",
    "decay of 0": "weight decay by hand",
    "clamped weights": "clipping of weights",
    "clamped activation": "torch.Tensor.clamp",
    "mask with nothing to mask": "torch.Tensor.masked_fill",
    "term of weight 0": "torch.Tensor.add",
}


@pytest.mark.parametrize("plain_first", [True, False])
@pytest.mark.parametrize("extra", IDLE)
def test_what_one_run_does_without_effect_is_told_under_the_agreement(
    extra: str, plain_first: bool
) -> None:
    # Given a run that does something more, which changed nothing in the recorded steps
    found = against_plain(extra, plain_first=plain_first)
    # When it is compared with the plain one, either way round
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    # Then the headline says that there is a setting, and it is named below, by its idiom where it is known
    assert "1 setting changed no number of these steps" in headline(found)
    (remark,) = idle_settings(found)
    assert remark.facts.why is On.CALLS_IDLE
    assert remark.facts.names == (IDLE[extra],)
    assert remark.facts.side == ("candidate" if plain_first else "reference")
    assert "test_lone_effects.py" in remark


def test_a_loss_scale_of_one_run_alone_is_no_agreement() -> None:
    # Given a run with a gradient scaler, whose scale is taken out again bit by bit
    found = against_plain("loss scaling")
    # Then the scaler, which the script goes on with, parts the two
    assert found.verdict is Verdict.DIVERGED
    assert "_enabled" in headline(found)
    assert [one.facts.names for one in found.notes if one.facts.why is On.CALLS_IDLE] == [
        ("loss scaling",)
    ]


BESIDE = (
    "metric",
    "masked metric",
    "loss that is logged",
    "check",
    "gradient norm that is logged",
    "copies that are clamped for a log",
)


@pytest.mark.parametrize("extra", BESIDE)
def test_what_nothing_depends_on_is_said_and_is_no_difference(extra: str) -> None:
    # Given a run that looks at more than the other
    found = against_plain(extra)
    # When they are compared, then they agree
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    # And the headline says that there were calls, and that nothing depends on them
    assert "nothing recorded depends" in headline(found)
    assert all("nothing that is recorded" in one for one in unaligned_sentences(found))


@pytest.mark.parametrize("extra", ["checkpoint", "wrapper"])
def test_what_only_holds_calls_of_both_runs_is_not_said_to_be_of_no_use(extra: str) -> None:
    # Given a run that makes its layers within a checkpoint's function, or within a module more
    found = against_plain(extra)
    # Then they agree, the call is listed, and nobody says that nothing depends on it
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    said = "\n".join(unaligned_sentences(found))
    assert {"checkpoint": "CheckpointFunction", "wrapper": "Wrapper"}[extra] in said
    assert "nothing that is recorded" not in said
    assert "nothing recorded depends" not in headline(found)


@pytest.mark.parametrize(
    "extra",
    ["division by 1", "gradients zeroed in place", "clipping without a limit, for its norm"],
)
def test_what_no_numbers_could_have_made_different_is_no_difference(extra: str) -> None:
    # Given a run that divides by a plain 1, or that zeroes gradients where the other drops them
    found = against_plain(extra)
    # Then it agrees, and the calls are listed
    assert found.verdict is Verdict.AGREE
    assert unaligned_sentences(found)


def test_zeroing_goes_by_its_name() -> None:
    (sentence,) = unaligned_sentences(against_plain("gradients zeroed in place"))
    assert sentence.startswith("zeroing of gradients: the candidate calls torch.Tensor.zero_")


def test_both_runs_clip_by_other_kernels() -> None:
    # Given two runs that clip, by kernels over lists and one by one
    runs = recorded("clipping by norm"), recorded("clipping by norm, one by one")
    # Then they agree
    assert lockstep.compare_recordings(*runs).verdict is Verdict.AGREE


def test_a_change_of_parameters_before_the_update_is_named_where_it_is_made() -> None:
    # Given a run that shrinks parameters a little before the update
    found = against_plain("small decay")
    # When it is compared
    assert found.verdict is Verdict.DIVERGED
    # Then the one origin lies before the update, in the first step, and names the line
    (origin,) = found.origins
    assert (origin.step, origin.phase) == (0, Phase.OPTIMIZER)
    assert "torch.Tensor.mul_ at" in origin.reason
    assert "test_lone_effects.py" in origin.reason
    # And its twin, against itself, is silent
    runs = recorded("small decay"), recorded("small decay, again")
    assert lockstep.compare_recordings(*runs).verdict is Verdict.AGREE
