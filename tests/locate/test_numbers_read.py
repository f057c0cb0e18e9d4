"""Arguments that Python makes of numbers which it read out of tensors: they carry the noise of these, and no more."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.align.settings import NumbersRead, is_made_of
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.manifest import NumberRead, StepSummary
from lockstep.report.comparison.verdict_words import headline

Uses = Callable[[list[nn.Parameter], torch.optim.Optimizer, Tensor, float], None]
"""What a script does between backward and update; the last argument is a factor that is 1 where all is right."""


def clipped(parameters: list[nn.Parameter], _: object, loss: Tensor, factor: float) -> None:
    """Clip gradients by hand, as scripts did before `clip_grad_norm_`."""
    squares = [one.grad.float().square().sum() for one in parameters if one.grad is not None]
    norm = torch.stack(squares).sum().sqrt().item()
    for one in parameters:
        assert one.grad is not None
        one.grad.mul_(factor * 0.1 / (norm + 1e-6))


def scheduled(_: object, optimizer: torch.optim.Optimizer, loss: Tensor, factor: float) -> None:
    """A rate by the size of the loss."""
    optimizer.param_groups[0]["lr"] = factor * 1e-3 * loss.item()


def recorded(
    path: Path, use: Uses, dtype: torch.dtype, factor: float = 1.0, emulate: str = ""
) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(24, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 6)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 1e-3)
    with lockstep.record(path, model=net, steps="0:2", emulate=emulate):
        torch.manual_seed(1)
        for _ in range(2):
            inputs, labels = torch.randn(32, 24), torch.arange(32) % 6
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype is torch.bfloat16):
                loss = F.cross_entropy(net(inputs).float(), labels)
            loss.backward()
            use(list(net.parameters()), optimizer, loss, factor)
            optimizer.step()
    return path


def compared(folder: Path, use: Uses, dtype: torch.dtype, factor: float) -> Comparison:
    """The training on two devices, the second of which has the factor."""
    reference = recorded(folder / "reference", use, dtype)
    return lockstep.compare_recordings(
        reference, recorded(folder / "candidate", use, dtype, factor, emulate="reorder")
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("use", [clipped, scheduled])
def test_what_is_made_of_numbers_read_carries_their_noise(
    tmp_path: Path, use: Uses, dtype: torch.dtype
) -> None:
    # given a sound training on two devices, in which Python makes an argument of a number that it read
    found = compared(tmp_path, use, dtype, 1.0)
    # then nothing is set otherwise
    assert found.verdict is Verdict.AGREE, [str(one.finding.reason) for one in found.origins]


def clipped_by_tensors(
    parameters: list[nn.Parameter], _: object, loss: Tensor, factor: float
) -> None:
    """Clip gradients by hand without a number of Python's."""
    norm = torch.stack([one.grad.norm() for one in parameters if one.grad is not None]).norm()
    share = torch.clamp(factor * 0.1 / (norm + 1e-6), max=1.0)
    for one in parameters:
        assert one.grad is not None
        one.grad.mul_(share)


def test_what_a_script_does_with_gradients_is_no_part_of_their_backward(tmp_path: Path) -> None:
    # given a script that clips by tensors, and a candidate that clips 3 % above
    reference = recorded(tmp_path / "reference", clipped_by_tensors, torch.float32)
    candidate = recorded(tmp_path / "candidate", clipped_by_tensors, torch.float32, 1.03)
    # then the line is named, by where it stands
    found = headline(lockstep.compare_recordings(reference, candidate))
    assert "step 0, between backward and update (torch.Tensor.__rtruediv__)" in found


@pytest.mark.parametrize("use", [clipped, scheduled])
def test_a_number_that_is_made_otherwise_is_told(tmp_path: Path, use: Uses) -> None:
    # given a candidate that makes it 3 % larger, under bfloat16 autocast
    found = compared(tmp_path, use, torch.bfloat16, 1.03)
    # then it is named where it goes in
    assert found.verdict is Verdict.DIVERGED
    assert "is" in str(found.origins[0].finding.reason)
    # and a place that is no part of the model is not called its forward
    assert (use is clipped) == (
        "between backward and update (torch.Tensor.mul_)" in headline(found)
    )


