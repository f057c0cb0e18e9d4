"""Activation checkpointing that computes a call again, in backward, with other random numbers than in forward.

The gradients are then those of another network than the one whose loss was taken. One run alone proves it: a call that
draws random numbers got bitwise equal tensors both times, and gave something else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from lockstep.align.dataflow import Flow
from lockstep.core.finding import Kind, Origin, Pair
from lockstep.core.operators import Family, family_of
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, would_differ
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.tolerances import SAME_ELEMENTS_KEPT
from lockstep.locate.causes.step_origins import StepOrigins
from lockstep.locate.flow.origins import drops_inside
from lockstep.measure.measured_pair import measure_pair


class RecomputedCauses(StepOrigins):
    """Names a call that one run computes again differently as the one cause of the differences there."""

    __slots__ = ()

    def run(self) -> None:
        """Put origins together by this cause."""
        sides = {"reference": self.step.reference, "candidate": self.step.candidate}
        drawn = {side: drawn_again(flow) for side, flow in sides.items()}
        otherwise = [side for side, calls in drawn.items() if calls]
        if len(otherwise) != 1:
            return
        side = otherwise[0]
        first, sites = drawn[side][0], _met_otherwise(sides[side].calls.values())
        follows = [one for one in self.found() if self._follows(one, drawn[side], sites)]
        if not follows:
            return
        words = f"the {side} draws others than in forward for {_named(first)}"
        reason = Reason(Clause(About.RANDOM, words), *follows[0].reason.without(About.RANDOM))
        self.merge(follows, kind=Kind.RECOMPUTED, reason=reason)
        self.rank.origins.know_random_stream()

    def _follows(self, origin: Origin, drawn: Sequence[Call], sites: set[tuple[str, str]]) -> bool:
        call = self.call_of(origin)
        if call is None or call.kind is not CallKind.OPERATOR:
            return False
        if origin.phase is Phase.BACKWARD:
            return _site_of(call) in sites
        item = self.item_of(origin)
        return item is not None and any(
            one is item.reference or one is item.candidate for one in drawn
        )


def drawn_again(flow: Flow) -> list[Call]:
    """Return the calls of one run that were computed again with other random numbers, in order of time.

    A call counts if it draws random numbers, an earlier one of the same place with the same arguments got bitwise equal
    tensors, and none of these gave what it gives.
    """
    calls = [call for call in flow.calls.values() if call.id not in flow.containers]
    forward = _in_forward(calls)
    return [
        call
        for call in calls
        if call.recomputed
        and (family_of(call.site.op) in (Family.DROPOUT, Family.RANDOM) or drops_inside(call))
        and (earlier := [one for one in forward[_site_of(call)] if _is_first_time(one, call)])
        and all(_gave_another(one, call) for one in earlier)
    ]


def _in_forward(calls: Iterable[Call]) -> dict[tuple[str, str], list[Call]]:
    """What was not computed again, by its site."""
    found = defaultdict[tuple[str, str], list[Call]](list)
    for call in calls:
        if not call.recomputed:
            found[_site_of(call)].append(call)
    return found


def _is_first_time(call: Call, again: Call) -> bool:
    """Whether a call of the same place was made before, of bitwise equal tensors and the same arguments."""
    entered = _digests(again, Role.INPUT)
    return (
        call.sequence < again.sequence
        and call.arguments == again.arguments
        and None not in entered
        and _digests(call, Role.INPUT) == entered
    )


def _gave_another(call: Call, again: Call) -> bool:
    """Whether two results are those of other random numbers; rounding of a sum inside is none."""
    cosines = []
    for first, second in zip(
        call.with_role(Role.OUTPUT), again.with_role(Role.OUTPUT), strict=False
    ):
        if would_differ(first.digest, second.digest) and first.digest != second.digest:
            cosines.append(measure_pair(Pair(first, second)).metrics.cosine)
    if not drops_inside(again):
        return bool(cosines)
    return any(cosine <= SAME_ELEMENTS_KEPT for cosine in cosines)


def _met_otherwise(calls: Iterable[Call]) -> set[tuple[str, str]]:
    """Sites at which something was computed again on or to tensors that forward did not have there."""
    operators = [call for call in calls if call.kind is CallKind.OPERATOR]
    forward = _in_forward(operators)
    roles = (Role.INPUT, Role.OUTPUT)
    met = {site: {_digests(one, *roles) for one in calls} for site, calls in forward.items()}
    return {
        site
        for call in operators
        if call.recomputed
        and (site := _site_of(call)) in met
        and _digests(call, *roles) not in met[site]
    }


def _digests(call: Call, *roles: Role) -> tuple[str | None, ...]:
    return tuple(record.digest for record in call.with_role(*roles))


def _site_of(call: Call) -> tuple[str, str]:
    return call.site.module, call.site.op


def _named(call: Call) -> str:
    where = f" of {call.site.module}" if call.site.module else ""
    line = f" ({call.source})" if call.source else ""
    return f"{call.site.op}{where}{line}"
