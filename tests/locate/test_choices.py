"""Choices that flipped inside the noise are one event, however many there are."""

from __future__ import annotations

import math

from lockstep.core.finding import Evidence, Finding, Kind, Metrics, Outcome, Pair
from lockstep.core.records import Content, TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.locate.of_findings import flipped_choices


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
