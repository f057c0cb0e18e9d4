"""A reference that a library's race has struck: a later fault is named beside it, and replay says which side it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import lockstep
from lockstep.cli.main import main
from lockstep.report.comparison.screen import headline


class Net(nn.Module):
    """Two activations with layers around them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(16, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))
        return output


def struck(result: Tensor) -> None:
    """One thread's half comes from a kernel of half the bits."""
    half = result.view(-1)[: result.numel() // 2]
    half.mul_(1 + 5e-5 * torch.arange(half.numel()).mul(1.7).sin())


def wrong(result: Tensor) -> None:
    """A kernel that is off by a hundredth."""
    result.mul_(1.01)


class Kernels(TorchDispatchMode):
    """What becomes of the results of tanh, by the number of its call in a process."""

    def __init__(self, becomes: dict[int, Callable[[Tensor], None]]) -> None:
        super().__init__()
        self.becomes, self.calls = becomes, 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.tanh.default:
            self.becomes.get(self.calls, lambda result: None)(result)
            self.calls += 1
        return result


def train(folder: Path, becomes: dict[int, Callable[[Tensor], None]]) -> Path:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kernels = Kernels(becomes)
    with lockstep.record(folder, model=model, steps="0:2", save="tensors"):
        for batch in torch.randn(2, 64, 16):
            optimizer.zero_grad()
            with kernels:
                loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("struck") / "reference", {0: struck})


@pytest.mark.parametrize("faulty", [False, True])
def test_a_later_fault_is_an_origin_of_its_own_beside_the_struck_call(
    reference: Path, tmp_path: Path, faulty: bool
) -> None:
    # given a struck reference, and a candidate that is sound, or wrong behind the struck call
    candidate = train(tmp_path / "candidate", {1: wrong} if faulty else {})
    # when both are compared
    found = lockstep.compare_recordings(reference, candidate)
    # then the struck call is the first origin, and the headline names the later fault, if there is one, beside it
    calls = [("torch.tanh", 0), ("torch.tanh", 1)]
    assert [(one.op, one.call) for one in found.origins] == calls[: 1 + faulty]
    assert (
        "1 more origin: step 0, forward of the model (torch.tanh, call 2)" in headline(found)
    ) is faulty


def test_replay_says_that_it_is_not_reproduced_and_which_side_it_struck(
    reference: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sound = train(tmp_path / "sound", {})
    again = "call is at fault: transient, not reproduced: another result the second time"
    for pair, side in (((reference, sound), "reference"), ((sound, reference), "candidate")):
        assert main(["replay", *map(str, pair)]) == 1
        said = " ".join(capsys.readouterr().out.split())
        assert f"the {side}'s {again}" in said