class Held:
    """Numbers that a script keeps in tensors which no call takes, and reads."""

    def __init__(self, number: float) -> None:
        self._number = torch.tensor(number)

    def weighted(self, parameters: list[nn.Parameter], *_: object) -> None:
        for one in parameters:
            assert one.grad is not None
            one.grad.mul_(self._number.item())

    def scheduled(self, _: object, optimizer: torch.optim.Optimizer, *rest: object) -> None:
        optimizer.param_groups[0]["lr"] = 1e-3 * float(self._number)


@pytest.mark.parametrize("use", [Held.weighted, Held.scheduled])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_number_that_the_script_keeps_in_a_tensor_is_set(
    tmp_path: Path, use: Callable[..., None], dtype: torch.dtype
) -> None:
    # given a candidate whose script keeps another number, 2 % larger, which Python reads as any other
    pair = [
        recorded(tmp_path / str(number), partial(use, Held(number)), dtype, emulate=emulate)
        for number, emulate in ((0.5, ""), (0.51, "reorder"))
    ]
    # then it was set otherwise: no call has made that number
    assert lockstep.compare_recordings(*pair).verdict is Verdict.DIVERGED


def summary(step: int, *numbers: float) -> StepSummary:
    """A step in which these were read, the first out of content 0."""
    return StepSummary(step, numbers_read=[NumberRead(one, at) for at, one in enumerate(numbers)])


JUDGED = {(0, 0), (1, 1)}


@pytest.mark.parametrize(
    ("reference", "candidate", "ratios"),
    [
        ([summary(0, 2.0), summary(1, 4.0)], [summary(0, 2.0), summary(1, 4.4)], [1.1]),
        ([summary(0, 2.0), summary(1, 4.0)], [summary(0, 2.5), summary(1, 4.4)], [1.25, 1.1]),
        ([summary(1, 4.0)], [summary(1, 4.4, 5.0)], []),  # which of both?
        ([summary(1, 0.1)], [summary(1, -0.1)], []),
        ([summary(1)], [summary(1)], []),
        (
            [summary(1, 0.5, 0.5, 4.0)],
            [summary(1, 0.5, 0.5, 4.4)],
            [],
        ),  # whose content was not judged
        ([], [], []),
    ],
)
def test_how_far_numbers_read_are_apart(
    reference: list[StepSummary], candidate: list[StepSummary], ratios: list[float]
) -> None:
    found = NumbersRead(reference, candidate).ratios(1, JUDGED)
    assert [math.exp(one) for one in found] == pytest.approx(ratios)


@given(
    read=st.floats(1e-3, 1e3), noise=st.floats(1e-6, 0.05), factor=st.floats(1e-3, 1e3),
    power=st.sampled_from([1.0, -1.0, 0.5, 2.0]), off=st.sampled_from([1.03, 0.97]),
)  # fmt: skip
def test_a_multiple_of_a_power_is_made_of_it_and_another_number_is_not(
    read: float, noise: float, factor: float, power: float, off: float
) -> None:
    # given a number that two runs read, and what each makes of it
    other = read * (1 + noise)
    left, right = factor * read**power, factor * other**power
    ratios = NumbersRead([summary(0, read)], [summary(0, other)]).ratios(0, JUDGED)
    # then these are made of it
    assert is_made_of(left, right, ratios)
    # and not what one run makes otherwise, unless it is as far off as such a power
    apart = math.log(right * off / left) / ratios[0]
    assert is_made_of(left, right * off, ratios) == any(
        math.isclose(apart, one, rel_tol=0.01) for one in (1.0, -1.0, 0.5, -0.5, 2.0, -2.0)
    )
