"""Buffers as a step leaves them, where no call that both runs make was seen to write them.

A batch normalisation inside of compiled code is not seen; that its running mean changed is, at the compiled module. In
a run that is not compiled the operator itself writes it. These two records belong to no pair of calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.judge.protocol import Region

Latest = dict[str, TensorRecord]
"""The last record of each buffer, by its name in the reference."""


class Buffers:
    """The buffers of one rank in both runs, from step to step."""

    def __init__(self) -> None:
        self._latest: tuple[Latest, Latest] = ({}, {})

    def written_unseen(self, step: AlignedStep) -> Iterator[tuple[Pair, Pair | None]]:
        """Buffers that a step changed in either run, and that no pair of its calls holds as they were left.

        With each the pair as it was before the step, where both runs hold it.
        """
        before: list[Latest] = []
        written: set[str] = set()
        for latest, flow in zip(self._latest, (step.reference, step.candidate), strict=True):
            earlier = dict(latest)
            for call in flow.calls.values():
                for record in call.with_role(Role.BUFFER):
                    name = step.name_of(record, is_candidate=flow is step.candidate)
                    latest[name] = record
                    if call.kind is CallKind.INIT:
                        earlier[name] = record
                    else:
                        written.add(name)
            before.append(earlier)
        paired = {
            (id(pair.reference), id(pair.candidate)) for item in step.aligned for pair in item.whole
        }
        for name in sorted(written):
            left, right = (latest.get(name) for latest in self._latest)
            if left is None or right is None or (id(left), id(right)) in paired:
                continue
            as_it_was = Pair(before[0].get(name), before[1].get(name))
            whole = as_it_was.reference is not None and as_it_was.candidate is not None
            yield Pair(left, right, "buffer"), as_it_was if whole else None


def region_inside(step: AlignedStep, item: Aligned) -> Region:
    """Return the calls of both runs inside of a module."""
    return Region(
        tuple(_inside(step.reference, item.reference)),
        tuple(_inside(step.candidate, item.candidate)),
    )


def _inside(flow: Flow, module: Call) -> Sequence[Call]:
    within = {module.id}
    found = []
    for call in flow.calls.values():
        if call.parent in within:
            within.add(call.id)
            found.append(call)
    return found
