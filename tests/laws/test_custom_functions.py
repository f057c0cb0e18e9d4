"""Custom autograd functions run again: what they call is recorded, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.store.reader import Recording

FACTORS = {"right": 1.0, "wrong": 1.3, "a thousandth off": 1.001}


class Swish(torch.autograd.Function):
    """Keeps a tensor that it has made between."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        share = torch.sigmoid(x)
        ctx.save_for_backward(x, share)
        ctx.factor = factor
        return x * share

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        x, share = ctx.saved_tensors
        return gradient * share * (1 + x * (1 - share)) * ctx.factor, None


class Bound(torch.autograd.Function):
    """Writes in place, forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        result = x.clone()
        result.clamp_(-0.5, 0.5)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        sent = gradient.clone()
        sent[x.abs() > 0.5] = 0
        sent *= ctx.factor
        return sent, None


class Rounded(torch.autograd.Function):
    """Sends on what arrives."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return torch.round(x * 8) / 8

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return (gradient if ctx.factor == 1.0 else gradient * ctx.factor), None


class Asking(torch.autograd.Function):
    """Asks autograd for its gradients, and gives two results."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.tanh(x), x.sin()

    @staticmethod
    def backward(ctx: Any, one: Tensor, two: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            made = torch.tanh(x)
        (sent,) = torch.autograd.grad(made, x, one)
        return (sent + two * x.detach().cos()) * ctx.factor, None


swish = Swish.apply
"""As scripts name a function: taken from its class before anything is recorded."""

Form = Callable[[Tensor, float], Tensor]
FORMS: dict[str, Form] = {
    "keeps": lambda x, factor: Swish.apply(x, factor),  # type: ignore[no-untyped-call]
    "twice": lambda x, factor: Swish.apply(Swish.apply(x, factor), factor),  # type: ignore[no-untyped-call]
    "writes": lambda x, factor: Bound.apply(x, factor),  # type: ignore[no-untyped-call]
    "straight through": lambda x, factor: Rounded.apply(x, factor),  # type: ignore[no-untyped-call]
    "by another name": lambda x, factor: swish(x, factor),
    "asks": lambda x, factor: sum(Asking.apply(x, factor)),  # type: ignore[no-untyped-call]
}


class Net(nn.Module):
    """The last layer is written as a product and a sum where it is `spelled`."""

    def __init__(self, form: Form, factor: float, *, spelled: bool) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 24), nn.Linear(24, 4)
        self.form, self.factor, self.spelled = form, factor, spelled

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.form(torch.tanh(self.first(x)), self.factor)
        if self.spelled:
            product = hidden @ self.last.weight.T
            return product + self.last.bias.to(product.dtype)
        out: Tensor = self.last(hidden)
        return out


def losses_of(net: Net, *, low: bool = False, penalty: bool = False) -> list[Tensor]:
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    losses = []
    for _ in range(2):
        x, y = torch.randn(16, 8, requires_grad=penalty), torch.randn(16, 4)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            out = net(x).float()
        loss = F.mse_loss(out, y)
        if penalty:
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=True)
            loss = loss + slope.square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def recorded(path: Path, form: Form, how: str, *, spelled: bool, **options: bool) -> list[Tensor]:
    torch.manual_seed(0)
    net = Net(form, FACTORS[how], spelled=spelled)
    with lockstep.record(path, model=net, steps="0:2"):
        return losses_of(net, **options)


def compared(tmp_path: Path, form: Form, how: str, **options: bool) -> Comparison:
    recorded(tmp_path / "reference", form, "right", spelled=False, **options)
    recorded(tmp_path / "candidate", form, how, spelled=True, **options)
    return lockstep.compare_recordings(tmp_path / "reference", tmp_path / "candidate")


@pytest.mark.parametrize(
    ("name", "low"),
    [("keeps", False), *((one, True) for one in FORMS if one not in ("keeps", "twice"))],
)
def test_the_backward_of_a_custom_function_is_judged_by_the_laws(
    tmp_path: Path, name: str, low: bool
) -> None:
    # Given a custom function, and around it a layer that is written otherwise
    agreeing = compared(tmp_path / "same", FORMS[name], "right", low=low)
    # Then the two agree, and every step was run again
    assert agreeing.verdict is Verdict.AGREE
    assert agreeing.laws is not None
    assert not agreeing.laws.not_judged
    # But a backward that is a thousandth off, which bfloat16 would hide, is told
    assert compared(tmp_path / "off", FORMS[name], "a thousandth off", low=low).verdict is (
        Verdict.DIVERGED
    )


def test_gradients_of_its_gradients_are_judged_too(tmp_path: Path) -> None:
    agreeing = compared(tmp_path / "same", FORMS["keeps"], "right", penalty=True)
    assert agreeing.verdict is Verdict.AGREE
    assert agreeing.laws is not None
    assert not agreeing.laws.not_judged
    found = compared(tmp_path / "off", FORMS["keeps"], "a thousandth off", penalty=True)
    assert found.verdict is Verdict.DIVERGED


class ByNumPy(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return torch.from_numpy(x.detach().numpy() ** 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return gradient * 2 * x * ctx.factor, None


def test_what_no_recorded_call_makes_is_judged_by_pairs(tmp_path: Path) -> None:
    form: Form = lambda x, factor: ByNumPy.apply(x, factor)  # type: ignore[no-untyped-call]  # noqa: E731
    found = compared(tmp_path / "same", form, "right")
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert "no recorded call makes result" in found.laws.not_judged[0]
    assert compared(tmp_path / "off", form, "wrong").verdict is Verdict.DIVERGED


@pytest.mark.parametrize("name", FORMS)
def test_a_training_computes_the_same_bits_while_it_is_recorded(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    bare = losses_of(Net(FORMS[name], 1.0, spelled=False))
    watched = recorded(tmp_path / "run", FORMS[name], "right", spelled=False)
    assert all(map(torch.equal, bare, watched))


def test_a_custom_function_stays_one_operator_with_its_body_beside(tmp_path: Path) -> None:
    recorded(tmp_path / "run", FORMS["keeps"], "right", spelled=False)
    calls = Recording(tmp_path / "run").ranks["rank0"].calls(step=0)
    (swish,) = [one for one in calls if one.site.op.endswith("Swish")]
    assert [(one.site.op, one.site.phase.value) for one in swish.body] == [
        ("torch.sigmoid", "forward"),
        ("torch.Tensor.mul", "forward"),
        ("torch.Tensor.mul", "backward"),
        ("torch.Tensor.__rsub__", "backward"),
        ("torch.Tensor.mul", "backward"),
        ("torch.Tensor.add", "backward"),
        ("torch.Tensor.mul", "backward"),
        ("torch.Tensor.mul", "backward"),
    ]
    assert not {one.id for one in swish.body} & {one.id for one in calls}


def test_the_layer_before_a_wrong_backward_is_named_and_not_the_optimizer(tmp_path: Path) -> None:
    # Given bfloat16, in which pairs of calls see nothing, and an optimizer whose calls are recorded too
    class Plain(torch.optim.Optimizer):
        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for parameter in self.param_groups[0]["params"]:
                parameter.add_(parameter.grad, alpha=-0.1)

    def run(path: Path, how: str, *, spelled: bool) -> Path:
        torch.manual_seed(0)
        net = Net(FORMS["keeps"], FACTORS[how], spelled=spelled)
        optimizer = Plain(net.parameters(), {})
        with lockstep.record(path, model=net, steps="0:1"):
            with torch.autocast("cpu", torch.bfloat16):
                out = net(torch.randn(16, 8)).float()
            out.square().mean().backward()
            optimizer.step()
        return path

    found = lockstep.compare_recordings(
        run(tmp_path / "right", "right", spelled=False),
        run(tmp_path / "off", "a thousandth off", spelled=True),
    )
    # Then the first layer that gets a wrong gradient is named, by a call that the recordings show
    assert (found.origins[0].module, found.origins[0].phase.value) == ("first", "backward")


class PastTorch(torch.autograd.Function):
    """Computes by NumPy between two calls, and divides by a number of Python's."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        made = torch.from_numpy(np.tanh((x * 2).float().numpy())).to(x.dtype)
        ctx.made, ctx.size, ctx.factor = made, float(made.float().abs().mean()), factor
        return made / ctx.size

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * 2 * (1 - ctx.made * ctx.made) / ctx.size * ctx.factor, None


@pytest.mark.parametrize("spelled", [False, True], ids=["device", "spelled"])
def test_what_a_function_computes_past_torch_accuses_no_sound_training(
    tmp_path: Path, spelled: bool
) -> None:
    # Given numbers that each run rounds itself, past every recorded call, in bfloat16
    form: Form = lambda x, factor: PastTorch.apply(x, factor)  # type: ignore[no-untyped-call]  # noqa: E731
    recorded(tmp_path / "one", form, "right", spelled=False, low=True)
    torch.manual_seed(0)
    net = Net(form, 1.0, spelled=spelled)
    device = "" if spelled else "reorder"
    with lockstep.record(tmp_path / "other", model=net, steps="0:2", emulate=device):
        losses_of(net, low=True)
    # Then the laws do not judge it, and pairs of calls agree
    found = lockstep.compare_recordings(tmp_path / "one", tmp_path / "other")
    assert found.verdict is Verdict.AGREE
