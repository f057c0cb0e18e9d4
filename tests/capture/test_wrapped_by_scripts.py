"""Scripts that put functions of their own in the place of torch's: each runs as often as it does without Lockstep."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import CallKind, Training, calls, check
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function

import lockstep

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


@pytest.mark.sampled(5)
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

    wrapped = Wrapped(nn.Module, "__call__", keeps_name=True)
    with lockstep.record(tmp_path / "recording", steps="0:4"):
        trace_of(_training(wrapped, -1, 1, []), 4)

    # when later steps are recorded, then their modules are there
    recording = lockstep.open(tmp_path / "recording")
    assert len(calls(recording, kind=CallKind.MODULE, step=0)) == 4
    assert len(calls(recording, kind=CallKind.MODULE, step=3)) == 4


_NOT_OF_CALLS = frozenset(
    {"__class__", "__dir__", "__format__", "__getattribute__", "__hash__", "__init__", "__new__"}
    | {"__reduce__", "__reduce_ex__", "__repr__", "__setattr__", "__sizeof__", "__str__"}
    | {"as_subclass"}
)


class WrappedMethods:
    """Every method of tensors that is written in C, wrapped by a function that counts its calls.

    For good: a type keeps the slots of its `__getitem__` once that was set, also where it is taken back, and
    `torch.tensor([torch.tensor(1)])` fails from then on. So this is done in a process of its own.
    """

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        for name in set(dir(torch._C.TensorBase)) - _NOT_OF_CALLS:
            method = getattr(torch._C.TensorBase, name)
            if type(method).__name__ in ("method_descriptor", "wrapper_descriptor"):
                setattr(Tensor, name, self._counting(name, method))

    def _counting(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return method(*args, **kwargs)

        return counting


def _of_every_kind() -> None:
    """Two steps over dtypes, layouts and memory that are each looked at in another way."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    optimizer = torch.optim.Adam(model.parameters())
    places = torch.tensor([0, 1])
    for _ in range(2):
        output = model(torch.randn(3, 4).to(torch.float64).float())
        halves = torch.zeros(3, 2).half().scatter_(0, places.view(1, 2), 2.0)
        halves[0] = 1
        waves = torch.randn(700, dtype=torch.complex64)
        found = torch.empty(4, 4).index_fill_(0, places, 1.0)
        loss = output.transpose(0, 1).contiguous().sum() + (output[0] * output.detach()[1]).sum()
        loss = loss + torch.randn(700).half().float().mean() + (waves * waves.conj()).real.sum()
        (loss + halves.sum() + found[0].sum()).backward()
        optimizer.step()


def _counted_bare_and_recorded(folder: Path) -> dict[str, tuple[Counter[str], Counter[str]]]:
    """How often each method runs without recording and with it, for three ways to record."""
    # given a script that has wrapped every method of tensors
    wrapped = WrappedMethods()
    _of_every_kind()
    bare, wrapped.counts = wrapped.counts, Counter()

    # when it is recorded
    found = {}
    for level, save in (("module", "stats"), ("api", "sketch"), ("aten", "tensors")):
        with lockstep.record(folder / level, steps="0:2", level=level, save=save):
            _of_every_kind()
        found[level], wrapped.counts = (bare, wrapped.counts), Counter()
    return found


def test_no_method_of_tensors_runs_more_often_than_without(tmp_path: Path) -> None:
    with ProcessPoolExecutor(1, get_context("spawn")) as beside:
        found = beside.submit(_counted_bare_and_recorded, tmp_path).result()

    # then recording itself has called none of the wrappers, and has seen all
    assert list(found) == ["module", "api", "aten"]
    for level, (bare, recorded) in found.items():
        assert recorded == bare
        assert len(bare) > 20
        assert lockstep.open(tmp_path / level).missing == ()


class _UnsayableError(Exception):
    def __str__(self) -> str:
        raise ValueError("what went wrong cannot be said")


class _Refuses(Mapping[str, Tensor]):
    """A mapping that refuses to be looked into."""

    def __getitem__(self, key: str) -> Tensor:
        raise _UnsayableError

    def __iter__(self) -> Iterator[str]:
        return iter(["a"])

    def __len__(self) -> int:
        return 1


class _Cut(tuple[Any, ...]):
    """A tuple that refuses to be cut."""

    def __getitem__(self, key: Any) -> Any:
        raise _UnsayableError


class _Given(nn.Module):
    def __init__(self, given: object) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.given = given

    def forward(self, x: Tensor, given: object) -> Any:
        return _Cut((self.linear(x),))


@pytest.mark.parametrize("inside", [True, False], ids=["in a module", "in an operator"])
def test_what_refuses_to_be_looked_at_is_left_out_and_noted(inside: bool, tmp_path: Path) -> None:
    # given a training whose modules and operators are given what raises when it is looked at
    def train() -> list[float]:
        torch.manual_seed(5)
        model = _Given(None)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        losses = []
        for _ in range(2):
            (output,) = model(torch.ones(2, 4), _Refuses() if inside else None)
            if not inside:
                with_refusing(output, _Refuses())
            output.sum().backward()
            optimizer.step()
            losses.append(output.sum().item())
        return losses

    def with_refusing(x: Tensor, given: object) -> Tensor:
        if has_torch_function((x,)):
            return handle_torch_function(with_refusing, (x,), x, given)
        return x

    bare = train()
    # when it is recorded, then it runs to its end as it does bare
    with lockstep.record(tmp_path / "recording", steps="0:2"):
        assert train() == bare
    # and both steps are there, with a note of what was left out
    rank = lockstep.open(tmp_path / "recording").ranks["rank0"]
    assert rank.complete_steps == (0, 1)
    assert any("_UnsayableError" in gap.reason for gap in rank.manifest.not_seen)
