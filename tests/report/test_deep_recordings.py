"""The tree of a recording, however deep it is."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from lockstep.core.records import Call
from lockstep.core.site import CallKind, Phase, Site
from lockstep.report.recording import _tree_lines


def call(number: int, parent: int) -> Call:
    site = Site(f"m{number}", "torch.nn.Linear", 0, Phase.FORWARD)
    return Call(
        id=number,
        rank="rank0",
        step=0,
        kind=CallKind.MODULE,
        site=site,
        module_class=site.op,
        parent=parent,
        sequence=number,
        stack=(),
        arguments={},
        recomputed=False,
        records=(),
    )


def tree_of(*calls: Call) -> list[str]:
    rank: Any = SimpleNamespace(steps=(0,), calls=lambda step: list(calls))
    return list(_tree_lines(rank, 0))


def test_calls_stand_below_what_they_lie_within_in_order_of_time() -> None:
    lines = tree_of(call(0, -1), call(1, 0), call(2, 1), call(3, 0), call(4, 99), call(5, 3))
    assert [line.replace(" [torch.nn.Linear]", "") for line in lines[1:]] == [
        "  m0",
        "    m1",
        "      m2",
        "    m3",
        "      m5",
        "  m4",
    ]


def test_a_thousand_calls_within_each_other_are_shown_on_lines_that_end() -> None:
    lines = tree_of(*(call(number, number - 1) for number in range(1000)))
    assert len(lines) == 1001
    assert max(map(len, lines)) < 150
