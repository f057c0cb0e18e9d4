"""Scripts that put functions of their own in the place of torch's: each runs as often as it does without Lockstep."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import CallKind, Training, calls, check
from torch import Tensor, nn

Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def _scaled(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value * 1.25 if value.is_floating_point() else value
    return type(value)(map(_scaled, value)) if isinstance(value, (tuple, list)) else value


class Wrapped:
    """One attribute wrapped by a function that counts its calls and changes what comes back.

    With ``keeps_name`` it looks like the original, as `functools.wraps` makes it.
    """

    def __init__(self, owner: Any, name: str, *, keeps_name: bool) -> None:
        self.owner, self.name, self.keeps_name = owner, name, keeps_name
        self.count = 0
        self._original: Any = None

    def put(self) -> None:
        original = self._original = getattr(self.owner, self.name)

        def wrapper(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.name == "backward":
                return original(args[0] * 1.25, *args[1:], **kwargs)
            if self.name == "register_hook":
                return original(args[0], lambda gradient: args[1](gradient) * 1.25)
            return _scaled(original(*args, **kwargs))

        setattr(
            self.owner,
            self.name,
            functools.wraps(original)(wrapper) if self.keeps_name else wrapper,
        )

    def take_back(self) -> None:
        setattr(self.owner, self.name, self._original)


PLACES: dict[str, tuple[Any, str]] = {
    "Module.__call__": (nn.Module, "__call__"),
    "backward": (Tensor, "backward"),
    "split": (Tensor, "split"),
    "norm": (Tensor, "norm"),
    "unique": (Tensor, "unique"),
    "register_hook": (Tensor, "register_hook"),
    "mul": (Tensor, "mul"),
    "__add__": (Tensor, "__add__"),
    "functional.gelu": (nn.functional, "gelu"),
    "functional.softmax": (nn.functional, "softmax"),
    "torch.stack": (torch, "stack"),
}


@pytest.fixture(autouse=True)
def _leave_torch_as_it_was() -> Any:
    before = {place: vars(place[0]).get(place[1]) for place in PLACES.values()}
    yield
    for (owner, name), value in before.items():
        if value is None:
            if name in vars(owner):
                delattr(owner, name)
        elif vars(owner)[name] is not value:
            setattr(owner, name, value)


def _training(wrapped: Wrapped, put_at: int, taken_back_at: int, counts: list[int]) -> Training:
    """Puts the wrapper in place in the middle of one step, and takes it back in the middle of another."""
    model = nn.Sequential(nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped.count = 0
    if put_at < 0:
        wrapped.put()

    def step(number: int) -> Tensor:
        optimizer.zero_grad()
        if number == put_at:
            wrapped.put()
        x = model(torch.randn(8, 20)).mul(2)
        left, right = x.split([1, 2], dim=1)
        x.register_hook(lambda gradient: gradient * 1.0)
        y = nn.functional.softmax(nn.functional.gelu(left + right), dim=1)
        loss = torch.stack([y.square().mean(), x.norm() * 0.01]).sum()
        (loss + x.detach().round().unique().sum() * 1e-3).backward()
        if number == taken_back_at:
            wrapped.take_back()
        optimizer.step()
        counts.append(wrapped.count)
        return loss.detach()

    return Training(model, step, optimizers=[optimizer])


@pytest.mark.parametrize("level", ["module", "api", "aten"])
@pytest.mark.parametrize("put_at", [-1, 0, 1], ids=["before", "in step 0", "in step 1"])
@pytest.mark.parametrize("name", PLACES)
def test_a_wrapper_of_the_scripts_runs_as_often_as_without(
    name: str, put_at: int, level: str, tmp_path: Path
) -> None:
    # given a script that wraps a function of torch for some steps
    wrapped = Wrapped(*PLACES[name], keeps_name=put_at != 0)
    counts: list[int] = []

    # when it is recorded, at steps of which some come while it is wrapped
    check_without_patches(
        lambda: _training(wrapped, put_at, 2, counts), tmp_path / "recording", level=level
    )

    # then the wrapper ran as often, and changed the training as much
    assert counts[:4] == counts[4:]
    assert counts[3] > 0


def check_without_patches(build: Callable[[], Training], directory: Path, *, level: str) -> None:
    """As `check`, where the script itself leaves torch changed when recording begins or ends."""
    from harness import trace_of

    import lockstep

    torch.manual_seed(7)
    bare = trace_of(build(), 4)
    torch.manual_seed(7)
    with lockstep.record(directory, steps="0,2:4", level=level):
        recorded = trace_of(build(), 4)
    assert {key for key in bare if bare[key] != recorded.get(key)} == set()


def test_wrapped_functions_are_recorded_once_under_torchs_name(tmp_path: Path) -> None:
    # given a script that has wrapped a method for good
    wrapped = Wrapped(Tensor, "split", keeps_name=False)
    wrapped.put()
    counts: list[int] = []
    recording = check(lambda: _training(wrapped, 9, 9, counts), tmp_path / "recording", steps=1)
    wrapped.take_back()

    # when it is recorded, then torch's own call is there, once, between what the wrapper does
    ops = Counter(call.site.op for call in calls(recording, kind=CallKind.OPERATOR))
    assert ops["torch.Tensor.split"] == 1


def test_modules_are_seen_again_after_the_script_put_torchs_call_back(tmp_path: Path) -> None:
    # given a script that wrapped modules' call before recording, and takes it back within a step
    from harness import trace_of

    import lockstep

    wrapped = Wrapped(nn.Module, "__call__", keeps_name=True)
    with lockstep.record(tmp_path / "recording", steps=4):
        trace_of(_training(wrapped, -1, 1, []), 4)

    # when later steps are recorded, then their modules are there
    recording = lockstep.open(tmp_path / "recording")
    assert len(calls(recording, kind=CallKind.MODULE, step=0)) == 4
    assert len(calls(recording, kind=CallKind.MODULE, step=3)) == 4
