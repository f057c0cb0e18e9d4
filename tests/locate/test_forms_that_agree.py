"""Two ways to write one thing agree, whichever is the reference; a mistake that looks like them is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from chunked_forms import IN_PARTS
from equal_forms import PARTS, STEPS, VIEWS, EqualForms, Form, train
from spelled_forms import CONSTANTS, REJOINED, SPELLINGS
from torch import nn

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict

EACH = [*(VIEWS | PARTS | SPELLINGS | CONSTANTS | REJOINED | IN_PARTS).items()]
WEIGHTS = ("program", "sketch", "tensors", "stats")
NOT_RUN_AGAIN = ("sketch", "stats")
"""Weights at which no step is run again: what only that can tell is not judged."""


def recorded(path: Path, form: Form, save: str, *, in_script: bool) -> Path:
    with lockstep.record(path, steps=f"0:{STEPS}", save=save):
        train(form, in_script=in_script)
    return path


def with_baseline(path: Path, first: int) -> Path:
    """Train against what the script computes of a batch and keeps for the next step."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    baseline = torch.zeros(6, 1)
    with lockstep.record(path, model=model, steps="0:3"):
        for _ in range(3):
            batch = torch.randn(6, 4)
            kept = batch[:, first:].mean(1, keepdim=True)
            loss = (model(batch) - baseline).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            baseline = kept
    return path


def test_what_a_step_does_not_depend_on_is_judged_where_a_later_one_does(tmp_path: Path) -> None:
    # Given a wrong selection of which the script makes what the next step uses
    reference, candidate = (with_baseline(tmp_path / str(first), first) for first in (1, 2))
    found = lockstep.compare_recordings(reference, candidate)
    # Then it is named, though the loss and the gradients of its own step agree
    assert found.verdict is Verdict.DIVERGED
    assert found.origins


@pytest.mark.sampled(61)
@pytest.mark.parametrize("in_script", [False, True], ids=["in a module", "in the script"])
@pytest.mark.parametrize("save", WEIGHTS)
@pytest.mark.parametrize("forms", [pytest.param(forms, id=name) for name, forms in EACH])
def test_equal_forms_agree_and_a_mistake_is_named(
    forms: EqualForms, save: str, in_script: bool, tmp_path: Path
) -> None:
    # Given a training, the same written in another way, and with a mistake that looks like it
    one, other, mistake = (
        recorded(tmp_path / name, getattr(forms, name), save, in_script=in_script)
        for name in ("one", "other", "mistake")
    )

    def compared(reference: Path, candidate: Path) -> Comparison:
        return lockstep.compare_recordings(reference, candidate)

    # When they are compared, either of them being the reference
    for pair in ((one, other), (other, one)):
        found = compared(*pair)
        # Then the two ways agree, and nothing is said to have been set up otherwise
        assert found.origins == ()
        assert found.verdict is Verdict.AGREE or (
            save in NOT_RUN_AGAIN and found.verdict is Verdict.INCOMPARABLE
        )
    for reference in (one, other):
        found = compared(reference, mistake)
        # Then the mistake is named where it is made
        assert found.verdict is Verdict.DIVERGED
        first = found.origins[0]
        assert first.step == 0
        assert first.phase in forms.phases
        assert "_forms.py" in first.source


def hooked(form: Form) -> Form:
    """A form of whose gradient a hook, which no recorded call shows, takes 30 % away."""

    def lossy(written: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient * 0.7)
        return form(written, x)

    return lossy


def partly_detached(form: Form) -> Form:
    """A form that lets a thousandth of the gradient go."""
    return lambda written, x: form(written, x.lerp(x.detach(), 1e-3))


@pytest.mark.sampled(85)
@pytest.mark.parametrize("lossy", [hooked, partly_detached])
@pytest.mark.parametrize("save", ["sketch", "tensors"])
@pytest.mark.parametrize("forms", [pytest.param(forms, id=name) for name, forms in EACH])
def test_a_gradient_that_the_other_way_loses_is_never_agreed_to(
    forms: EqualForms, save: str, lossy: Callable[[Form], Form], tmp_path: Path
) -> None:
    # Given a training, and the same written in another way, whose results are right and whose gradient is not
    one = recorded(tmp_path / "one", forms.one, save, in_script=False)
    other = recorded(tmp_path / "other", lossy(forms.other), save, in_script=False)
    # When they are compared, then they do not agree; whole tensors prove it
    found = lockstep.compare_recordings(one, other)
    assert found.verdict is not Verdict.AGREE
    assert found.verdict is Verdict.DIVERGED or save == "sketch"


@pytest.mark.parametrize("name", ["softmax of a tensor", "a mask's diagonal by default"])
def test_another_setting_is_told_whatever_the_spelling(name: str, tmp_path: Path) -> None:
    # Given an operator that is called in another spelling, and that with another setting, in whole tensors
    forms = SPELLINGS[name]
    right, twin, wrong = (
        recorded(tmp_path / part, getattr(forms, part), "tensors", in_script=False)
        for part in ("one", "other", "mistake")
    )
    # When they are compared, then the other setting is the origin, and the other spelling agrees
    found = lockstep.compare_recordings(right, wrong)
    assert found.origins[0].kind is Kind.SETUP
    assert lockstep.compare_recordings(right, twin).verdict is Verdict.AGREE
