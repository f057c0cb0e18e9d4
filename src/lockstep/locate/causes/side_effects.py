"""Parameters that an operator changes in place in one run only, as an embedding with `max_norm` does.

Such an operator has a result too, which is named where it differs. That it also writes into what it reads is said
beside it, and the parameter found otherwise before its update follows from that.
"""

from __future__ import annotations

from dataclasses import dataclass

from lockstep.align.dataflow import Flow
from lockstep.core.finding import Kind, Origin
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.core.text import listed
from lockstep.locate.causes.step_origins import StepOrigins
from lockstep.locate.flow.updates import CHANGED

_NAMED = frozenset({Kind.FAULT, Kind.SETUP})


@dataclass(frozen=True, slots=True)
class _Write:
    """A call that changes parameters in place, by the reference's names, in one run only."""

    call: Call
    names: tuple[str, ...]
    is_candidate: bool

    def __str__(self) -> str:
        sides = ("candidate", "reference") if self.is_candidate else ("reference", "candidate")
        at = f" at {self.call.source}" if self.call.source else ""
        changes = f"{self.call.site.op}{_settings(self.call)}{at} also changes {listed(self.names)} in place"
        return f"{changes} in the {sides[0]}, which nothing does in the {sides[1]}"


class SideEffects(StepOrigins):
    """Names a tensor that one run alone changes in place, at the origin of the operator that does so."""

    __slots__ = ()

    def run(self) -> None:
        """Add the reason, and withdraw the origins that follow from it."""
        for write in self._writes():
            at = next((one for one in self.found() if self._lies_at(one, write)), None)
            if at is None:
                continue
            self.merge(
                [at],
                reason=Reason(Clause(About.LONE_CALL, str(write), write.call.site.op), at.reason),
            )
            follows = [
                one for one in self.found() if one.op == CHANGED and one.tensor in write.names
            ]
            self.withdraw(follows)

    def _writes(self) -> list[_Write]:
        flows = (self.step.reference, self.step.candidate)
        written = [self._written(flow, is_candidate=flow is flows[1]) for flow in flows]
        found: list[_Write] = []
        for index, by_call in enumerate(written):
            others = {name for _, names in written[1 - index] for name in names}
            for call, names in by_call:
                alone = tuple(name for name in names if name not in others)
                if alone:
                    found.append(_Write(call, alone, is_candidate=index == 1))
        return sorted(found, key=lambda one: one.call.sequence)

    def _written(self, flow: Flow, *, is_candidate: bool) -> list[tuple[Call, list[str]]]:
        """The operators that write into parameters, with the names of these."""
        found = []
        for call in flow.calls.values():
            if call.kind is not CallKind.OPERATOR:
                continue
            names = [
                self.step.name_of(record, is_candidate=is_candidate)
                for record in call.with_role(Role.BUFFER)
            ]
            names = [name for name in names if name in self.rank.ledger.parameter_names]
            if names:
                found.append((call, names))
        return found

    def _lies_at(self, origin: Origin, write: _Write) -> bool:
        """Whether an origin is the result of a call that writes, or comes of a region that it is in."""
        if origin.kind not in _NAMED or origin.op == CHANGED:
            return False
        item = self.item_of(origin)
        if item is not None and write.call in (item.reference, item.candidate):
            return True
        region = self.regions.behind(origin.finding.pair)
        return any(call is write.call for call in (*region.reference, *region.candidate))


def _settings(call: Call) -> str:
    """The numbers that a call was given by name, `(max_norm=1.0, norm_type=2.0)`."""
    given = [
        f"{name.removeprefix('kwargs.')}={value}"
        for name, value in call.arguments.items()
        if name.startswith("kwargs.") and isinstance(value, float)
    ]
    return f"({', '.join(given)})" if given else ""
