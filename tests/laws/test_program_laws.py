"""The laws of recordings with `--save program`: what enters a step is whole, all else is known by sketches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from program_trainings import FORMS, Short, halved, off, recorded
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase

STEPS = 3
"""The second and third take what the ones before left, of which there are sketches alone."""


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("reference") / "ref", steps=STEPS)


def compared(reference: Path, candidate: Path) -> Comparison:
    found = lockstep.compare_recordings(reference, candidate)
    assert found.laws is not None
    assert found.laws.steps == STEPS
    return found


def is_judged(found: Comparison) -> bool:
    """Whether the laws were applied to every step."""
    assert found.laws is not None
    return not found.laws.not_judged


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_another_spelling_agrees(reference: Path, tmp_path: Path, form: str) -> None:
    found = compared(reference, recorded(tmp_path / "cand", form, steps=STEPS))
    assert found.verdict is Verdict.AGREE
    assert is_judged(found)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_a_thousandth_behind_another_spelling_diverges(
    reference: Path, tmp_path: Path, form: str
) -> None:
    found = compared(reference, recorded(tmp_path / "cand", form, fault=off, steps=STEPS))
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].phase) == (0, Phase.FORWARD)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_half_of_a_gradient_lost_behind_another_spelling_diverges(
    reference: Path, tmp_path: Path, form: str
) -> None:
    found = compared(reference, recorded(tmp_path / "cand", form, fault=halved, steps=STEPS))
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].step, found.origins[0].phase) == (0, Phase.BACKWARD)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
def test_a_short_update_behind_another_spelling_diverges(
    reference: Path, tmp_path: Path, form: str
) -> None:
    found = compared(reference, recorded(tmp_path / "cand", form, optimizer=Short, steps=STEPS))
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert {(one.step, one.breach.name) for one in found.laws.breaches} == {(0, "leave.weight")}


def test_other_rounding_agrees_step_after_step(reference: Path, tmp_path: Path) -> None:
    # given a training whose every sum is taken in another order, so that each update differs a little
    candidate = recorded(tmp_path / "cand", emulate="reorder", steps=STEPS)

    # then the steps that take those updates agree too
    found = compared(reference, candidate)
    assert found.verdict is Verdict.AGREE
    assert is_judged(found)


def test_an_update_that_goes_wrong_later_is_found_in_its_step(
    reference: Path, tmp_path: Path
) -> None:
    class ShortFromTheSecond(Short):
        """As `Short`, but for its first step."""

        first = True

        def step(self, closure: None = None) -> None:  # type: ignore[override]
            if self.first:
                self.first = False
                super(Short, self).step()
            else:
                super().step()

    found = compared(
        reference, recorded(tmp_path / "cand", optimizer=ShortFromTheSecond, steps=STEPS)
    )
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert {(one.step, one.breach.name) for one in found.laws.breaches} == {(1, "leave.weight")}


def test_without_the_batch_nothing_is_run_and_it_is_said(tmp_path: Path) -> None:
    # given a pair of which no batch was kept
    pair = [
        recorded(tmp_path / form, form, redact=True, steps=STEPS) for form in ("scale", "joined")
    ]

    # then no law is applied, with what would help
    found = compared(*pair)
    assert found.laws is not None
    assert any("record without --redact" in one for one in found.laws.not_judged)


def at_a_kink(path: Path, activation: Callable[[Tensor], Tensor]) -> Path:
    """Record a training in which one element in seven is zero but for rounding before its activation."""
    torch.manual_seed(0)
    enter, leave = nn.Linear(16, 64), nn.Linear(64, 8)
    optimizer = torch.optim.AdamW([*enter.parameters(), *leave.parameters()], 1e-3)
    at_zero = torch.arange(64) % 7 == 0
    with lockstep.record(path, steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            h = enter(torch.randn(32, 16))
            h = h - h.detach() * at_zero + 1e-9 * at_zero
            leave(activation(h)).square().mean().backward()
            optimizer.step()
    return path


def test_elements_at_a_kink_are_no_other_precision(tmp_path: Path) -> None:
    # given a ReLU, and the same by a mask, of elements that another sound run sends the other way
    runs = at_a_kink(tmp_path / "relu", F.relu), at_a_kink(tmp_path / "mask", lambda h: h * (h > 0))

    # then the laws are applied to both ways round, and hold
    for pair in (runs, runs[::-1]):
        found = lockstep.compare_recordings(*pair)
        assert found.verdict is Verdict.AGREE
        assert is_judged(found)
