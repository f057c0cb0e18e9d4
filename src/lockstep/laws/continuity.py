"""Law C: within one run nothing changes by itself. Digests tell it at every weight. Knows no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from lockstep.core.laws import Breach, Law, Quantity
from lockstep.core.records import Call, TensorRecord, would_differ
from lockstep.core.site import CallKind, Role


@dataclass(slots=True)
class Continuity:
    """Follows the parameters of one run through its steps.

    A parameter is what its last recorded update left, unless a recorded call has written to it since.

    Attributes
    ----------
    broken
        By step and parameter, the record that shows another value than the last update left.
    """

    broken: dict[tuple[int, str], TensorRecord] = field(default_factory=dict)
    _left: dict[str, TensorRecord] = field(default_factory=dict)
    _last_step: int | None = None

    def add(self, step: int, calls: Mapping[int, Call] | list[Call]) -> None:
        """Follow one step more; a step that was not recorded in between lets go of what is known."""
        if self._last_step is not None and step != self._last_step + 1:
            self._left.clear()
        self._last_step = step
        every = calls if isinstance(calls, list) else list(calls.values())
        for call in sorted(every, key=lambda one: one.sequence):
            if call.recomputed:
                continue
            if call.kind in (CallKind.OPERATOR, CallKind.OPTIMIZER):
                self._see(step, call)

    def _see(self, step: int, call: Call) -> None:
        for record in call.with_role(Role.PARAM, Role.INPUT):
            known = self._left.pop(record.name, None)
            if known is not None and _changed(known, record):
                self.broken[step, record.name] = record
        for record in call.with_role(Role.PARAM_AFTER):
            self._left[record.name] = record


def _changed(left: TensorRecord, found: TensorRecord) -> bool:
    """Whether two records of one parameter are known to be of different values."""
    if (left.shape, left.dtype) != (found.shape, found.dtype):
        return False
    return left.digest != found.digest and would_differ(left.digest, found.digest)


def broken_alone(
    reference: Continuity, candidate: Continuity, names: Mapping[str, str], step: int
) -> Iterator[tuple[Breach, TensorRecord]]:
    """Parameters that changed by themselves before or in a step, in one run alone."""
    sides = [
        {
            names.get(name, name) if of_candidate else name: record
            for (number, name), record in one.broken.items()
            if number == step
        }
        for one, of_candidate in ((reference, False), (candidate, True))
    ]
    for own, other, run in (
        (sides[0], sides[1], "reference"),
        (sides[1], sides[0], "candidate"),
    ):
        for name in sorted(own.keys() - other.keys()):
            words = f"{name} is not what its last update left, and no recorded call has written to it since"
            yield (
                Breach(Law.CONTINUITY, Quantity.PARAMETER, run, name, 1.0, 0.0, words=words),
                own[name],
            )
