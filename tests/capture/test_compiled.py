"""Compiled regions run as they do without a recorder, and are recorded at their boundary."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch._inductor.config
from harness import (
    Role,
    Training,
    as_tensor,
    bits_of,
    calls,
    check,
    named,
    not_seen,
    one_call,
    same,
    supervised,
    trace_of,
    values,
)
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.site import Phase

LEVELS = ("module", "api", "aten")

# The compiler warns about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit:FutureWarning"),  # from 2.15 on
    pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning"),
]


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(6, 4),)


class Body(nn.Sequential):
    """Layers with a function between them."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self:
            x = layer(x)
        return torch.tanh(x)


def body() -> nn.Module:
    return Body()


class Partly(nn.Module):
    """A model of which one part is compiled."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.stem, self.part, self.head = nn.Linear(4, 4), part, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.part(self.stem(x))))


def compiled_part(backend: str) -> nn.Module:
    return Partly(torch.compile(body(), backend=backend))  # type: ignore[arg-type]


def compiled_in_place(backend: str) -> nn.Module:
    part = body()
    part.compile(backend=backend)
    return Partly(part)


WAYS: dict[str, Callable[[str], nn.Module]] = {
    "torch.compile": compiled_part,
    "Module.compile": compiled_in_place,
}


def graphs() -> dict[str, int]:
    """What the compiler did since the last reset: graphs, breaks, recompilations."""
    found = {
        "graphs": counters["stats"]["unique_graphs"],
        "calls": counters["stats"]["calls_captured"],
        "breaks": sum(counters["graph_break"].values()),
        "frames": sum(counters["frames"].values()),
    }
    counters.clear()
    return found


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", LEVELS)
def test_a_compiled_module_is_recorded_at_its_boundary(
    tmp_path: Path, way: str, level: str
) -> None:
    # given a model of which one part is compiled
    def build() -> Training:
        torch._dynamo.reset()
        return supervised(WAYS[way]("aot_eager"), batch)

    torch.manual_seed(7)
    trace_of(build(), 2)
    bare = graphs()
    recording = check(build, tmp_path / "ref", level=level)

    # then the compiler does twice what it does for one training: bare and recorded
    both = graphs()
    assert bare["graphs"] > 0
    assert both == {name: 2 * count for name, count in bare.items()}
    # and the part has its tensors, gradients and buffers at the boundary, and nothing inside
    parts = calls(recording, "", "part")
    part = parts[0]
    stem = one_call(recording, "torch.nn.Linear", "stem")
    assert same(values(part, Role.INPUT), values(stem, Role.OUTPUT))
    assert same(values(part, Role.GRAD_INPUT), values(stem, Role.GRAD_OUTPUT))
    assert part.with_role(Role.GRAD_OUTPUT)
    assert any(record.name.endswith("running_mean") for record in part.with_role(Role.BUFFER))
    assert calls(recording, "", "part.0") == []
    assert [what for what in not_seen(recording) if "part" in what]
    # and its parameters are followed through gradient and update
    assert named(recording, "part.0.weight", Role.PARAM_AFTER)
    assert named(recording, "part.0.weight", Role.PARAM_GRAD)


@pytest.fixture
def _compiled_in_this_process() -> Iterator[None]:
    with torch._inductor.config.patch(compile_threads=1):
        yield


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_compiled_in_this_process")
def test_inductor_compiles_the_same_graphs(tmp_path: Path) -> None:
    def build() -> Training:
        torch._dynamo.reset()
        return supervised(Gated(torch.compile(gated, backend="inductor")), batch)

    torch.manual_seed(7)
    trace_of(build(), 1)
    bare = graphs()
    check(build, tmp_path / "ref", steps=1)

    assert graphs() == {name: 2 * count for name, count in bare.items()}


@pytest.mark.parametrize("level", LEVELS)
def test_a_model_compiled_as_a_whole_before_recording_is_not_compiled_again(
    tmp_path: Path, level: str
) -> None:
    # given a compiled model that has trained for a while
    model = body()
    compiled = torch.compile(model, backend="aot_eager")
    training = supervised(compiled, batch)  # type: ignore[arg-type]
    torch.manual_seed(7)
    trace_of(training, 2)
    before = graphs()
    assert before["graphs"] > 0

    # when two of its steps are recorded, and it trains on
    with lockstep.record(tmp_path / "ref", model=model, level=level, save="tensors"):
        trace_of(training, 3)
    trace_of(training, 1)

    # then nothing was compiled
    assert graphs()["frames"] == 0
    recording = lockstep.open(tmp_path / "ref")
    assert len(calls(recording, "", "")) >= 1
    weights = named(recording, "0.weight", Role.PARAM_AFTER, step=1)
    assert weights


def gated(x: Tensor, weight: Tensor) -> Tensor:
    return F.gelu(x @ weight) * torch.sigmoid(x)


class Gated(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.weight = nn.Parameter(torch.eye(4))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.lin(x), self.weight)


@pytest.mark.parametrize("level", LEVELS)
def test_a_function_compiled_while_recording_is_one_operator(tmp_path: Path, level: str) -> None:
    torch.manual_seed(7)
    bare_model = Gated(torch.compile(gated, backend="aot_eager"))
    bare = trace_of(supervised(bare_model, batch), 2)
    compiled = graphs()
    torch._dynamo.reset()

    torch.manual_seed(7)
    with lockstep.record(tmp_path / "ref", level=level, save="tensors"):
        # the decorator as it stands in a script that is run by `lockstep record`
        function = torch.compile(backend="aot_eager")(gated)
        training = supervised(Gated(function), batch)
        recorded = trace_of(training, 2)

    assert bare == recorded
    assert graphs() == compiled
    recording = lockstep.open(tmp_path / "ref")
    (call,) = calls(recording, "torch.compile(gated)")
    linear = one_call(recording, "torch.nn.Linear", "lin")
    assert call.site.module == ""
    assert same(values(call, Role.INPUT), values(linear, Role.OUTPUT))
    assert same(values(call, Role.GRAD_INPUT), values(linear, Role.GRAD_OUTPUT))
    assert [record.name for record in call.with_role(Role.PARAM_GRAD)] == ["weight"]
    # and afterwards it is the same function still
    assert torch.equal(function(torch.eye(4), torch.eye(4)), gated(torch.eye(4), torch.eye(4)))


@pytest.mark.parametrize("level", LEVELS)
def test_a_function_compiled_before_recording_is_one_operator_too(
    tmp_path: Path, level: str
) -> None:
    # given a compiled function that has run
    function = torch.compile(gated, backend="aot_eager")

    def build() -> Training:
        return supervised(Gated(function), batch)

    torch.manual_seed(7)
    trace_of(build(), 2)
    graphs()

    recording = check(build, tmp_path / "ref", level=level)

    # then recording compiles nothing, and it has its tensors and gradients at the boundary
    assert graphs()["graphs"] == 0
    assert "torch.compile(gated)" in not_seen(recording).popitem()[0]
    (call,) = calls(recording, "torch.compile(gated)")
    linear = one_call(recording, "torch.nn.Linear", "lin")
    assert same(values(call, Role.INPUT), values(linear, Role.OUTPUT))
    assert same(values(call, Role.GRAD_INPUT), values(linear, Role.GRAD_OUTPUT))
    assert [record.name for record in call.with_role(Role.PARAM_GRAD)] == ["weight"]


@pytest.mark.parametrize("level", LEVELS)
def test_a_compiled_optimizer_step(tmp_path: Path, level: str) -> None:
    def build() -> Training:
        torch._dynamo.reset()
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        compiled = torch.compile(optimizer.step, backend="aot_eager")

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).square().mean()
            loss.backward()
            compiled()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref", level=level)

    assert len(named(recording, "weight", Role.PARAM_AFTER)) == 1
    assert "its graph breaks" in not_seen(recording)["inside of torch.optim.SGD.step"]


@pytest.mark.parametrize("how", ["script", "trace"])
@pytest.mark.parametrize("level", LEVELS)
def test_scripted_and_traced_modules_are_recorded_at_their_boundary(
    tmp_path: Path, how: str, level: str
) -> None:
    def build() -> Training:
        part = body()
        example = torch.randn(6, 4)
        scripted = torch.jit.script(part) if how == "script" else torch.jit.trace(part, example)
        return supervised(Partly(scripted), batch)

    # the interpreter profiles its first runs and then optimizes: let it settle
    torch.jit.set_fusion_strategy([("STATIC", 0), ("DYNAMIC", 0)])
    recording = check(build, tmp_path / "ref", level=level)

    part = calls(recording, "", "part")[0]
    stem = one_call(recording, "torch.nn.Linear", "stem")
    assert same(values(part, Role.INPUT), values(stem, Role.OUTPUT))
    assert same(values(part, Role.GRAD_INPUT), values(stem, Role.GRAD_OUTPUT))
    assert as_tensor(named(recording, "part.0.weight", Role.PARAM_AFTER)[0]).shape == (8, 4)


def test_tracing_inside_a_step_traces_what_it_would_have_traced(tmp_path: Path) -> None:
    def build() -> Training:
        training = supervised(body(), batch)
        plain = training.step

        def step(number: int) -> list[Tensor]:
            value = plain(number)
            return [
                value,
                torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 2)))(torch.ones(1, 2)),
            ]

        training.step = step
        return training

    check(build, tmp_path / "ref")
    assert bits_of([]) == {}


def test_what_warns_is_scripted_inside_a_step(tmp_path: Path) -> None:
    def build() -> Training:
        training = supervised(body(), batch)
        plain = training.step

        def step(number: int) -> list[Tensor]:
            def warned(x: Tensor) -> Tensor:
                if x.dim() == 7:
                    warnings.warn("seven", stacklevel=1)
                return x + 1

            return [plain(number), torch.jit.script(warned)(torch.ones(1))]

        training.step = step
        return training

    check(build, tmp_path / "ref")


# --- what a comparison makes of it ----------------------------------------------------------------


class Activated(nn.Module):
    """Layers with a function between them that no setting of a module shows."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(4, 16), nn.Linear(16, 4)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.leave(self.activation(self.enter(x)))
        return out


