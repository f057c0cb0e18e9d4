"""What the gate stops and lets pass: changes as a library makes them, and such that mean nothing to the numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional

from lockstep_gate.pytest_plugin import LockstepGate

Context = Callable[[], Any]


class Net(torch.nn.Module):
    """A small convolutional net, with what libraries change as its arguments."""

    def __init__(self, approximate: str = "none", eps: float = 1e-5, mode: str = "zeros") -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3, padding=1, padding_mode=mode)
        self.norm = torch.nn.GroupNorm(4, 8, eps=eps)
        self.act = torch.nn.GELU(approximate)
        self.head = torch.nn.Linear(8 * 8 * 8, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.act(self.norm(self.first(images))).flatten(1))


@dataclass
class Training:
    """Three steps; what is given beside the defaults is what was changed."""

    model: dict[str, Any] = field(default_factory=dict)
    optimizer: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    around: Context = nullcontext
    prepare: Callable[[torch.nn.Module], object] = lambda model: None
    backwards: bool = False
    zeroes: bool = False

    def __call__(self) -> None:
        with self.around():
            torch.manual_seed(0)
            model = Net(**self.model)
            self.prepare(model)
            optimizer = torch.optim.AdamW(model.parameters(), **{"lr": 1e-2, **self.optimizer})
            images, labels = torch.randn(96, 1, 8, 8), torch.randint(0, 10, (96,))
            batches = list(torch.arange(96).split(32))
            for batch in reversed(batches) if self.backwards else batches:
                optimizer.zero_grad(set_to_none=not self.zeroes)
                logits = model(images[batch])
                functional.cross_entropy(logits, labels[batch], **self.loss).backward()
                optimizer.step()


def _patched(name: str, change: Callable[..., torch.Tensor]) -> Context:
    """A library whose kernel was changed: a function of torch.nn.functional that computes otherwise."""

    @contextmanager
    def patching() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(functional, name, partial(change, getattr(functional, name)))
            yield

    return patching


def _in_bfloat16(linear: Any, x: torch.Tensor, *more: torch.Tensor) -> torch.Tensor:
    rounded: torch.Tensor = linear(x.bfloat16().float(), *more)
    return rounded


def _convolved_in_bfloat16(conv2d: Any, x: torch.Tensor, *more: Any) -> torch.Tensor:
    rounded: torch.Tensor = conv2d(x.bfloat16().float(), *more)
    return rounded


def _last_element(group_norm: Any, *arguments: Any, **named: Any) -> torch.Tensor:
    result: torch.Tensor = group_norm(*arguments, **named)
    with torch.no_grad():
        result.view(-1)[-1] *= 1.5
    return result


def _scaled(cross_entropy: Any, *arguments: Any, **named: Any) -> torch.Tensor:
    return torch.mul(cross_entropy(*arguments, **named), 1.0005)


def _glorot(model: torch.nn.Module) -> None:
    torch.nn.init.xavier_uniform_(model.head.weight)  # type: ignore[arg-type, union-attr]


CHANGES = {
    "activation": Training(model={"approximate": "tanh"}),
    "eps of a norm": Training(model={"eps": 1e-4}),
    "padding mode": Training(model={"mode": "replicate"}),
    "eps of the optimizer": Training(optimizer={"eps": 1e-6}),
    "weight decay": Training(optimizer={"weight_decay": 0.0}),
    "beta": Training(optimizer={"betas": (0.9, 0.99)}),
    "label smoothing": Training(loss={"label_smoothing": 0.01}),
    "inputs of a kernel in bfloat16": Training(around=_patched("linear", _in_bfloat16)),
    "inputs of a convolution in bfloat16": Training(
        around=_patched("conv2d", _convolved_in_bfloat16)
    ),
    "one element of a kernel": Training(around=_patched("group_norm", _last_element)),
    "scale of the loss": Training(around=_patched("cross_entropy", _scaled)),
    "initial weights": Training(prepare=_glorot),
    "order of batches": Training(backwards=True),
}


@contextmanager
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2 if before == 1 else 1)
    yield
    torch.set_num_threads(before)


@contextmanager
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@contextmanager
def _elsewhere() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        for name, value in (("USER", "ci"), ("HOSTNAME", "runner-7"), ("HOME", "/")):
            patch.setitem(os.environ, name, value)
        yield


def _channels_last(model: torch.nn.Module) -> None:
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


@contextmanager
def _no_onednn() -> Iterator[None]:
    torch._C._set_mkldnn_enabled(False)
    yield
    torch._C._set_mkldnn_enabled(True)


HARMLESS = {
    "no oneDNN": Training(around=_no_onednn),  # convolutions by another algorithm
    "as it was": Training(),
    "threads": Training(around=_threads),
    "deterministic algorithms": Training(around=_deterministic),
    "another folder, user and host": Training(around=_elsewhere),
    "channels last": Training(prepare=_channels_last),
    "optimizer in a loop": Training(optimizer={"foreach": False}),
    "optimizer in groups": Training(optimizer={"foreach": True}),
    "fused optimizer": Training(optimizer={"fused": True}),
    "gradients kept as zeros": Training(zeroes=True),
    "anomalies detected": Training(around=partial(torch.autograd.set_detect_anomaly, True)),
}


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> LockstepGate:
    folder = tmp_path_factory.mktemp("changes")
    LockstepGate(folder, folder / "first", reason="first", force=False)("golden", Training())
    return LockstepGate(folder, folder / "aside", reason="", force=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CHANGES)
def test_a_change_of_a_library_is_stopped(gate: LockstepGate, name: str) -> None:
    with pytest.raises(pytest.fail.Exception, match="DIVERGED"):
        gate("golden", CHANGES[name])


@pytest.mark.sampled(4)
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
@pytest.mark.parametrize("name", HARMLESS)
def test_what_means_nothing_to_the_numbers_passes(gate: LockstepGate, name: str) -> None:
    gate("golden", HARMLESS[name])
