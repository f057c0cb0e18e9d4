"""What a hook makes of a gradient is a part of the step, however the other run says the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison, Verdict

Change = Callable[[Tensor], Tensor]
STEPS = 2


class Scaled(torch.autograd.Function):
    """Hands a tensor on and half of its gradient back."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * 0.5


class Network(nn.Module):
    """Two layers, and between them what a way of training does with a hidden tensor."""

    def __init__(self, between: Change = lambda tensor: tensor) -> None:
        super().__init__()
        self.enter, self.act, self.leave = nn.Linear(6, 24), nn.GELU(), nn.Linear(24, 3)
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.act(self.between(self.enter(x))))
        return out


Way = tuple[Change, Callable[[Network], None], Callable[[Network], None]]
"""What becomes of the hidden tensor, what is done to a new network, and what behind each backward pass."""


def as_it_is(network: Network) -> None:
    """Do nothing."""


def on_hidden(*changes: Change) -> Way:
    """Hooks on the hidden tensor, which torch runs in the order in which they are registered."""

    def between(tensor: Tensor) -> Tensor:
        for change in changes:
            tensor.register_hook(change)
        return tensor

    return between, as_it_is, as_it_is


def on_module(change: Change) -> Way:
    """A hook on what leaves the activation backwards."""

    def register(network: Network) -> None:
        network.act.register_full_backward_hook(
            lambda module, sent, came: (change(cast(Any, sent)[0]),)
        )

    return lambda tensor: tensor, register, as_it_is


def before_module(change: Change) -> Way:
    """A hook on what enters the activation backwards."""

    def register(network: Network) -> None:
        network.act.register_full_backward_pre_hook(
            lambda module, came: (change(cast(Any, came)[0]),)
        )

    return lambda tensor: tensor, register, as_it_is


def on_weight(change: Change) -> Way:
    """A hook on a parameter, registered before anything is recorded."""

    def register(network: Network) -> None:
        network.enter.weight.register_hook(change)

    return lambda tensor: tensor, register, as_it_is


def behind_backward(change: Change) -> Way:
    """The same by hand."""

    def behind(network: Network) -> None:
        gradient = network.enter.weight.grad
        assert gradient is not None
        gradient.copy_(change(gradient))

    return lambda tensor: tensor, as_it_is, behind


def by_function() -> Way:
    """A custom function."""
    return Scaled.apply, as_it_is, as_it_is


def recorded(path: Path, way: Way, *, bfloat16: bool = False) -> Path:
    """A short training."""
    torch.manual_seed(0)
    between, register, behind = way
    network = Network(between)
    register(network)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-3)
    with lockstep.record(path, model=network, steps=f"0:{STEPS}"):
        for _ in range(STEPS):
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
                out = network(torch.randn(8, 6))
            nn.functional.mse_loss(out.float(), torch.randn(8, 3)).backward()
            behind(network)
            optimizer.step()
    return path


def compared(path: Path, one: Way, two: Way, *, bfloat16: bool = False) -> Comparison:
    """Both trainings beside each other."""
    runs = [recorded(path / str(n), way, bfloat16=bfloat16) for n, way in enumerate((one, two))]
    return lockstep.compare_recordings(*runs)


def masked(share: float) -> Change:
    """Lets a share of some rows' gradient through."""
    mask = torch.ones(24, 6)
    mask[:4] = share
    return lambda gradient: gradient * mask


def clamped(gradient: Tensor) -> Tensor:
    """No element beyond a thousandth."""
    return gradient.clamp(-1e-3, 1e-3)


SOUND: dict[str, tuple[Way, Way]] = {
    "a hook on a hidden tensor and a custom function": (
        on_hidden(lambda g: g * 0.5),
        by_function(),
    ),
    "a hook on a module and a custom function": (on_module(lambda g: g * 0.5), by_function()),
    "a hook on a parameter and the same by hand": (
        on_weight(masked(0.0)),
        behind_backward(masked(0.0)),
    ),
    "clamping by a hook and by hand": (on_weight(clamped), behind_backward(clamped)),
    "two hooks and one": (
        on_hidden(clamped, lambda g: g * 2),
        on_hidden(lambda g: clamped(g) * 2),
    ),
    "two spellings of a hook before a module": (
        before_module(lambda g: g * 0.3),
        before_module(lambda g: g - g * 0.7),
    ),
}

