"""Results of few numbers, such as norms of gradients: a few runs with rounding do not tell how far these may be off."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lockstep
from lockstep.core.laws import Breach
from lockstep.core.site import Role
from lockstep.laws.own_runs import Carried, OwnRun, OwnRuns, own_runs
from lockstep.laws.sound_kernels import kernels
from lockstep.laws.step_events import Node, StepOfRun
from lockstep.laws.step_sides import Side, side_of

pytestmark = pytest.mark.filterwarnings(
    "ignore:TF32 acceleration"
)  # torch says so where oneDNN is set


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training under bfloat16 autocast, whose gradients are clipped to one norm."""
    path = tmp_path_factory.mktemp("few") / "recording"
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Linear(24, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh(), nn.Linear(48, 6)
    )
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    with lockstep.record(path, model=net, steps="0:1", save="tensors"):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(net(torch.randn(64, 24)), torch.arange(64) % 6)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step()
    return path


@pytest.fixture(scope="module")
def side(recording: Path) -> Side:
    calls = tuple(lockstep.open(recording).ranks["rank0"].calls(0))
    return side_of("candidate", StepOfRun(calls))


def norms_of(side: Side) -> list[Node]:
    """The norms of single gradients."""
    return [
        Node(one.call.id, record.index)
        for one in side.program.operators
        if one.call.site.op.endswith("_foreach_norm")
        for record in one.call.with_role(Role.OUTPUT)
    ]


def hardly_moved(side: Side, runs: OwnRuns, nodes: list[Node]) -> OwnRuns:
    """Runs in which rounding happens to move results by a twentieth of what the recorded ones are off."""
    off = {}
    for one in side.program.operators:
        for record in one.call.with_role(Role.OUTPUT):
            node = Node(one.call.id, record.index)
            if node in nodes:
                truth = runs.exact.run.values[node]
                off[node] = side.numbers.apart([record], truth).distance / 20

    def still(one: OwnRun) -> OwnRun:
        return replace(one, off={**one.off, **off})

    return replace(
        runs,
        draws=[still(one) for one in runs.draws],
        at_kinks=[still(one) for one in runs.at_kinks],
    )


def places(breaches: list[Breach]) -> set[Node]:
    return {Node(*one.candidate_at) for one in breaches if one.candidate_at}


def test_a_norm_that_all_runs_happen_to_leave_is_no_fault(side: Side) -> None:
    # given runs with rounding, none of which moves a norm of a gradient by a sixth of what a sound kernel is off
    norms = norms_of(side)
    assert len(norms) == 6
    runs = hardly_moved(side, own_runs(side, Carried()), norms)
    # when the recorded norms are held against them
    found = kernels(side, runs, with_places=True)
    # then further runs tell how far rounding takes them
    assert not places(found.breaches) & set(norms)


@pytest.mark.parametrize("factor", [1.05, 0.0])
def test_a_norm_that_is_off_is_a_fault_still(side: Side, factor: float) -> None:
    # given a program whose norms are others than the recorded ones
    norms = norms_of(side)
    runs = hardly_moved(side, own_runs(side, Carried()), norms)
    right = {node: runs.exact.run.values[node] for node in norms}
    for node in norms:
        runs.exact.run.values[node] = right[node] * factor
    try:
        # when it is held against what was recorded
        found = kernels(side, runs, with_places=True)
    finally:
        runs.exact.run.values.update(right)
    # then each is named, at the distance that it is off
    assert places(found.breaches) >= set(norms)


def test_further_runs_take_what_steps_before_have_left_with_other_noise(side: Side) -> None:
    # given weights that the steps before have left, of which rounding has moved each element
    weight = next(record for name, record in side.starts.items()) if side.starts else None
    content = 7 if weight is None else weight.content.id
    exact = torch.arange(1.0, 65.0, dtype=torch.float64)
    rounded = exact + 1e-3
    runs = own_runs(side, Carried())
    more = replace(runs.more, exact={content: exact}, rounded={content: rounded})
    # when two further runs take them
    generator = torch.Generator().manual_seed(3)
    one, two = (more._carried(generator)[content] for _ in range(2))
    # then each element is as far off, to one side or the other
    assert torch.allclose((one - exact).abs(), rounded - exact)
    assert not torch.equal(one, two)
    assert 0 < int((one > exact).sum()) < 64
