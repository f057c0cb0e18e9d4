"""Faults at awkward places, recorded in this process, each beside a twin that must stay silent."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional

import lockstep
from lockstep.core.finding import Comparison, Verdict

Alter = Callable[[torch.nn.Module], None]


class Net(torch.nn.Module):
    """Two convolutions with activations in modules of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 4, 3, padding=1)
        self.relu = torch.nn.ReLU(inplace=True)
        self.second = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.gelu = torch.nn.GELU()
        self.head = torch.nn.Linear(4 * 36, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.gelu(self.second(self.relu(self.first(x))))
        return self.head(x.flatten(1))


def recorded(path: Path, alter: Alter, *, autocast: bool = False) -> Path:
    """Two training steps of the model after `alter` had its way with it."""
    torch.manual_seed(0)
    model = Net()
    alter(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs, targets = torch.randn(4, 1, 6, 6), torch.tensor([0, 1, 2, 0])
    with lockstep.record(path, model=model, steps="0:2"):
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, alter: Alter, *, autocast: bool = False) -> Comparison:
    """Compare the sound run with the altered one."""
    reference = recorded(tmp_path / "reference", lambda model: None, autocast=autocast)
    return lockstep.compare_recordings(
        reference, recorded(tmp_path / "candidate", alter, autocast=autocast)
    )


def scale_gradient_behind(name: str, factor: float) -> Alter:
    """Scale the gradient of what a module returns, with a hook on the tensor."""

    def hook(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        output.register_hook(lambda gradient: gradient * factor)

    return lambda model: model.get_submodule(name).register_forward_hook(hook) and None


def pad_by_hand(mode: str) -> Alter:
    """Replace a convolution's own padding with a call in front of it."""

    def alter(model: torch.nn.Module) -> None:
        layer = model.get_submodule("second")

        def forward(x: torch.Tensor) -> torch.Tensor:
            padded = functional.pad(x, (1, 1, 1, 1), mode=mode)
            return functional.conv2d(padded, layer.weight, layer.bias)

        layer.forward = forward  # type: ignore[method-assign]

    return alter


@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "autocast"])
@pytest.mark.parametrize("name", ["relu", "gelu"])
def test_wrong_gradient_behind_a_module_is_named(tmp_path: Path, name: str, autocast: bool) -> None:
    # given a tensor hook that makes a gradient 4 % too large
    found = compared(tmp_path, scale_gradient_behind(name, 1.04), autocast=autocast)
    # then backward is to blame, at the module whose result it is
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].phase.value, found.origins[0].module) == ("backward", name)


def test_gradient_hook_that_changes_nothing_is_silent(tmp_path: Path) -> None:
    assert compared(tmp_path, scale_gradient_behind("relu", 1.0)).verdict is Verdict.AGREE


def test_wrong_padding_written_by_hand_is_named_in_the_forward_pass(tmp_path: Path) -> None:
    found = compared(tmp_path, pad_by_hand("reflect"))
    assert found.verdict is Verdict.DIVERGED
    assert (found.origins[0].phase.value, found.origins[0].module) == ("forward", "second")


def test_right_padding_written_by_hand_is_silent(tmp_path: Path) -> None:
    found = compared(tmp_path, pad_by_hand("constant"))
    assert found.verdict is Verdict.AGREE
    assert found.unaligned_candidate > 0