def gelu(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="none")


def gelu_by_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def activated(
    path: Path, activation: Callable[[Tensor], Tensor], backend: str, *, eagerly: bool = False
) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), Activated(activation))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = 3.0 * torch.randn(2, 16, 4)
    with lockstep.record(path, model=model, steps="0:2", compile_eager=eagerly):
        called = torch.compile(model, backend=backend)
        for one in inputs:
            optimizer.zero_grad()
            called(one).square().mean().backward()
            optimizer.step()
    torch._dynamo.reset()
    return path


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_compiled_in_this_process")
def test_a_fault_inside_is_no_agreement_where_inductor_alone_is_one(tmp_path: Path) -> None:
    # given a run of which all is seen, and the same model compiled, which rounds otherwise
    eager = activated(tmp_path / "eager", gelu, "eager", eagerly=True)
    sound = activated(tmp_path / "sound", gelu, "inductor")
    found = lockstep.compare_recordings(eager, sound)
    assert (found.verdict, found.origins, found.not_compared) == (Verdict.AGREE, (), ())

    # when a function in there is an approximation of what it should be
    faulty = activated(tmp_path / "faulty", gelu_by_tanh, "aot_eager")
    for reference in (eager, sound):
        found = lockstep.compare_recordings(reference, faulty)

        # then the model is named, and the way to see more
        origin = found.origins[0]
        assert (found.verdict, origin.step, origin.phase) == (Verdict.DIVERGED, 0, Phase.FORWARD)
        assert "record --compile-eager shows it" in origin.reason

    # and with that the function is
    seen = activated(tmp_path / "seen", gelu_by_tanh, "aot_eager", eagerly=True)
    origin, *others = lockstep.compare_recordings(eager, seen).origins
    assert (origin.module, origin.op, others) == ("1", "torch.nn.functional.gelu", [])
    assert 'approximate is "none" in the reference and "tanh" in the candidate' in origin.reason
