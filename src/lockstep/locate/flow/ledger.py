"""Keep the results for aligned tensors and buffers: their distance, and whether it follows from an origin."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from lockstep.align.dataflow import Flow
from lockstep.align.settings import NumbersRead, Setting
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.dependence import Dependence
from lockstep.core.finding import Finding, Kind, Outcome, Pair
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.protocol import AGREES, MEANINGLESS, OPEN, Judgement, Region
from lockstep.judge.tolerances import TRAINED_ALIKE, UNBOUNDED
from lockstep.locate.flow.origins import Origins, Place
from lockstep.locate.flow.rounding_alone import RoundingAlone
from lockstep.locate.flow.words import left_clause, origin_reason, settled_reason
from lockstep.locate.setups.precision import PrecisionClasses
from lockstep.measure.measured_pair import (
    Measured,
    is_read_whole,
    measure_pair,
    sketched_distances,
)
from lockstep.measure.prefetch import Ahead

Key = tuple[int, int]


@dataclass(slots=True)
class State:
    """One aligned tensor: measurement, judgement, and whether it inherits from an origin."""

    measured: Measured
    judgement: Judgement
    tainted: bool = False
    outcome: Outcome = Outcome.AGREE

    def at(self, measured: Measured) -> State:
        """Return the same judgement for a second pair of records with the same contents."""
        return State(measured, self.judgement, self.tainted, self.outcome)


@dataclass(frozen=True, slots=True)
class BufferUser:
    """A call that takes a buffer, as a possible origin, with its other inputs."""

    place: Place
    entering: tuple[Measured, ...]
    settings: tuple[Setting, ...] = ()
    chosen: tuple[Setting, ...] = ()


Updated = tuple[Place, Measured]
"""An optimizer's update of a parameter, and what it left."""


