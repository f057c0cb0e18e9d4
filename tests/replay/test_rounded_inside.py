"""A cross entropy that rounds its log-softmax inside computes in another precision; a wrong one is a fault."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from replay_bench import Beneath, operators
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase
from lockstep.replay.calls.again import again
from lockstep.report.comparison.screen import headline

Kernel = Callable[..., Tensor]


class LogSoftmax(torch.autograd.Function):
    """As a GPU computes it in 16 bits: in single precision inside, its result rounded once, and so its gradient."""

    @staticmethod
    def forward(context: Any, logits: Tensor) -> Tensor:
        made = F.log_softmax(logits.float(), -1).to(logits.dtype)
        context.save_for_backward(made)
        return made

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        (made,) = context.saved_tensors
        wide = gradient.float()
        return (wide - made.float().exp() * wide.sum(-1, keepdim=True)).to(gradient.dtype)


def as_on_a_gpu(_function: Any, logits: Tensor, target: Tensor) -> Tensor:
    """The log-softmax in the logits' own dtype, the mean of the picked ones in single precision."""
    with torch.autocast("cpu", enabled=False):
        return F.nll_loss(LogSoftmax.apply(logits).float(), target)


def in_single(_function: Any, logits: Tensor, target: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        return F.cross_entropy(logits.float(), target)


def truncated_inside(_function: Any, logits: Tensor, target: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        exact = F.log_softmax(logits.float(), -1)
        low = (exact.detach().view(torch.int32) & -65536).view(torch.float32)
        return F.nll_loss(exact + (low - exact).detach(), target)


FAULTS: dict[str, Kernel] = {
    "a factor": lambda *given: as_on_a_gpu(*given) * 1.0002,
    "smoothed": lambda _function, logits, target: F.cross_entropy(
        logits.float(), target, label_smoothing=1e-3
    ),
    "truncated inside": truncated_inside,
    "a wrong gradient": lambda function, logits, target: as_on_a_gpu(
        function, logits + 0.01 * (logits - logits.detach()), target
    ),
}


def train(directory: Path, kernel: Kernel) -> lockstep.Recording:
    """Two steps under autocast in bfloat16, with a kernel for the cross entropy."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 40))
    x, target = torch.randn(96, 16), torch.randint(40, (96,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    beneath = Beneath("cross_entropy", lambda function, x, y, **_: kernel(function, x, y))
    recorder = lockstep.record(directory, model=model, steps="0:2", save="tensors")
    with recorder, beneath.at_work():
        for _ in range(2):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x), target)
            loss.backward()
            optimizer.step()
    return lockstep.open(directory)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, lockstep.Recording]:
    directory = tmp_path_factory.mktemp("runs")
    kernels = {"single": in_single, "gpu": as_on_a_gpu}
    return {name: train(directory / name, kernel) for name, kernel in kernels.items()}


def compared(left: lockstep.Recording, right: lockstep.Recording) -> Comparison:
    return lockstep.compare_recordings(left, right)


def test_a_log_softmax_that_rounds_inside_is_another_precision(
    runs: dict[str, lockstep.Recording],
) -> None:
    found = compared(runs["single"], runs["gpu"])
    assert found.origins == ()
    (change,) = found.uniform
    assert change.name == "cross_entropy: inside, log_softmax is rounded to bfloat16"
    assert {site.phase for site in change.members} == {Phase.FORWARD, Phase.BACKWARD}
    assert found.verdict is Verdict.DIVERGED
    assert "ANOTHER PRECISION" in str(headline(found))


def test_the_reference_may_be_the_one_that_rounds(runs: dict[str, lockstep.Recording]) -> None:
    found = compared(runs["gpu"], runs["single"])
    assert found.uniform
    assert all("log_softmax is rounded to bfloat16" in one.reason for one in found.origins)
    assert all(one.kind.value != "fault" for one in found.origins)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_cross_entropy_is_a_fault_beside_either(
    runs: dict[str, lockstep.Recording], tmp_path: Path, fault: str
) -> None:
    wrong = train(tmp_path / "wrong", FAULTS[fault])
    for right in runs.values():
        found = compared(right, wrong)
        assert found.origins
        assert found.origins[0].op.endswith("cross_entropy")
        assert found.origins[0].kind.value == "fault"


def test_a_call_held_by_itself_says_what_it_rounds_inside(
    runs: dict[str, lockstep.Recording],
) -> None:
    for name, words in (("gpu", {"inside, log_softmax is rounded to bfloat16"}), ("single", {""})):
        call = next(one for one in operators(runs[name]) if one.site.op.endswith("cross_entropy"))
        results = again(call, repeat=0, memory_bytes=2**30)
        assert {result.held[0].words for result in results} == words
