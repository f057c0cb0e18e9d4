"""Tensors of one moment that went wrong in the same way, reported as one origin."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from lockstep.core.finding import Finding
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import Phase, Role
from lockstep.core.text import listed
from lockstep.locate.flow.ledger import Ledger, State
from lockstep.locate.flow.origins import Origins, Place
from lockstep.locate.flow.words import left_clause, origin_reason
from lockstep.measure.measured_pair import Measured


@dataclass(frozen=True, slots=True)
class Wrong:
    """One judged tensor that is an origin by itself, before equal causes are put together."""

    place: Place
    state: State
    entering: list[Measured]


def report_together(
    wrong: Sequence[Wrong],
    ledger: Ledger,
    origins: Origins,
    *,
    one_of: tuple[Hashable, ...] | None = None,
) -> None:
    """Report tensors that went wrong in the same way as one origin, saying how many."""
    first: Finding | None = None
    for one in wrong:
        reason = _reason(one)
        finding = ledger.report(one.state, reason, inherited=first is not None)
        first = first or finding
    if first is None:
        return
    names = list(dict.fromkeys(one.place.tensor.split("|")[0] for one in wrong))
    more = [f"and {listed(names[1:])}"] if len(names) > 1 else []
    reason = Reason(first.reason, *more)
    if not origins.add(wrong[0].place, first, reason, one_of=one_of):
        ledger.repeat(first)


def _reason(one: Wrong) -> Reason:
    measured, judgement = one.state.measured, one.state.judgement
    if one.place.phase is Phase.INIT:
        left, step = (
            left_clause(measured, judgement, one.place.tensor or "parameter"),
            measured.pair.present.step,
        )
        return Reason(
            left, *[f"the fault lies before step {step}, record from step 0"] * bool(step)
        )
    if one.place.phase is Phase.DATA:
        return Reason(left_clause(measured, judgement, f"the batch ({one.place.tensor})"))
    if measured.pair.present.role is Role.PARAM_AFTER and math.isnan(judgement.tolerance):
        words = "gradients agree, but the parameters move by a different amount"
        return Reason(Clause(About.LEFT, words))
    return origin_reason(one.entering, measured, judgement)
