"""`--compile-eager`: what is captured for compiling runs operator by operator, and is seen as in an eager run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_bench import WAYS, Net, built
from harness import Role, bits_of, not_seen
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep.capture.compiled.graphs import moved_path
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.store.reader import Recording

# The compiler warns about itself.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]


def recorded(path: Path, way: str, *, level: str = "api", eagerly: bool = True) -> Recording:
    with lockstep.record(path, save="tensors", level=level, compile_eager=eagerly):
        step = built(way)
        losses = [step(number) for number in range(2)]
    # Recorded or not, the eager kernels give the same numbers.
    bare = built("eager")
    assert bits_of([bare(number) for number in range(2)]) == bits_of(losses)
    recording = lockstep.open(path)
    assert all(rank.manifest.stopped_because == "" for rank in recording.ranks.values())
    return recording


def model_calls(recording: Recording) -> list[Call]:
    (rank,) = recording.ranks.values()
    return [call for call in rank.calls(1) if call.kind in (CallKind.MODULE, CallKind.OPERATOR)]


def seen(recording: Recording) -> list[tuple[Any, ...]]:
    """Calls of the model by place and operator, with what was recorded of each."""
    found = []
    for call in model_calls(recording):
        op = "" if call.kind is CallKind.MODULE else call.site.op
        custom = "Scaled" in op or "ApplyTemplate" in op
        roles = sorted((record.role.value, record.index) for record in call.records)
        found.append((call.kind, call.site.module, "custom" if custom else op, roles))
    return found


@pytest.fixture(scope="module")
def eager(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return recorded(tmp_path_factory.mktemp("eager") / "ref", "eager", eagerly=False)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("way", [way for way in WAYS if way != "graph breaks"])
def test_every_call_is_seen_as_in_the_eager_run(tmp_path: Path, eager: Recording, way: str) -> None:
    recording = recorded(tmp_path / "compiled", way)

    assert seen(recording) == seen(eager)
    assert "the compiler's own kernels" in not_seen(recording)
    (rank,) = recording.ranks.values()
    assert all("boundary" not in item.reason for item in rank.manifest.not_seen)
    # and operators have the lines that call them
    lines = {call.site.op: call.source.rpartition(":")[2] for call in model_calls(recording)}
    expected = {call.site.op: call.source.rpartition(":")[2] for call in model_calls(eager)}
    assert lines["torch.nn.functional.gelu"] == expected["torch.nn.functional.gelu"]
    # and the comparison has a partner for everything
    compared = compare_recordings(eager, recording)
    assert compared.verdict is Verdict.AGREE
    assert not compared.origins


def test_between_the_graphs_of_a_model_that_breaks_what_is_captured_is_seen(
    tmp_path: Path, eager: Recording
) -> None:
    recording = recorded(tmp_path / "compiled", "graph breaks")

    operators = {
        (call.site.module, call.site.op)
        for call in model_calls(recording)
        if call.kind is CallKind.OPERATOR
    }
    assert ("block.fc", "torch.nn.functional.linear") in operators
    assert ("head", "torch.nn.functional.linear") in operators


def test_aten_operators_are_seen_too(tmp_path: Path) -> None:
    recording = recorded(tmp_path / "compiled", "whole", level="aten")

    operators = {(call.site.module, call.site.op) for call in model_calls(recording)}
    assert ("block.fc", "aten.addmm.default") in operators
    (rank,) = recording.ranks.values()
    backward = {call.site.op for call in rank.calls(1) if call.site.phase.value == "backward"}
    assert "aten.gelu_backward.default" in backward


class Twins(nn.Module):
    """Two modules of one class, of which each is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False)
        return x


def test_a_checkpoint_inside_is_seen_through(tmp_path: Path) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Twins()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(tmp_path / "ref", save="tensors", compile_eager=True):
        compiled = torch.compile(model)
        for _ in range(2):
            optimizer.zero_grad()
            compiled(torch.ones(3, 4)).sum().backward()
            optimizer.step()

    called = model_calls(lockstep.open(tmp_path / "ref"))
    linear = [call for call in called if call.site.op == "torch.nn.functional.linear"]
    assert [call.site.module for call in linear] == [f"parts.{number}.0" for number in range(3)]
    assert all(call.with_role(Role.PARAM_GRAD) for call in linear)


def test_what_was_compiled_before_is_recorded_at_its_boundary(tmp_path: Path) -> None:
    # given a model that was compiled before recording began
    torch._dynamo.reset()
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model, backend="aot_eager")

    with lockstep.record(tmp_path / "ref", compile_eager=True):
        for _ in range(2):
            optimizer.zero_grad()
            compiled(torch.arange(5)).sum().backward()
            optimizer.step()

    (rank,) = lockstep.open(tmp_path / "ref").ranks.values()
    assert any("boundary" in item.reason for item in rank.manifest.not_seen)


def test_a_graph_that_serves_several_modules_tells_them_apart_by_their_parameters() -> None:
    assert moved_path(
        ["h.0.norm.weight", "", "h.0.fc.bias"], ["h.1.norm.weight", "", "h.1.fc.bias"]
    ) == (
        "h.0",
        "h.1",
    )
    assert moved_path(["h.0.norm.weight"], ["h.0.norm.weight"]) == ("", "")
