"""Whatever a call takes and gives: containers, keywords, shared modules, branches, every dtype."""

from __future__ import annotations

import itertools
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import (
    CallKind,
    Role,
    Training,
    as_tensor,
    calls,
    check,
    named,
    one_call,
    one_record,
    same,
    supervised,
    values,
)
from torch import Tensor, nn

LEVELS = ("module", "api", "aten")
Pair = namedtuple("Pair", ["state", "score"])


class ModelOutput(OrderedDict):  # type: ignore[type-arg]
    """A mapping with attributes, as `transformers` returns it."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


@dataclass
class Output:
    state: Tensor
    score: Tensor
    note: str = "kept"
    missing: Tensor | None = None


class Inner(nn.Module):
    def __init__(self, pack: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.pack = pack

    def forward(self, x: Tensor, *, scale: Tensor | None = None) -> Any:
        y = self.lin(x)
        return self.pack(y, y.sum(1) if scale is None else y.sum(1) * scale)


class Outer(nn.Module):
    def __init__(
        self, pack: Callable[[Tensor, Tensor], Any], unpack: Callable[[Any], tuple[Tensor, Tensor]]
    ) -> None:
        super().__init__()
        self.inner = Inner(pack)
        self.unpack = unpack

    def forward(self, x: Tensor) -> Tensor:
        state, score = self.unpack(self.inner(x))
        return state * score[:, None]


CONTAINERS = {
    "tuple": (lambda a, b: (a, b), tuple, ["result.0", "result.1"]),
    "list": (lambda a, b: [a, b], tuple, ["result.0", "result.1"]),
    "dict": (
        lambda a, b: {"state": a, "score": b},
        lambda o: (o["state"], o["score"]),
        ["result.state", "result.score"],
    ),
    "nested": (
        lambda a, b: {"all": (a, [b])},
        lambda o: (o["all"][0], o["all"][1][0]),
        ["result.all.0", "result.all.1.0"],
    ),
    "namedtuple": (Pair, tuple, ["result.state", "result.score"]),
    "dataclass": (Output, lambda o: (o.state, o.score), ["result.state", "result.score"]),
    "ModelOutput": (
        lambda a, b: ModelOutput(state=a, score=b),
        lambda o: (o.state, o.score),
        ["result.state", "result.score"],
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("container", CONTAINERS)
@pytest.mark.parametrize("level", LEVELS)
def test_tensors_in_any_container_are_recorded_with_their_gradients(
    tmp_path: Path, container: str, level: str
) -> None:
    # given a module that returns two tensors in a container
    pack, unpack, names = CONTAINERS[container]

    def build() -> Training:
        return supervised(Outer(pack, unpack), lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref", level=level)

    # then both are recorded, and the gradients that arrive at each
    inner = one_call(recording, "Inner", "inner")
    assert [record.name for record in inner.with_role(Role.OUTPUT)] == names
    state, score = values(inner, Role.OUTPUT, 0), values(inner, Role.OUTPUT, 1)
    assert same(score, state.sum(1))
    product = (state * score[:, None]).requires_grad_()
    grad = torch.autograd.grad(product.square().mean(), product)[0]
    to_score = (grad * state).sum(1)
    assert torch.allclose(values(inner, Role.GRAD_OUTPUT, 1), to_score)
    # the state has another use inside, which is part of its gradient
    to_state = grad * score[:, None] + to_score[:, None]
    assert torch.allclose(values(inner, Role.GRAD_OUTPUT, 0), to_state)


def test_keyword_arguments_are_inputs_with_gradients(tmp_path: Path) -> None:
    # given a module that is called with keywords only
    class ByKeyword(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))
            self.inner = Inner(lambda a, b: {"state": a, "score": b})

        def forward(self, x: Tensor) -> Tensor:
            output = self.inner(x=x * 1, scale=self.scale * 2)
            return output["score"] * output["state"].mean()

    def build() -> Training:
        return supervised(ByKeyword(), lambda: (torch.randn(3, 4, requires_grad=True),))

    recording = check(build, tmp_path / "ref")

    # then they are named and their gradients recorded
    inner = one_call(recording, "Inner", "inner")
    inputs = {record.name: record.index for record in inner.with_role(Role.INPUT)}
    assert set(inputs) == {"kwargs.x", "kwargs.scale"}
    total = values(inner, Role.GRAD_INPUT, inputs["kwargs.scale"])
    (scale,) = list(named(recording, "scale", Role.PARAM_GRAD))[-1:]
    assert same(as_tensor(scale), total * 2)
    double = [call for call in calls(recording, "mul", "") if call.arguments.get("args.1") == 1]
    assert same(
        values(inner, Role.GRAD_INPUT, inputs["kwargs.x"]), values(double[0], Role.GRAD_OUTPUT)
    )


@pytest.mark.parametrize("level", LEVELS)
def test_a_shared_module_is_recorded_at_each_call(tmp_path: Path, level: str) -> None:
    # given one layer used three times
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.alias = self.lin

        def forward(self, x: Tensor) -> Tensor:
            return self.alias(self.lin(self.lin(x).tanh()).tanh())

    def build() -> Training:
        return supervised(Shared(), lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref", level=level)

    # then its calls are numbered, each with its own tensors and gradients
    used = calls(recording, "torch.nn.Linear", "lin")
    assert [call.site.call for call in used] == [0, 1, 2]
    for before, after in itertools.pairwise(used):
        activation = values(before, Role.OUTPUT).tanh()
        assert same(values(after, Role.INPUT), activation)
        grad = values(after, Role.GRAD_INPUT) * (1 - activation * activation)
        assert torch.allclose(values(before, Role.GRAD_OUTPUT), grad, rtol=1e-5)
    if level == "api":
        # and what the three calls send to the weight adds up to its gradient
        parts = [
            as_tensor(record)
            for call in calls(recording, "torch.nn.functional.linear", "lin")
            for record in call.with_role(Role.PARAM_GRAD)
            if record.name == "lin.weight"
        ]
        (total,) = calls(recording, "accumulate_grad", "lin", kind=CallKind.GRADIENT)[:1]
        grads = {
            r.name: as_tensor(r)
            for c in calls(recording, "accumulate_grad", "lin", kind=CallKind.GRADIENT)
            for r in c.records
        }
        assert len(parts) == 3
        assert total.records
        assert torch.allclose(sum(parts), grads["lin.weight"], rtol=1e-5)


def test_each_branch_of_a_residual_stream_sends_its_own_gradient(tmp_path: Path) -> None:
    # given x + f(x) + g(x), where x comes out of a layer
    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Linear(4, 4)
            self.left = nn.Linear(4, 4)
            self.right = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: Tensor) -> Tensor:
            x = self.stem(x)
            return torch.add(x, self.left(x)) + self.right(x)

    def build() -> Training:
        return supervised(Residual(), lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref")

    # then each branch has the contribution that an isolated backward gives
    left = one_call(recording, "torch.nn.Linear", "left")
    weight = as_tensor(
        next(
            record
            for call in calls(recording, "torch.nn.Linear", "left", kind=CallKind.INIT)
            for record in call.records
            if record.name == "left.weight"
        )
    )
    alone = values(left, Role.GRAD_OUTPUT) @ weight
    assert torch.allclose(values(left, Role.GRAD_INPUT), alone, rtol=1e-5)
    skip = one_call(recording, "torch.add")
    right = one_call(recording, "Sequential", "right")
    parts = [values(call, Role.GRAD_INPUT) for call in (skip, left, right)]
    assert not torch.allclose(parts[0], sum(parts))
    # and they add up to what the stem gets
    stem = one_call(recording, "torch.nn.Linear", "stem")
    assert torch.allclose(values(stem, Role.GRAD_OUTPUT), sum(parts), rtol=1e-5, atol=1e-7)


def test_a_module_with_a_skip_inside_sums_its_branches(tmp_path: Path) -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.lin(x)

    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), Block())
        return supervised(model, lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref")

    block = one_call(recording, "Block", "1")
    inner = one_call(recording, "torch.nn.Linear", "1.lin")
    total = values(block, Role.GRAD_OUTPUT) + values(inner, Role.GRAD_INPUT)
    assert torch.allclose(values(block, Role.GRAD_INPUT), total)
    assert same(
        values(one_call(recording, "torch.nn.Linear", "0"), Role.GRAD_OUTPUT),
        values(block, Role.GRAD_INPUT),
    )


STRANGE = {
    "bfloat16": torch.randn(3, 4).to(torch.bfloat16),
    "float16": torch.randn(3, 4).to(torch.float16),
    "float64": torch.randn(3, 4, dtype=torch.float64),
    "float8_e4m3fn": torch.randn(3, 4).to(torch.float8_e4m3fn),
    "float8_e5m2": torch.randn(3, 4).to(torch.float8_e5m2),
    "int64": torch.arange(12).reshape(3, 4),
    "int8": torch.arange(12, dtype=torch.int8),
    "uint8": torch.arange(12, dtype=torch.uint8),
    "uint16": torch.arange(12).to(torch.uint16),
    "bool": torch.tensor([True, False]),
    "complex64": torch.randn(3, 4, dtype=torch.complex64),
    "complex128": torch.randn(3, dtype=torch.complex128),
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "nan": torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -0.0]),
    "transposed": torch.randn(3, 4).t(),
    "expanded": torch.randn(1, 4).expand(3, 4),
}


class Passing(nn.Module):
    """Hands a strange tensor through a module of its own."""

    def __init__(self, strange: Tensor) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.through = Through()
        self.strange = strange

    def forward(self, x: Tensor) -> Tensor:
        self.through(self.strange)
        return self.lin(x)


class Through(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.clone() if x.layout is torch.strided else x.coalesce()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
@pytest.mark.parametrize("kind", STRANGE)
def test_tensors_of_every_dtype_and_shape_come_back(tmp_path: Path, kind: str, save: str) -> None:
    strange = STRANGE[kind]

    def build() -> Training:
        return supervised(Passing(strange), lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref", steps=1, save=save)

    through = one_call(recording, "Through", "through")
    for role in (Role.INPUT, Role.OUTPUT):
        record = one_record(through, role)
        assert record.dtype == str(strange.dtype).removeprefix("torch.")
        assert record.shape == tuple(strange.shape)
        assert record.digest is not None
        assert record.statistics is not None
        if save == "tensors":
            assert same(as_tensor(record), strange)
    assert one_record(through, Role.INPUT).digest == one_record(through, Role.OUTPUT).digest


UNREADABLE = {
    "sparse_coo": (torch.eye(4).to_sparse(), "sparse_coo layout"),
    "meta": (torch.empty(3, device="meta"), "meta tensor, it has no data"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_tensors_without_numbers_are_recorded_with_the_reason(tmp_path: Path, kind: str) -> None:
    strange, reason = UNREADABLE[kind]

    class Pass(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    def build() -> Training:
        model = Passing(strange)
        model.through = Pass()
        return supervised(model, lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref", steps=1)

    record = one_record(one_call(recording, "Pass", "through"), Role.INPUT)
    assert record.content.note == reason
    assert record.digest is None
    assert record.shape == tuple(strange.shape)


def test_a_conjugated_view_is_recorded_as_what_it_shows(tmp_path: Path) -> None:
    strange = torch.randn(4, dtype=torch.complex64)

    class Conjugate(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.conj()

    def build() -> Training:
        model = Passing(strange)
        model.through = Conjugate()
        return supervised(model, lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref", steps=1)

    through = one_call(recording, "Conjugate", "through")
    assert same(values(through, Role.INPUT), strange)
    assert same(values(through, Role.OUTPUT), strange.conj().resolve_conj())


def test_a_gradient_that_is_not_finite_is_recorded(tmp_path: Path) -> None:
    def build() -> Training:
        return supervised(
            nn.Linear(4, 4), lambda: (torch.randn(3, 4),), loss=lambda y: (y * 1e38 * 1e38).sum()
        )

    recording = check(build, tmp_path / "ref")

    record = one_record(one_call(recording, "torch.nn.Linear"), Role.GRAD_OUTPUT)
    assert record.statistics is not None
    assert record.statistics.inf_count + record.statistics.nan_count == 12


def test_arguments_that_are_no_tensors_are_kept(tmp_path: Path) -> None:
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4, eps=1e-3), nn.Softmax(dim=1))
        return supervised(model, lambda: (torch.randn(3, 4),))

    recording = check(build, tmp_path / "ref")

    assert one_call(recording, "LayerNorm", "1").arguments["eps"] == 1e-3
    assert one_call(recording, "softmax", "2").arguments["kwargs.dim"] == 1
    assert one_call(recording, "layer_norm", "1").arguments["kwargs.eps"] == 1e-3