FAULTS: dict[str, tuple[Way, Way]] = {
    "another factor": (on_hidden(lambda g: g * 0.3), on_hidden(lambda g: g * 0.31)),
    "another factor on a module": (on_module(lambda g: g * 0.3), on_module(lambda g: g * 0.31)),
    "another mask": (on_weight(masked(0.0)), behind_backward(masked(0.05))),
    "the other order of hooks": (
        on_hidden(clamped, lambda g: g * 2),
        on_hidden(lambda g: g * 2, clamped),
    ),
}


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("pair", SOUND)
def test_two_ways_to_change_a_gradient_are_one(tmp_path: Path, pair: str, bfloat16: bool) -> None:
    # Given a training that changes a gradient by a hook, and one that does the same otherwise
    # When they are compared, then they agree, and the whole step was judged
    found = compared(tmp_path, *SOUND[pair], bfloat16=bfloat16)
    assert found.verdict is Verdict.AGREE, found
    assert found.laws is not None
    assert found.laws.not_judged == ()


@pytest.mark.parametrize("bfloat16", [False, True])
@pytest.mark.parametrize("pair", FAULTS)
def test_a_hook_that_does_another_thing_is_a_fault(
    tmp_path: Path, pair: str, bfloat16: bool
) -> None:
    # Given two trainings whose hooks make something else of a gradient, by a few per cent
    # When they are compared, then they diverge in backward
    found = compared(tmp_path, *FAULTS[pair], bfloat16=bfloat16)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].phase.value == "backward"


def times(factor: Tensor) -> Change:
    """Multiplies by a tensor that the hook holds."""
    return lambda gradient: gradient * factor


@pytest.mark.parametrize("bfloat16", [False, True])
def test_a_constant_that_a_hook_holds_is_a_part_of_the_program(
    tmp_path: Path, bfloat16: bool
) -> None:
    # Given hooks that hold a tensor which no recorded call has made, the same one in each step
    factor = on_hidden(times(torch.tensor(0.3)))
    # When the other run has it rounded otherwise, then they agree, and the whole step was judged
    rounded = on_hidden(times(torch.tensor(0.1) * 3))
    found = compared(tmp_path / "rounded", factor, rounded, bfloat16=bfloat16)
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()
    # When it has another one, by 3 %, then they do not
    another = on_hidden(times(torch.tensor(0.31)))
    found = compared(tmp_path / "another", factor, another, bfloat16=bfloat16)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op.endswith("<lambda>")


def test_the_function_of_a_hook_is_named(tmp_path: Path) -> None:
    # Given hooks on a hidden tensor, one of which multiplies by another number
    # When they are compared in single precision, then the origin is the hook's function, by its own name
    found = compared(tmp_path, *FAULTS["another factor"])
    assert found.origins[0].op.endswith(f"{__name__}.<lambda>")


@pytest.mark.parametrize("way", [on_hidden, on_module, on_weight])
def test_a_hook_that_only_looks_changes_nothing(
    tmp_path: Path, way: Callable[[Change], Way]
) -> None:
    # Given a training with a hook that keeps the norm of what arrives, and one without
    norms: list[Tensor] = []

    def look(gradient: Tensor) -> Any:
        norms.append(gradient.norm())
        return gradient

    # When they are compared, then they are equal, and the hook has seen each step
    found = compared(tmp_path, (lambda tensor: tensor, as_it_is, as_it_is), way(look))
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert found.laws.not_judged == ()
    assert len(norms) == STEPS


def test_hooks_are_the_scripts_own_behind_a_recording(tmp_path: Path) -> None:
    # Given a hook on a parameter
    kept: list[Any] = []

    def change(gradient: Tensor) -> Tensor:
        return gradient * 2

    way = on_weight(change)
    between, register, behind = way

    def register_and_keep(network: Network) -> None:
        register(network)
        kept.append(network.enter.weight)

    # When its training was recorded, then the parameter has the hook that the script gave it
    recorded(tmp_path / "run", (between, register_and_keep, behind))
    assert list(kept[0]._backward_hooks.values()) == [change]
