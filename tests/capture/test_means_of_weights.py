"""Means of the weights: a rate that is not the reference's is named after the step, in a window of one state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, UniformChange, Verdict
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.screen import headline
from lockstep_zoom.judging import judged_steps

STEPS, LATE = 16, 8
WINDOWS = f"0:2,{LATE}:{LATE + 2}"

Update = Callable[[list[torch.Tensor], nn.Module, int], None]


def keeps(share: float) -> Update:
    """The usual mean: so much of it stays."""

    def update(mean: list[torch.Tensor], model: nn.Module, _: int) -> None:
        for one, now in zip(mean, model.parameters(), strict=True):
            one.mul_(share).add_(now.detach(), alpha=1 - share)

    return update


def late(other: Update) -> Update:
    """Another update from step `LATE` on."""
    return lambda mean, model, step: (other if step >= LATE else keeps(0.9))(mean, model, step)


def train(update: Update, dtype: torch.dtype = torch.float32) -> None:
    """A plain loop with a mean of its weights in a list."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    mean = [one.detach().clone().to(dtype) for one in model.parameters()]
    for step in range(STEPS):
        inputs = torch.randn(8, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        update(mean, model, step)


def compared(tmp_path: Path, reference: Callable[[], object], candidate: Any) -> Comparison:
    with lockstep.record(tmp_path / "ref", windows=WINDOWS):
        reference()
    with lockstep.record(tmp_path / "cand", start_from=tmp_path / "ref", emulate="reorder"):
        candidate()
    return compare_recordings(tmp_path / "ref", tmp_path / "cand")


def test_another_precision_throughout_hides_no_mean(tmp_path: Path) -> None:
    # given a mean by another rate, and a precision that differs throughout, which is no fault
    other = compared(tmp_path, lambda: train(keeps(0.9)), lambda: train(late(keeps(0.99))))
    found = replace(other, uniform=(UniformChange("inputs round to fp16", ()),))
    windows = tuple(replace(one, left=()) for one in found.windows)

    # then the mean is the answer, and only without it the precision alone
    assert replace(found, windows=windows).other_precision_alone
    assert (found.other_precision_alone, found.exit_code()) == (False, 1)
    assert f"after the update of step {LATE}: what train.mean takes" in headline(found)


def test_a_precision_that_begins_late_is_no_precision_throughout(tmp_path: Path) -> None:
    def autocast(first: int) -> None:
        torch.manual_seed(4)
        model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for step in range(STEPS):
            inputs = torch.randn(16, 16)
            with torch.autocast("cpu", torch.bfloat16, enabled=step >= first):
                loss = nn.functional.cross_entropy(model(inputs), inputs[:, :4].argmax(1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    # given a candidate that computes in 16 bits from a late window on, and one that does so throughout
    late = compared(tmp_path / "late", lambda: autocast(STEPS), lambda: autocast(LATE))
    throughout = compared(tmp_path / "all", lambda: autocast(STEPS), lambda: autocast(0))

    # then the first is a difference of that step, and only the second another precision
    assert (late.verdict, late.exit_code()) == (Verdict.DIVERGED, 1)
    assert f"DIVERGED at step {LATE}, not in each window: results are bfloat16" in headline(late)
    assert judged_steps(late).bad == LATE
    assert throughout.other_precision_alone


def of_weights_before(mean: list[torch.Tensor], model: nn.Module, step: int) -> None:
    """A mean of something else: of half of each weight."""
    for place, (one, now) in enumerate(zip(mean, model.parameters(), strict=True)):
        one.mul_(0.9).add_(now.detach(), alpha=0.1 if place % 2 else 0.2)


@pytest.mark.parametrize(
    ("other", "is_told"),
    [
        (keeps(0.99), "0.01, and 0.1"),
        (keeps(1.0), "nothing, and 0.1"),
        (of_weights_before, "no one share of each, and 0.1"),
    ],
    ids=["another-rate", "stops", "part"],
)
def test_a_mean_by_another_rate_is_named_after_its_step(
    tmp_path: Path, other: Update, is_told: str
) -> None:
    found = compared(tmp_path, lambda: train(keeps(0.9)), lambda: train(late(other)))

    assert found.verdict is Verdict.DIVERGED
    words = (
        f"after the update of step {LATE}: what train.mean takes of the new weights was {is_told}"
    )
    assert f"{words} in the reference" in headline(found)
    (told,) = comparison_json(found)["windows"][1]["left_after_update"]
    assert told["reference"] == "0.1"


@pytest.mark.parametrize(
    ("update", "dtype"),
    [
        (keeps(0.9), torch.float32),
        (keeps(0.9999), torch.float32),
        (keeps(0.9), torch.bfloat16),
        (lambda mean, model, step: keeps(1 / (1 + step))(mean, model, step), torch.float32),
        (lambda mean, model, step: keeps(0.0)(mean, model, step), torch.float32),
        (of_weights_before, torch.float32),
    ],
    ids=["usual", "slow", "bfloat16", "by step", "copy", "no mean"],
)
def test_a_sound_mean_is_silent(tmp_path: Path, update: Update, dtype: torch.dtype) -> None:
    found = compared(tmp_path, lambda: train(update, dtype), lambda: train(update, dtype))

    assert found.verdict is Verdict.AGREE
    assert len(found.windows) == 2


def train_with_model_of_means(share: float) -> None:
    """The same with torch's own class for a mean."""
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    mean: Any = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    for step in range(STEPS):
        if step == LATE:
            mean.multi_avg_fn = get_ema_multi_avg_fn(share)
        inputs = torch.randn(8, 8)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        mean.update_parameters(model)


def test_a_mean_that_is_a_model_is_measured_too(tmp_path: Path) -> None:
    reference = lambda: train_with_model_of_means(0.9)  # noqa: E731

    found = compared(tmp_path / "other", reference, lambda: train_with_model_of_means(0.99))
    silent = compared(tmp_path / "same", reference, reference)

    assert found.verdict is Verdict.DIVERGED
    assert "takes of the new weights was 0.01, and 0.1" in headline(found)
    assert silent.verdict is Verdict.AGREE
    assert silent.windows[1].left == ()
