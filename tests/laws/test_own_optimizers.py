"""Optimizers of a script's own, of no class of torch's: their calls are recorded and run again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.store.reader import Recording


class Own(torch.optim.Optimizer):
    """Updates each parameter by itself; `mistake` is what is wrong."""

    def __init__(self, parameters: Any, mistake: str = "") -> None:
        super().__init__(parameters, {"lr": 1e-2})
        self.mistake = mistake
        self.factor = 1.01 if mistake == "rate" else 1.0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    state = self.state[parameter]
                    if not state:
                        state["mean"] = torch.zeros_like(parameter)
                    self.update(parameter, parameter.grad, state["mean"], group["lr"])

    def update(self, parameter: Tensor, gradient: Tensor, mean: Tensor, rate: float) -> None:
        raise NotImplementedError


class Signs(Own):
    """As Lion: the sign of a mean, and weight decay."""

    def update(self, parameter: Tensor, gradient: Tensor, mean: Tensor, rate: float) -> None:
        if self.mistake != "decay":
            parameter.mul_(1 - rate * 0.1)
        parameter.add_((mean * 0.9 + gradient * 0.1).sign_(), alpha=-rate * self.factor)
        mean.mul_(0.99).add_(gradient, alpha=0.01 if self.mistake != "mean" else 0.02)


class Trusted(Own):
    """As LARS: a step as long as the parameter."""

    def update(self, parameter: Tensor, gradient: Tensor, mean: Tensor, rate: float) -> None:
        mean.mul_(0.9).add_(gradient)
        if self.mistake != "decay":
            mean.add_(parameter, alpha=0.01)
        share = parameter.norm() / mean.norm().clamp(min=1e-6)
        parameter.copy_(parameter - mean * share * (rate * self.factor))


class AtOnce(Own):
    """All parameters in one call."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        parameters = [one for group in self.param_groups for one in group["params"]]
        means = [self.state[one].setdefault("mean", torch.zeros_like(one)) for one in parameters]
        torch._foreach_mul_(means, 0.9)
        torch._foreach_add_(means, [one.grad for one in parameters])
        moves = torch._foreach_tanh(means)
        torch._foreach_add_(parameters, moves, alpha=-1e-2 * self.factor)


def recorded(
    path: Path, kind: Callable[..., Own], mistake: str, *, spelled: bool = False, device: str = ""
) -> Path:
    torch.manual_seed(0)
    first, last = nn.Linear(16, 48), nn.Linear(48, 4)
    model = nn.ModuleDict({"first": first, "last": last})
    optimizer = kind(model.parameters(), mistake=mistake)
    with lockstep.record(path, model=model, steps="0:2", emulate=device):
        for _ in range(2):
            x, y = torch.randn(32, 16), torch.randn(32, 4)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                hidden = torch.tanh(first(x))
                product = hidden @ last.weight.T
                out = product + last.bias.to(product.dtype) if spelled else last(hidden)
            F.mse_loss(out.float(), y).backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, kind: Callable[..., Own], mistake: str, **how: Any) -> Comparison:
    return lockstep.compare_recordings(
        recorded(tmp_path / "reference", kind, ""),
        recorded(tmp_path / "candidate", kind, mistake, **how),
    )


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (Signs, {"spelled": True}),
        (Signs, {"device": "reorder"}),
        (Trusted, {"device": "reorder"}),
        (AtOnce, {"spelled": True}),
    ],
)
def test_a_sound_optimizer_of_the_scripts_own_agrees_by_the_laws(
    tmp_path: Path, kind: type[Own], how: dict[str, Any]
) -> None:
    found = compared(tmp_path, kind, "", **how)
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert not found.laws.not_judged


@pytest.mark.parametrize(
    ("kind", "mistake"),
    [(Signs, "rate"), (Signs, "decay"), (Trusted, "rate"), (AtOnce, "rate")],
)  # fmt: skip
def test_a_mistake_that_bfloat16_would_hide_is_told(
    tmp_path: Path, kind: type[Own], mistake: str
) -> None:
    # Given another spelling of the model, beside which pairs of updates differ by noise
    found = compared(tmp_path, kind, mistake, spelled=True)
    # Then the optimizer is named
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].phase.value == "optimizer"
    assert found.origins[0].step == 0


class BesideTorch(torch.optim.SGD):
    """Leaves the update to torch's own class, and takes a thousandth of it back."""

    mistake = False

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1.001 if self.mistake else 1.0)


def test_a_class_that_calls_torchs_own_is_run_again_as_that(tmp_path: Path) -> None:
    def kind(parameters: Any, mistake: str) -> Any:
        found = BesideTorch(parameters, lr=1e-2)
        found.mistake = bool(mistake)
        return found

    assert compared(tmp_path / "same", kind, "", spelled=True).verdict is Verdict.AGREE
    assert compared(tmp_path / "off", kind, "off", spelled=True).verdict is Verdict.DIVERGED


def test_the_calls_of_a_step_lie_beside_its_first_update(tmp_path: Path) -> None:
    path = recorded(tmp_path / "run", Signs, "")
    updates = [
        one for one in Recording(path).ranks["rank0"].calls(step=0) if one.kind.value == "optimizer"
    ]
    names = {call.site.op for call in updates[0].body}
    assert {"torch.zeros_like", "torch.Tensor.mul_", "torch.Tensor.sign_"} <= names
    assert len(updates) == 4
    assert not any(one.body for one in updates[1:])
