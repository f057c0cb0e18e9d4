"""Graphs of so many operators that freeing them in one recursion would end the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from harness import Training, check, supervised
from torch import Tensor, nn

from lockstep.capture.calls.long_graphs import _SPACING, LongGraphs

LONG = 20_000
STACK_BYTES = 2 << 20
"""Twice what so long a graph would leave of it."""


def with_little_stack(run: Callable[[], None]) -> None:
    """Run something in a thread; what it raises is raised here."""
    before = threading.stack_size(STACK_BYTES)
    try:
        with ThreadPoolExecutor(1) as pool:
            pool.submit(run).result()
    finally:
        threading.stack_size(before)


class Chain(nn.Module):
    """A layer, and very many operators behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        for _ in range(LONG):
            x = x * 1.0
        return x


def test_a_graph_that_runs_bare_runs_recorded(tmp_path: Path) -> None:
    # given a training whose graph torch frees node by node
    def build() -> Training:
        return supervised(Chain(), lambda: (torch.ones(1, 2),))

    # when it is recorded, then it is freed as well
    def run() -> None:
        recording = check(build, tmp_path / "rec", save="stats", steps=1)
        (step,) = recording.ranks["rank0"].manifest.steps
        assert step.complete

    with_little_stack(run)


def test_what_is_held_points_back_in_time() -> None:
    # given a graph
    graphs = LongGraphs()
    end = torch.ones(1, requires_grad=True) * 1.0
    nodes = []
    for _ in range(3 * _SPACING):
        end = end * 1.0
        assert end.grad_fn is not None
        nodes.append(end.grad_fn)
    # when its nodes are met, the last of them again, and some by another thread
    graphs.met(nodes)
    graphs.met(nodes[-1:] * _SPACING)
    thread = threading.Thread(target=graphs.met, args=(nodes[:_SPACING],))
    thread.start()
    thread.join()
    # then each that holds another holds an older one
    held = {node: node.metadata["lockstep"] for node in nodes if "lockstep" in node.metadata}
    assert len(held) == 2
    assert all(node._sequence_nr() > older._sequence_nr() for node, older in held.items())
    # and once they are forgotten nothing begins where they end
    graphs.forget()
    graphs.met(nodes[:_SPACING])
    assert "lockstep" not in nodes[_SPACING - 1].metadata
