"""A conversion that one run alone makes is named at its own line, not where its result goes first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict


def record(path: Path, *, half: bool = False, factor: float = 1.0) -> Path:
    """Two steps; with `half` the scores are bfloat16 in the loss, `factor` is of them too."""
    torch.manual_seed(0)
    model, batches = nn.Linear(8, 5), torch.randn(2, 6, 8)
    wanted = torch.randint(5, (2, 6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:2"):
        for batch, labels in zip(batches, wanted, strict=True):
            scores = model(batch)
            if half:
                scores = scores.bfloat16()
            if factor != 1.0:
                scores = scores * factor
            optimizer.zero_grad()
            functional.cross_entropy(scores.reshape(6, 5), labels).backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, *, half: bool = False, factor: float = 1.0) -> Comparison:
    candidate = record(tmp_path / "candidate", half=half, factor=factor)
    return lockstep.compare_recordings(record(tmp_path / "reference"), candidate)


def test_a_loss_in_half_precision_is_named_at_the_conversion(tmp_path: Path) -> None:
    origin = compared(tmp_path, half=True).origins[0]

    assert (origin.kind, origin.op) == (Kind.SETUP, "torch.Tensor.bfloat16")
    assert "bfloat16 in the candidate and float32 in the reference" in origin.reason


def test_an_operator_that_converts_nothing_is_no_conversion(tmp_path: Path) -> None:
    origin = compared(tmp_path, factor=1.5).origins[0]

    assert origin.kind is Kind.FAULT
    assert "bfloat16" not in origin.reason


Change = Callable[[nn.Linear, torch.Tensor], torch.Tensor]


def _as_it_is(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x)


def _with_low_weights(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    """Its product in 16 bits, of weights that stay in 32."""
    low = functional.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
    return low.float()


def _low_in_between(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    return layer(x.bfloat16().float())


def _low_in_a_sum(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    scores = layer(x)
    return scores - scores.detach().bfloat16().mean(-1, keepdim=True, dtype=torch.float32)


def _plain_sum(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    scores = layer(x)
    return scores - scores.detach().mean(-1, keepdim=True, dtype=torch.float32)


class Net(nn.Module):
    """Five layers, each applied as told."""

    def __init__(self, apply: Change) -> None:
        super().__init__()
        self.layers, self.change = nn.ModuleList(nn.Linear(8, 8) for _ in range(5)), apply

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = self.change(layer, torch.tanh(x))
        return x


def trained(path: Path, apply: Change) -> Path:
    """Two steps."""
    torch.manual_seed(0)
    model, batches = Net(apply), torch.randn(2, 6, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:2"):
        for x in batches:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
    return path


def test_16_bit_copies_of_all_weights_are_another_precision_throughout(tmp_path: Path) -> None:
    # given a candidate that computes all products with copies of the weights and inputs in 16 bits
    candidate = trained(tmp_path / "low", _with_low_weights)

    # then its conversions are no operators at fault
    found = lockstep.compare_recordings(trained(tmp_path / "plain", _as_it_is), candidate)
    assert found.other_precision_alone
    assert found.origins == ()


@pytest.mark.parametrize(
    ("sound", "other"), [(_as_it_is, _low_in_between), (_plain_sum, _low_in_a_sum)]
)
def test_numbers_that_go_through_16_bits_alone_are_never_in_agreement(
    tmp_path: Path, sound: Change, other: Change
) -> None:
    # given results in single precision of inputs that were rounded to 16 bits before
    candidate = trained(tmp_path / "low", other)

    # then the conversion is named
    found = lockstep.compare_recordings(trained(tmp_path / "plain", sound), candidate)
    assert found.verdict is Verdict.DIVERGED
    assert "bfloat16" in f"{found.origins[0].op} {found.origins[0].reason}"


def _in_autocast(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return functional.gelu(layer(x)).float()


def _as_autocast_does(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    low = functional.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
    return functional.gelu(low).float()


def _with_one_more(layer: nn.Linear, x: torch.Tensor) -> torch.Tensor:
    low = functional.linear(x.bfloat16(), layer.weight.bfloat16(), layer.bias.bfloat16())
    return functional.gelu(low * 1.0625).float()


def test_conversions_that_autocast_makes_inside_are_no_difference(tmp_path: Path) -> None:
    # Given a training under autocast, the same with its conversions written out, and that with a factor
    recordings = {
        change: trained(tmp_path / change.__name__, change)
        for change in (_in_autocast, _as_autocast_does, _with_one_more)
    }
    # When each is compared with autocast, then the conversions agree and the factor is named
    found = lockstep.compare_recordings(recordings[_in_autocast], recordings[_as_autocast_does])
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    wrong = lockstep.compare_recordings(recordings[_in_autocast], recordings[_with_one_more])
    assert wrong.verdict is Verdict.DIVERGED
