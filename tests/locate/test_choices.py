"""Choices that flipped inside the noise are one event, however many there are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import nn

import lockstep
from lockstep.core.finding import Evidence, Finding, Kind, Metrics, Outcome, Pair
from lockstep.core.records import Content, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.locate.conclusion import flipped_choices


def chosen(step: int, call: int, role: Role = Role.OUTPUT) -> Finding:
    """An argmax that came out differently."""
    site = Site("router", "torch.argmax", call, Phase.FORWARD)
    content = Content(0, "int64", (4,), "cpu", "d", None)
    record = TensorRecord("rank0", step, site, role, 0, "result", call, 0, content)
    metrics = Metrics(Evidence.STATISTICS)
    return Finding(
        Pair(record, record),
        Outcome.AGREE,
        metrics,
        math.nan,
        math.nan,
        "words",
        kind=Kind.DECISION,
    )


def test_many_are_one_line_with_a_count_and_the_first_place() -> None:
    found = flipped_choices([chosen(step, call) for step in range(11) for call in range(13)])
    assert [(event.kind, event.step, event.detail) for event in found] == [
        (Kind.DECISION.value, 0, "143 times, first at router (torch.argmax): words")
    ]


def test_one_needs_no_count_and_none_no_line() -> None:
    assert [event.detail for event in flipped_choices([chosen(2, 0)])] == [
        "router (torch.argmax): words"
    ]
    assert flipped_choices([chosen(0, 0, Role.INPUT)]) == []


def train(apart: float) -> None:
    """A training whose argmax is between two sums, of which the first is off by so much in half of the rows."""
    torch.manual_seed(0)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        hidden = model(torch.randn(16, 64))
        both = torch.stack([hidden.sum(1), hidden.sum(1)], 1)
        both = both + torch.tensor([[apart, 0.0], [-apart, 0.0]]).repeat(8, 1)
        chosen = both.argmax(1)
        optimizer.zero_grad()
        both.gather(1, chosen[:, None]).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(("apart", "is_noise"), [(1e-7, True), (1.0, False)])
def test_a_choice_between_inputs_that_are_apart_is_not_inside_the_noise(
    tmp_path: Path, apart: float, is_noise: bool
) -> None:
    # Given choices that differ, from inputs that differ by a rounding, or by a fault
    for name, sign in (("a", 1.0), ("b", -1.0)):
        with lockstep.record(tmp_path / name, steps="0:1", save="tensors"):
            train(sign * apart)
    found = lockstep.compare_recordings(tmp_path / "a", tmp_path / "b")
    # Then the event is of noise alone.
    assert any(one.kind is Kind.DECISION for one in found.findings) is is_noise
    assert any(event.kind == Kind.DECISION.value for event in found.events) is is_noise
