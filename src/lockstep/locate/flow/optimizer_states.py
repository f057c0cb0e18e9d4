"""The state that optimizers begin a step with: one that a run lost or changed comes before any update."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from lockstep.align.settings import differing_settings
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Finding, Kind, Outcome, Pair
from lockstep.core.optimizer_classes import KERNEL_CHOICES, STEP_COUNT
from lockstep.core.reason import Clause, Reason
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.protocol import NOTHING_BETWEEN, Judge, Judgement, Region
from lockstep.judge.update_model import state_name
from lockstep.locate.flow.ledger import Key, Ledger, State, agreeing, key_of, settle
from lockstep.locate.flow.origins import Origins, origin_at, place_of, without_partner
from lockstep.locate.flow.words import count_words, left_clause
from lockstep.measure.measured_pair import Measured

_BETWEEN_STEPS = Region(unseen=1)
"""What may lie between a state as an update left it and the next one: it was moved, or saved and read again."""

BETWEEN_STEPS = "state of the optimizer between steps"
"""Operator name of an origin at a state that is changed by other than its optimizer."""


@dataclass(frozen=True, slots=True)
class _Otherwise:
    """A state that one run begins an update with and the other has not, or has otherwise."""

    item: Aligned
    pair: Pair
    at_start: bool
    state: State | None = None

    @property
    def name(self) -> str:
        return state_name(self.pair.present)

    @property
    def side(self) -> str:
        """The run in which it is absent, "" where both have it."""
        if self.state is not None:
            return ""
        return "candidate" if self.pair.candidate is None else "reference"


class OptimizerStates:
    """Judges the states that enter the updates of one step.

    step, ledger, origins, judge, sees_every_call: As for the walk through the updates, which comes next.
    """

    def __init__(
        self,
        step: AlignedStep,
        ledger: Ledger,
        origins: Origins,
        judge: Judge,
        *,
        sees_every_call: bool = True,
    ) -> None:
        self._sees_every_call = sees_every_call
        self._step, self._ledger, self._origins, self._judge = step, ledger, origins, judge
        self._met: set[str] = set()
        self._found: set[Key] = set()

    def run(self) -> frozenset[str]:
        """Report states that are otherwise; names of the parameters that are updated with them."""
        other_start = any(one.phase is Phase.INIT for one in self._origins.found)
        items = sorted(
            self._step.of_kind(CallKind.OPTIMIZER), key=lambda one: one.reference.sequence
        )
        found: list[_Otherwise] = []
        for item in items:
            found.extend(self._present(item))
            if self._sees_every_call:
                found.extend(self._absent(item))
            self._met.update(pair.present.name for pair in item.complete(Role.PARAM))
        for at_start in (True, False):
            together = [one for one in found if one.at_start is at_start]
            if together:
                together.sort(
                    key=lambda one: one.name == STEP_COUNT
                )  # the counter is not what to look at
                self._report(together, inherited=other_start)
        return frozenset(
            pair.present.name for one in found for pair in one.item.complete(Role.PARAM)
        )

    def _present(self, item: Aligned) -> Iterator[_Otherwise]:
        """States that both runs have and that differ by more than what was left of them."""
        for pair in item.complete(Role.STATE):
            measured = self._ledger.measure(pair)
            known = self._ledger.state(pair)
            if known is not None and known.tainted:
                at_start = self._is_first(item)
                if at_start or key_of(pair) in self._found:  # the counts of all are one
                    yield _Otherwise(item, pair, at_start, known.at(measured))
                    continue
            if known is not None or measured.equal or not measured.known:
                settle(self._ledger, known.at(measured) if known else agreeing(measured))
                continue
            judgement = self._judged(item, measured)
            if judgement is None or not judgement.unexplained:
                settle(self._ledger, self._ledger.drifted(measured))
                continue
            at_start = self._is_first(item)
            judgement = replace(judgement, kind=Kind.SETUP) if at_start else judgement
            if count_words(pair):
                judgement = replace(judgement, tolerance=math.nan)  # a count has none
            state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
            self._ledger.remember(state)
            self._found.add(key_of(pair))
            yield _Otherwise(item, pair, at_start, state)

    def _judged(self, item: Aligned, measured: Measured) -> Judgement | None:
        """What is said of a state that differs; None where steps between were not recorded."""
        if self._is_first(item):
            if item.reference.step and not count_words(measured.pair):
                return None
            return self._judge.passage([], measured, region=NOTHING_BETWEEN)
        left = self._left_before(item, measured.pair)
        if left is None or self._ledger.tainted(left):
            return None
        return self._judge.passage([left], measured, region=_BETWEEN_STEPS)

    def _absent(self, item: Aligned) -> list[_Otherwise]:
        """States that one run alone begins an update with, though the two updates are set up alike."""
        calls = item.reference, item.candidate
        settings = differing_settings(*(call.arguments for call in calls))
        other = calls[0].site.op != calls[1].site.op or any(
            one.name not in KERNEL_CHOICES for one in settings
        )
        at_start = self._is_first(item)
        if other or self._was_updated(item) or not (at_start or self._were_left_alike(item)):
            return []
        lone = [
            _Otherwise(item, pair, at_start)
            for pair in item.pairs
            if pair.present.role is Role.STATE
            and (pair.reference is None or pair.candidate is None)
            and _holds_something(pair)
        ]
        return lone if any(one.name != STEP_COUNT for one in lone) else []

    def _is_first(self, item: Aligned) -> bool:
        """Whether no update of the parameter was recorded before."""
        names = [pair.present.name for pair in item.complete(Role.PARAM)]
        return not any(
            name in self._ledger.last_updates for name in names
        ) and not self._was_updated(item)

    def _was_updated(self, item: Aligned) -> bool:
        """Whether the parameter was updated in this step already."""
        return any(pair.present.name in self._met for pair in item.complete(Role.PARAM))

    def _were_left_alike(self, item: Aligned) -> bool:
        """Whether the last update left the parameter in both runs as it should."""
        names = [pair.present.name for pair in item.complete(Role.PARAM)]
        left = [
            self._ledger.last_updates[name] for name in names if name in self._ledger.last_updates
        ]
        return bool(left) and all(
            place.step == item.reference.step - 1 and not self._ledger.tainted(after)
            for place, after in left
        )

    def _left_before(self, item: Aligned, pair: Pair) -> Measured | None:
        """A state as the step before left it; None where that was not recorded or this step has changed it."""
        step, left = self._ledger.last_states.get(pair.present.name, (-1, None))
        before = step == item.reference.step - 1 and not self._was_updated(item)
        return left if before else None

    # --- what is reported ----------------------------------------------------------------------------------------

    def _report(self, found: list[_Otherwise], *, inherited: bool) -> None:
        """One origin for all; where the parameters begin otherwise too, these are told."""
        findings: list[Finding] = []
        for one in found:
            if one.state is not None:
                follows = inherited or bool(findings)
                findings.append(
                    self._ledger.report(one.state, Reason(_numbers(one)), inherited=follows)
                )
        self._ledger.any_tainted = True
        if inherited:
            return
        reason = _sentence(found)
        first = found[0]
        finding = self._finding(first, findings, reason)
        place = place_of(first.item, first.pair, self._step.module_classes)
        op = first.item.reference.site.op if first.at_start else BETWEEN_STEPS
        phase = Phase.INIT if first.at_start else place.phase
        place = replace(place, op=op, phase=phase)
        kind = Kind.SETUP if first.at_start else Kind.FAULT
        self._origins.insert(origin_at(place, finding, reason, kind), f"state: {first.at_start}")

    def _finding(self, first: _Otherwise, findings: list[Finding], reason: str) -> Finding:
        for finding in findings:
            if finding.pair is first.pair:
                return finding
        finding = without_partner(first.pair, reason)
        return replace(finding, kind=Kind.SETUP) if first.at_start else finding


def _holds_something(pair: Pair) -> bool:
    """Whether a state is more than what an optimizer begins with: zeros."""
    statistics = pair.present.statistics
    return statistics is None or statistics.norm != 0.0


def _sentence(found: list[_Otherwise]) -> str:
    """What is absent or differs, the states of as many parameters together.

    `exp_avg, exp_avg_sq of 40 parameters are absent in the candidate`
    """
    counts: Mapping[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for one in found:
        counts[one.side][one.name] += 1
    when = " at the start" if found[0].at_start else ", though the last update left them alike"
    sentences = []
    for side, names in counts.items():
        for count in dict.fromkeys(names.values()):
            alike = [name for name, many in names.items() if many == count]
            of = f"{listed(alike)} of {count} parameter{'s'[count == 1 :]}"
            verbs = ("is", "differs") if len(alike) == 1 else ("are", "differ")
            sentences.append(
                f"{of} {verbs[0]} absent in the {side}" if side else f"{of} {verbs[1]}"
            )
    first = next((one for one in found if one.state is not None), None)
    numbers = f": {_numbers(first).words}" if first is not None else ""
    return "; ".join(sentences) + when + numbers


def _numbers(one: _Otherwise) -> Clause:
    assert one.state is not None
    return left_clause(one.state.measured, one.state.judgement, one.pair.present.name)


__all__ = ["BETWEEN_STEPS", "OptimizerStates"]