class Ledger:
    """States of all aligned tensors of one rank, kept from step to step, and every finding.

    Parameters
    ----------
    read_tensors
        Whether tensors that were saved whole are read for exact numbers.
    precision
        Gathers which operators round otherwise than the other run's, over all ranks.
    dependences
        What the training of either run depends on, as far as that is known.
    tells_widths
        Whether equal whole numbers of two widths differ: two frameworks have each their own for an index.

    Attributes
    ----------
    any_tainted
        Whether an origin was found.
    any_noise
        Whether any two tensors differ.
    any_flipped
        Whether whole numbers or truth values differ that noise may have decided.
    parameter_names, buffer_names
        Full names met so far.
    buffer_users
        Per buffer the last call that it went into: the one that may have changed it unseen.
    buffers
        The buffers of both runs as they were left last.
    last_updates
        Per parameter its last optimizer step, and what that left.
    last_states
        Per state of an optimizer the last step that left it, and how.
    rounding_alone
        Which gradients are zero but for rounding.
    moved_alone
        Parameters that one run alone trains, which is said at its place.
    aside
        Differences that their step followed without, and where each began: they may go into a later one.
    updated_apart
        Whether one run left out updates that the other made: from then on all differs, whatever enters.
    """

    def __init__(
        self,
        *,
        read_tensors: bool,
        precision: PrecisionClasses | None = None,
        dependences: tuple[Dependence, Dependence] | None = None,
        tells_widths: bool = True,
        numbers_read: NumbersRead | None = None,
    ) -> None:
        self.any_tainted = self.any_noise = self.any_flipped = self.updated_apart = False
        self.parameter_names: set[str] = set()
        self.buffer_names: set[str] = set()
        self.moved_alone: set[str] = set()
        self.buffer_users: dict[str, BufferUser] = {}
        self.buffers = Buffers()
        self.last_updates: dict[str, Updated] = {}
        self.last_states: dict[str, tuple[int, Measured]] = {}
        self.aside: dict[Key, Place] = {}
        self.precision = precision or PrecisionClasses()
        self.rounding_alone = RoundingAlone()
        self._read_tensors, self._tells_widths = read_tensors, tells_widths
        self._steps: set[int] = set()
        self._states: dict[Key, State] = {}
        self._measurements: dict[Key, Measured] = {}
        self._of_pair: dict[int, Measured] = {}
        self._sketched: dict[Key, float | None] = {}
        self._ahead = Ahead({})
        self._partner_of_reference: dict[int, Key] = {}
        self._partner_of_candidate: dict[int, Key] = {}
        self._dependences, self._numbers_read = dependences, numbers_read
        self.findings: list[Finding] = []

    def is_beside(self, item: Aligned) -> bool:
        """Return whether in neither run anything trained depends on a call."""
        if self._dependences is None:
            return False
        calls = (item.reference, item.candidate)
        return all(one.beside(call) for one, call in zip(self._dependences, calls, strict=True))

    def numbers_read(self, step: int) -> tuple[float, ...]:
        """Return how far apart the numbers are that Python read, as `NumbersRead.ratios` has it."""
        return () if self._numbers_read is None else self._numbers_read.ratios(step, self._states)

    def knows_step(self, step: int) -> bool:
        """Whether all that happened up to the end of a step was recorded, or there was no such step."""
        return step < 0 or step in self._steps

    def drifted(self, measured: Measured) -> State:
        """Return the state of a parameter or buffer that changed in steps which were not recorded."""
        near = measured.relative <= TRAINED_ALIKE or self.rounding_alone.allows(measured)
        if near:
            return State(measured, AGREES)
        return State(measured, OPEN, outcome=Outcome.INCOMPARABLE)

    def begin(self, step: int, pairs: Iterable[Pair]) -> None:
        """Take in the complete pairs of the next step: sketches are compared at once, whole tensors from now on."""
        self.end()
        self._steps.add(step)
        new: dict[Key, Pair] = {}
        for pair in pairs:
            key = key_of(pair)
            if key not in self._measurements:
                new.setdefault(key, pair)
        self._sketched = dict(
            zip(
                new,
                sketched_distances(new.values(), read_tensors=self._read_tensors),
                strict=True,
            )
        )

        whole = [
            pair for pair in new.values() if is_read_whole(pair, read_tensors=self._read_tensors)
        ]
        whole.sort(
            key=lambda pair: pair.present.sequence
        )  # the order in which the walks come to them
        self._ahead = Ahead({key_of(pair): pair.contents for pair in whole})

    def end(self) -> None:
        """Let go of the pairs of a step; nothing is measured ahead any more."""
        self._ahead.stop()
        self._of_pair.clear()
        self._sketched.clear()

    def measure(self, pair: Pair) -> Measured:
        """Measure a pair; the numbers of equal contents are taken once."""
        measured = self._of_pair.get(id(pair))
        if measured is not None and measured.pair is pair:
            return measured
        key = key_of(pair)
        known = self._measurements.get(key)
        if known is None:
            known = self._measurements[key] = measure_pair(
                pair,
                read_tensors=self._read_tensors,
                sketched=self._sketched.get(key),
                whole=self._ahead.take(key),
                tells_widths=self._tells_widths,
            )
        measured = known if known.pair is pair else known.at(pair)
        self._of_pair[id(pair)] = measured
        return measured

    def state(self, pair: Pair) -> State | None:
        """Return the earlier judgement of these two contents, None if they have not met."""
        return self._states.get(key_of(pair))

    def partner_of_reference(self, content: int) -> State | None:
        """Return the state of a reference content with its partner."""
        key = self._partner_of_reference.get(content)
        return self._states[key] if key is not None else None

    def partner_of_candidate(self, content: int) -> State | None:
        """Return the state of a candidate content with its partner."""
        key = self._partner_of_candidate.get(content)
        return self._states[key] if key is not None else None

    def remember(self, state: State) -> None:
        """Keep the judgement of a pair; an earlier one stays, because it is nearer to the cause."""
        key = key_of(state.measured.pair)
        self.any_tainted = self.any_tainted or state.tainted
        self.any_noise = self.any_noise or not state.measured.equal
        self.any_flipped = self.any_flipped or _is_flipped(state)
        if key in self._states:
            return
        self._states[key] = state
        self._partner_of_reference[key[0]] = key
        self._partner_of_candidate[key[1]] = key

    def tainted(self, measured: Measured) -> bool:
        """Whether a pair's difference follows from an origin."""
        if measured.equal:
            return False
        state = self._states.get(key_of(measured.pair))
        return state is not None and state.tainted

    def is_open(self, measured: Measured) -> bool:
        """Whether a pair's difference could not be judged."""
        if measured.equal:
            return False
        state = self._states.get(key_of(measured.pair))
        return state is not None and state.outcome is Outcome.INCOMPARABLE

    def bounds_nothing(self, state: State) -> bool:
        """Return whether nothing but a tolerance decides that accepts any tensor of that size.

        A difference inside the noise floor needs no tolerance beside it, and one operator that was run again is judged
        by its own result. A gradient that is zero except for rounding, and what an optimizer makes of it, has no size
        that a distance could be compared with.
        """
        measured, judgement = state.measured, state.judgement
        if measured.equal or not (measured.floating and measured.difference > 0):
            return False
        bounds = not judgement.tolerance >= UNBOUNDED  # NaN is that of thresholds on other numbers
        if bounds or judgement.local or judgement is MEANINGLESS:
            return False
        if not judgement.beyond_floor and judgement.floor < UNBOUNDED:
            return False
        return not self.rounding_alone.is_of(measured)

    def report(self, state: State, reason: Reason, *, inherited: bool) -> Finding:
        """Add the finding of one pair."""
        measured = state.measured
        finding = Finding(
            pair=measured.pair,
            outcome=state.outcome,
            metrics=measured.metrics,
            difference=measured.difference,
            tolerance=state.judgement.tolerance,
            reason=reason,
            inherited=inherited,
            kind=kind_of(state, inherited=inherited),
            judged_by=state.judgement.judged_by,
            floor=floor_of(state),
            overrules=state.judgement.overrules and state.outcome is Outcome.AGREE,
        )
        self.findings.append(finding)
        return finding

    def report_instead(self, state: State, reason: Reason, *, inherited: bool) -> Finding:
        """Give a pair that was reported lately this finding in place of its own: it is one tensor, and counts once."""
        pair = state.measured.pair
        for position in range(len(self.findings) - 1, -1, -1):
            known = self.findings[position].pair
            if known.reference is pair.reference and known.candidate is pair.candidate:
                del self.findings[position]
                break
        return self.report(state, reason, inherited=inherited)

    def repeat(self, finding: Finding) -> None:
        """Mark a finding reported lately as one more effect of a cause that is known."""
        for position in range(len(self.findings) - 1, -1, -1):
            if self.findings[position] is finding:
                self.findings[position] = replace(finding, inherited=True)
                return


