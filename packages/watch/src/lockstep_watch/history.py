"""Keep the latest numbers of every tensor of a rank, for the hits of rules."""

from __future__ import annotations

from collections import deque

from lockstep.recordings import Statistics, TensorRecord
from lockstep_watch.observed import Hit, ObservedStep

_KEPT_STEPS = 5

_Key = tuple[str, str, int, str]


class History:
    """Numbers of the latest watched steps of one rank: some hundred bytes a tensor and step."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, dict[_Key, Statistics]]] = deque(maxlen=_KEPT_STEPS)

    def add(self, step: ObservedStep) -> None:
        """Take in a step."""
        numbers = {
            _key(record): record.statistics
            for call in step.calls
            for record in call.records
            if record.statistics is not None
        }
        self._steps.append((step.number, numbers))

    def of(self, hit: Hit, step: ObservedStep) -> tuple[tuple[int, Statistics], ...]:
        """Return the numbers of a hit's tensor in these steps, the latest last; empty if it is of no one tensor."""
        record = _record_of(hit, step)
        if record is None:
            return ()
        key = _key(record)
        return tuple((number, kept[key]) for number, kept in self._steps if key in kept)


def _key(record: TensorRecord) -> _Key:
    return str(record.site), record.role.value, record.index, record.name


def _record_of(hit: Hit, step: ObservedStep) -> TensorRecord | None:
    """The tensor of its site that is its subject, or that the subject ends with."""
    records = [record for call in step.calls if call.site == hit.site for record in call.records]
    named = [one for one in records if hit.subject in (one.name, f"{hit.site}: {one.name}")]
    return next(
        iter([*reversed(named), *(one for one in records if one.role.value == "output")]), None
    )
