"""Storages that the training resizes, frees, swaps and fills again while it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from harness import Role, Training, calls, check, supervised
from torch import Tensor, nn

LARGE = 40
"""Width from which on a weight is more than a handful of numbers, and is measured where it lies."""


class Block(nn.Module):
    """Frees what it computed and computes it anew, as FSDP and checkpointing do with storages."""

    def __init__(self, after: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(LARGE, LARGE), nn.Linear(LARGE, LARGE)
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        out: Tensor = self.second(hidden)
        self.after(x)
        return out


def _grown(x: Tensor) -> None:
    buffer = torch.empty(0)
    torch.mul(x, 2, out=buffer)
    storage = buffer.untyped_storage()
    storage.resize_(4 * storage.nbytes())
    buffer.resize_(3 * LARGE, LARGE).zero_()


def _freed_and_filled_again(x: Tensor) -> None:
    copy = x * 3
    kept, size = copy.clone(), copy.untyped_storage().nbytes()
    copy.exp()
    copy.untyped_storage().resize_(0)
    copy.untyped_storage().resize_(size)
    with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(copy):
        copy.copy_(kept)
    copy.exp()


def _set(x: Tensor) -> None:
    here, there = x + 1, x + 2
    here.set_(there.untyped_storage(), 0, (LARGE,), (1,))
    here.exp()


OPERATIONS = {"grown": _grown, "freed": _freed_and_filled_again, "set": _set}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("save", ["sketch", "tensors"])
@pytest.mark.parametrize("level", ["module", "api", "aten"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_a_recorded_storage_can_be_resized(
    name: str, level: str, save: str, tmp_path: Path
) -> None:
    # given a model that resizes, frees or replaces the storages of tensors that were recorded
    def build() -> Training:
        model = Block(OPERATIONS[name])
        return supervised(model, lambda: (torch.randn(16, LARGE),))

    # when it is recorded, then it trains as it does without
    check(build, tmp_path / "recording", level=level, save=save)


@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_parameters_can_be_swapped_between_backward_and_update(level: str, tmp_path: Path) -> None:
    # given a step that swaps parameters for others, as `torch.__future__` lets `Module.to` do
    def build() -> Training:
        model = nn.Sequential(nn.Linear(LARGE, LARGE), nn.Tanh(), nn.Linear(LARGE, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            losses = []
            for _ in range(2):
                optimizer.zero_grad()
                loss = model(torch.randn(8, LARGE)).square().mean()
                loss.backward()
                losses.append(loss.detach())
                for parameter in model.parameters():
                    torch.utils.swap_tensors(parameter, nn.Parameter(parameter.detach().clone()))
                model(torch.randn(8, LARGE)).square().mean().backward()
            optimizer.step()
            return torch.stack(losses)

        return Training(model, step, optimizers=[optimizer])

    # when it is recorded
    recording = check(build, tmp_path / "recording", level=level)

    # then it trains as it does without, and what operators send to the swapped parameters is seen
    for step in (0, 1):
        sent = [
            record
            for call in calls(recording, "torch.nn.functional.linear", "0", step=step)
            for record in call.with_role(Role.PARAM_GRAD)
        ]
        assert len(sent) == (0 if level == "module" else 2 * 4)


@pytest.mark.filterwarnings("ignore:torch.ao.quantization:DeprecationWarning")
@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_fake_quantised_training_is_recorded(save: str, tmp_path: Path) -> None:
    # given a layer whose observer resizes its buffers and whose weight is quantised per channel
    from torch.ao.quantization import FakeQuantize, MovingAveragePerChannelMinMaxObserver

    class Quantised(nn.Linear):
        def __init__(self) -> None:
            super().__init__(LARGE, 300)
            self.quantise = FakeQuantize(
                MovingAveragePerChannelMinMaxObserver,
                quant_min=-128,
                quant_max=127,
                dtype=torch.qint8,
                qscheme=torch.per_channel_symmetric,
            )

        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.linear(x, self.quantise(self.weight), self.bias)

    # when it is recorded, then it trains as it does without
    check(
        lambda: supervised(Quantised(), lambda: (torch.randn(16, LARGE),)),
        tmp_path / "recording",
        save=save,
    )