def _is_flipped(state: State) -> bool:
    """Whether two tensors are choices that came out differently, and no fault."""
    measured = state.measured
    differs = measured.known and not (measured.equal or measured.floating)
    return differs and measured.difference > 0 and state.outcome is Outcome.AGREE


def floor_of(state: State) -> float:
    """Return the relative noise floor of a pair, the rounding at this site alone; NaN if no judge was asked.

    That holds with inputs that are equal bit by bit; a judge says it beside what the inputs' differences allow.
    """
    measured, judgement = state.measured, state.judgement
    if measured.equal or not measured.known:
        return math.nan
    least = measured.unit if measured.floating else 0.0
    if judgement.floor > 0:
        return max(judgement.floor, least)
    bounded = judgement.unexplained and not math.isnan(judgement.tolerance)
    asked = bounded or (judgement.tolerance > 0 and not judgement.open)
    return least if asked and judgement.floor == 0 else math.nan


def kind_of(state: State, *, inherited: bool) -> Kind | None:
    """Return the kind of a pair's difference; None if there is none or it is unknown."""
    measured = state.measured
    if measured.equal or not measured.known or state.outcome is Outcome.INCOMPARABLE:
        return None
    if state.judgement.kind is Kind.DECISION and state.tainted:
        return Kind.INHERITED  # its inputs are further apart than noise makes them
    if state.judgement.kind is not None:
        return state.judgement.kind
    if inherited:
        return Kind.INHERITED
    if state.outcome is Outcome.DIFFER:
        return Kind.FAULT
    if measured.shape_differs:  # other elements, which are judged where they come together
        return None
    return Kind.NOISE if measured.floating else Kind.DECISION


def last_updates(ledgers: Iterable[Ledger], name: str) -> list[Updated]:
    """The last updates of a parameter on several ranks, each of which may have a part of it."""
    found = (ledger.last_updates.get(name) for ledger in ledgers)
    return [one for one in found if one is not None]


def key_of(pair: Pair) -> Key:
    """Content numbers of both sides."""
    reference, candidate = pair.contents
    return reference.id, candidate.id


def agreeing(measured: Measured) -> State:
    """State of a pair that is bitwise equal, or of which nothing can be said."""
    outcome = Outcome.AGREE if measured.known else Outcome.INCOMPARABLE
    return State(measured, AGREES, outcome=outcome)


def settle(ledger: Ledger, state: State) -> None:
    """Keep and report a pair that is no origin; one of which nothing is known was not judged."""
    unbounded = ledger.bounds_nothing(state)
    if state.outcome is Outcome.AGREE and (unbounded or not state.measured.known):
        state = replace(state, outcome=Outcome.INCOMPARABLE)
    ledger.remember(state)
    differs = state.outcome is Outcome.DIFFER
    ledger.report(
        state, settled_reason(state.measured, state.judgement, state.outcome), inherited=differs
    )


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


# Buffers as a step leaves them, where no call that both runs make was seen to write them.
#
# A batch normalisation inside of compiled code is not seen; that its running mean changed is, at the compiled module.
# In a run that is not compiled the operator itself writes it. These two records belong to no pair of calls.

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
