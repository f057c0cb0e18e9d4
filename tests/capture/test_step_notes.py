"""Counts of what a step's calls do not show: gradients asked for by hand, numbers that Python took."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Training, check
from torch import Tensor, nn

from lockstep.core.manifest import StepSummary


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, value: Tensor) -> Tensor:
        result: Tensor = self.last(torch.tanh(self.first(value)))
        return result


def noted(tmp_path: Path, step: Any, **options: Any) -> StepSummary:
    """The counts of the first step of a training."""

    def build() -> Training:
        model = Model()
        optimizer = torch.optim.Adam(model.parameters())

        def train(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.randn(3, 4)).square().mean()
            step(model, loss)
            optimizer.step()
            return loss.detach()

        return Training(model, train, optimizers=[optimizer])

    recording = check(build, tmp_path / "recording", **options)
    return recording.ranks["rank0"].manifest.steps[0]


def plain(_: nn.Module, loss: Tensor) -> None:
    loss.backward()


def test_a_plain_step_has_nothing_to_count(tmp_path: Path) -> None:
    found = noted(tmp_path, plain)
    assert (found.autograd_grad_calls, found.create_graph_calls) == (0, 0)
    assert (found.float_reads, found.float_reads_after_backward, found.decision_reads) == (0, 0, 0)


def test_gradients_that_the_script_asks_for_are_a_call_and_not_counted(tmp_path: Path) -> None:
    def by_hand(model: nn.Module, loss: Tensor) -> None:
        for one, grad in zip(
            model.parameters(), torch.autograd.grad(loss, list(model.parameters())), strict=True
        ):
            one.grad = grad

    found = noted(tmp_path, by_hand)
    assert (found.autograd_grad_calls, found.create_graph_calls) == (0, 0)


def test_gradients_with_a_graph_are_a_call_too(tmp_path: Path) -> None:
    def penalised(model: nn.Module, loss: Tensor) -> None:
        (slope,) = torch.autograd.grad(loss, [model.first.weight], create_graph=True)
        (loss + slope.square().sum()).backward()

    found = noted(tmp_path, penalised)
    assert (found.autograd_grad_calls, found.create_graph_calls) == (0, 0)


@pytest.mark.filterwarnings("ignore:Using backward.. with create_graph")  # which torch says once
def test_a_backward_that_builds_a_graph_is_counted(tmp_path: Path) -> None:
    def twice(model: nn.Module, loss: Tensor) -> None:
        loss.backward(create_graph=True)

    found = noted(tmp_path, twice)
    assert (found.autograd_grad_calls, found.create_graph_calls) == (0, 1)


@pytest.mark.parametrize("read", [Tensor.item, Tensor.tolist, float, int, Tensor.__array__])
def test_numbers_that_python_takes_before_backward_are_counted(tmp_path: Path, read: Any) -> None:
    def scaled(model: nn.Module, loss: Tensor) -> None:
        read(loss.detach())
        loss.backward()

    found = noted(tmp_path, scaled)
    assert (found.float_reads, found.float_reads_after_backward, found.decision_reads) == (1, 0, 0)


def test_a_log_reads_behind_backward(tmp_path: Path) -> None:
    def logged(model: nn.Module, loss: Tensor) -> None:
        loss.backward()
        loss.item()

    found = noted(tmp_path, logged)
    assert (found.float_reads, found.float_reads_after_backward, found.decision_reads) == (0, 1, 0)


@pytest.mark.parametrize("decide", [bool, Tensor.item, lambda one: torch.equal(one, one)])
def test_decisions_are_counted(tmp_path: Path, decide: Any) -> None:
    def decided(model: nn.Module, loss: Tensor) -> None:
        decide(loss > 0)
        loss.backward()

    found = noted(tmp_path, decided)
    assert (found.float_reads, found.float_reads_after_backward, found.decision_reads) == (0, 0, 1)


def test_reads_are_unknown_at_level_module(tmp_path: Path) -> None:
    def decided(model: nn.Module, loss: Tensor) -> None:
        assert loss > 0
        torch.autograd.grad(loss, [model.first.weight], retain_graph=True)
        loss.backward()

    found = noted(tmp_path, decided, level="module")
    assert (found.float_reads, found.decision_reads) == (None, None)
    assert found.autograd_grad_calls == 1


@pytest.mark.parametrize("read", [Tensor.item, float])
def test_single_numbers_that_python_was_given_are_kept(tmp_path: Path, read: Any) -> None:
    given = []

    def clipped(model: nn.Module, loss: Tensor) -> None:
        loss.backward()
        given.append(read(loss.detach()))
        read(torch.ones(()))  # a count, which no rounding changes

    (kept,) = noted(tmp_path, clipped).numbers_read
    assert kept.number in given


def test_of_many_numbers_the_last_are_kept(tmp_path: Path) -> None:
    def logged(model: nn.Module, loss: Tensor) -> None:
        loss.backward()
        for number in range(40):
            (torch.zeros(()) + number + 0.5).item()

    kept = noted(tmp_path, logged).numbers_read
    assert [one.number for one in kept] == [number + 0.5 for number in range(24, 40)]
    assert len({one.content for one in kept}) == 16
