"""One run's side of a step: its program, ready to be run again, and the numbers that it can be run on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call, TensorRecord, would_differ
from lockstep.core.site import Role
from lockstep.laws.arrangement import rearranged
from lockstep.laws.continuity import are_constants
from lockstep.laws.distances import size
from lockstep.laws.double_run import DoubleRun, Given, Run
from lockstep.laws.double_updates import (
    ROUNDINGS,
    SPELLED,
    Classes,
    Kind,
    classes_of,
    off_what_is_made,
    states_of,
    updated,
)
from lockstep.laws.joint_program import program_of
from lockstep.laws.own_numbers import OwnNumbers
from lockstep.laws.random_rounding import Rounding
from lockstep.laws.recorded_decisions import decides, is_rounded
from lockstep.laws.step_events import (
    RESULTS,
    Enters,
    Node,
    NotApplicable,
    Source,
    StepOfBoth,
    StepOfRun,
    StepProgram,
    Update,
    is_whole,
)
from lockstep.laws.written_views import without_written_updates
from lockstep.replay.calls.recorded_tensors import widened
from lockstep.replay.calls.refusals import CannotReplay


class Sized(Protocol):
    """A tensor, or what is recorded of one."""

    @property
    def shape(self) -> Sequence[int]:
        """Its extents."""


SINGLE = unit_roundoff("float32")


@dataclass(frozen=True)
class Side:
    """One run's side of a step.

    run: "reference" or "candidate".
    double: Its program.
    starts: Parameters and buffers by name, as the first recorded step took them.
    names: What the reference calls a parameter of this run, where that is another name.
    numbers: What it recorded.
    """

    run: str
    double: DoubleRun
    starts: Mapping[str, TensorRecord]
    names: Mapping[str, str]
    numbers: OwnNumbers = field(default_factory=OwnNumbers)
    others: Mapping[str, Update] = field(default_factory=dict)

    @property
    def program(self) -> StepProgram:
        """What is run."""
        return self.double.program

    @cached_property
    def classes(self) -> Classes:
        """As which classes its optimizers are run again."""
        return classes_of(self.program, self._off_by, self.others)

    @cached_property
    def base(self) -> Run:
        """Its program on its own numbers, with its own decisions."""
        return self.double.run(self.own, decided=True)

    @cached_property
    def is_sketched(self) -> bool:
        """Whether some of its updates are known by sketches alone."""
        records = (
            record
            for one in self.program.updates
            for record in one.call.with_role(Role.PARAM_GRAD, Role.PARAM_AFTER, Role.STATE_AFTER)
        )
        return not all(map(is_whole, records))

    @property
    def has_written_updates(self) -> bool:
        """Whether the program has the calls of an update."""
        return any(one.made is not None for one in self.program.updates)

    @cached_property
    def decides(self) -> bool:
        """Whether a call makes indices or masks of rounded numbers, which law K takes as they were recorded."""
        return any(map(decides, self.program.operators))

    @property
    def is_first(self) -> bool:
        """Whether this is the first recorded step."""
        steps = {one.step for one in self.program.sources.values()}
        return bool(self.starts) and {one.step for one in self.starts.values()} == steps

    def renamed(self, name: str) -> str:
        """The reference's name of a parameter, or of a state of one."""
        parameter, bar, key = name.partition("|")
        return self.names.get(parameter, parameter) + bar + key

    @cached_property
    def renamed_starts(self) -> Mapping[str, TensorRecord]:
        """Parameters and buffers as the first recorded step took them, by the reference's names."""
        return {self.renamed(name): record for name, record in self.starts.items()}

    def own(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """What entered this step itself."""
        return widened(self.numbers.of(record))

    def recorded(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The same, in its recorded dtype."""
        return self.numbers.of(record)

    def started(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The same, with parameters and buffers as the first recorded step took them."""
        if source.kind is Enters.NAMED and source.version == 0:
            start = self.starts.get(source.name, record)
            return widened(self.numbers.of(start if start.shape == record.shape else record))
        return widened(self.numbers.of(record))

    def _off_by(self, update: Update, kind: Kind) -> float | None:
        """How far an update is off what a class gives, as `OffBy` has it; by sketches where there is no more.

        Sketches show that it is made so. That it is not may be the noise of the gradient.
        """
        known = self.numbers.known_whole(update.call)
        if known is not None:
            return off_what_is_made(known, kind)
        try:
            (record,) = update.call.with_role(Role.PARAM_AFTER)
            states = {key: self.numbers.of(one) for key, one in states_of(update).items()}
            made = updated(
                update, self.program, self.base, self.own, self.base.entering.get(update.name),
                states, {update.call.site.op: kind},
            )  # fmt: skip
            after = made.after["param"]
            move = size(after - made.before)
            rounded = ROUNDINGS * unit_roundoff(record.dtype) * size(after)
            alike = self.numbers.apart([record], after).distance <= max(SPELLED * move, rounded)
            return 0.0 if alike and move > rounded else None
        except (CannotReplay, ValueError):
            return None


def side_of(
    run: str,
    step: StepOfRun,
    names: Mapping[str, str] | None = None,
    carried: Mapping[int, torch.Tensor] | None = None,
) -> Side:
    """One run's side of a step; `carried` is what the step before left.

    Raises NotApplicable if its calls cannot be run as one program.
    """
    numbers = OwnNumbers(step.sketches, carried or {})
    return Side(run, double_run_of(step.calls), step.starts, names or {}, numbers)


def double_run_of(calls: Sequence[Call]) -> DoubleRun:
    """A step, ready to be run; its updates by the classes of their optimizers where the calls of one cannot be run.

    Raises NotApplicable if its calls cannot be run as one program.
    """
    try:
        return DoubleRun(program_of(calls))
    except NotApplicable:
        plain = without_written_updates(calls)
        if plain is None:
            raise
        return DoubleRun(program_of(plain))


def beside_each_other(left: Side, right: Side) -> tuple[Side, Side]:
    """Both sides, of which each knows the other's updates."""
    by_ours = {right.renamed(one.name): one.name for one in right.program.updates}
    ours = {by_ours.get(one.name, one.name): one for one in left.program.updates}
    theirs = {right.renamed(one.name): one for one in right.program.updates}
    return replace(left, others=theirs), replace(right, others=ours)


@dataclass(frozen=True)
class CommonNumbers:
    """What enters the candidate's program so that both run on the same numbers.

    partner: By source of the candidate, that of the reference.
    lone: Floating-point numbers that each run alone has, by run.
    rearranged: Parameters that begin with the same values in another order, by the reference's names.
    """

    reference: Side
    candidate: Side
    partner: Mapping[Source, Source]
    lone: Mapping[str, frozenset[Source]]
    rearranged: frozenset[str] = frozenset()

    def is_one(self, name: str, one: Sized, two: Sized) -> bool:
        """Whether a parameter's elements stand at the same places in both runs; `one` and `two` are of its shape."""
        return tuple(one.shape) == tuple(two.shape) and name not in self.rearranged

    @cached_property
    def paired(self) -> frozenset[Source]:
        """Sources of the reference that have a partner."""
        return frozenset(self.partner.values())

    def given_results(self, run: str) -> Mapping[Node, torch.Tensor]:
        """Results of a run that the other one recorded as numbers that enter its step: both take those as they are.

        A teacher's answer is computed within a step or, without gradients, between two, where no call is recorded. It
        carries the rounding of all calls behind it, which double precision does not.
        """
        side, other = self.reference, self.candidate
        given, name = self.given, "candidate"
        if run == "candidate":
            side, other = other, side
            given, name = self.given_to_reference, "reference"
        entering = [(one, other.program.sources[one]) for one in self.lone[name]]
        by_digest = {(one.digest, one.shape): (source, one) for source, one in entering}
        found: dict[Node, torch.Tensor] = {}
        made = [(one.digest, one.shape) for one in other.program.results.values()]
        computed = Counter(one for one in made if one in by_digest)
        ours = [
            (Node(operator.call.id, record.index), record)
            for operator in (side.program.operators if entering else ())
            for record in operator.call.with_role(*RESULTS)
            if (record.digest, record.shape) in by_digest
        ]
        # Where the other run computes such a result too, it is the last one: what enters was there before.
        left = Counter((one.digest, one.shape) for _, one in ours) - computed
        for node, record in ours:
            met = by_digest[record.digest, record.shape]
            if (
                left[record.digest, record.shape] > 0
                and record.digest is not None
                and would_differ(record.digest, met[1].digest)
                and is_whole(met[1])
            ):
                left[record.digest, record.shape] -= 1
                found[node] = widened(given(*met))
        return found

    @property
    def are_references_own(self) -> bool:
        """Whether the reference's program runs on what entered its own step, and decides nothing by it."""
        named = (one for one in self.reference.program.sources if one.kind is Enters.NAMED)
        return not self.reference.decides and all(one in self.paired for one in named)

    @property
    def are_candidates_own(self) -> bool:
        """Whether the candidate's program does."""
        left, right = self.reference.program.sources, self.candidate.program.sources
        named = (one for one in right if one.kind is Enters.NAMED)
        alike = (
            right[one].digest is not None
            and right[one].digest == left[other].digest
            and is_whole(right[one])
            and is_whole(left[other])
            for one, other in self.partner.items()
        )
        return (
            not self.candidate.decides and all(one in self.partner for one in named) and all(alike)
        )

    @cached_property
    def _states(self) -> dict[str, TensorRecord]:
        """What the reference's optimizers keep, by name; a program takes it where it has the calls of an update."""
        return {
            one.name: one
            for update in self.reference.program.updates
            for one in update.call.with_role(Role.STATE)
        }

    def given_to_reference(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The reference's number in this step; at the start, where the candidate holds it in other pieces.

        Numbers of the first step may be special: a teacher is its student, and a weight is zero.
        """
        if source in self.paired:
            return self.reference.own(source, record)
        return self.reference.started(source, record)

    def given(self, source: Source, record: TensorRecord) -> torch.Tensor:
        """The reference's number, or the candidate's own where the reference has none."""
        other = self.partner.get(source)
        if other is None:
            state = self._states.get(self.candidate.renamed(source.name))
            if state is not None and state.shape == record.shape:
                return self.reference.own(source, state)
            return self.candidate.started(source, record)
        return self.reference.own(other, self.reference.program.sources[other])

    def shaken(self, run: str, generator: torch.Generator) -> Given:
        """The same numbers, those that one run alone has off by single precision's rounding.

        A constant may be rounded in one run and computed in the other; never is it excused by more than float32.
        """
        given = self.given if run == "candidate" else self.given_to_reference
        rounding = Rounding(generator, at_most=SINGLE)

        def entering(source: Source, record: TensorRecord) -> torch.Tensor:
            tensor = given(source, record)
            return rounding.of(tensor, "float32") if source in self.lone[run] else tensor

        return entering


def common_numbers(reference: Side, candidate: Side, *, by_order: bool = False) -> CommonNumbers:
    """Pair what enters the two programs: parameters and buffers by name, all else by contents.

    by_order: Whether what has no partner of equal contents is paired by shape, in order of time.
    """
    partner: dict[Source, Source] = {}
    left, right = reference.program.sources, candidate.program.sources
    moved = rearranged(reference.starts, candidate.renamed_starts)
    for source, record in right.items():
        other = _partner_of(source, record, candidate, left)
        if other is not None and not (other.kind is Enters.NAMED and other.name in moved):
            partner[source] = other
    if by_order:
        taken = set(partner.values())
        for source, record in right.items():
            if source not in partner and source.kind is Enters.ARRIVED:
                found = next(
                    (
                        one
                        for one, other in left.items()
                        if one not in taken
                        and one.kind is Enters.ARRIVED
                        and other.shape == record.shape
                        and is_rounded(other) == is_rounded(record)
                    ),
                    None,
                )
                if found is not None:
                    partner[source] = found
                    taken.add(found)
    taken = set(partner.values())
    return CommonNumbers(
        reference,
        candidate,
        partner,
        {
            "reference": frozenset(
                one for one, record in left.items() if one not in taken and _is_lone(one, record)
            ),
            "candidate": frozenset(
                one for one, record in right.items() if one not in partner and _is_lone(one, record)
            ),
        },
        moved,
    )


def _partner_of(
    source: Source, record: TensorRecord, candidate: Side, left: Mapping[Source, TensorRecord]
) -> Source | None:
    if source.kind is Enters.NAMED:
        other = Source(source.kind, candidate.renamed(source.name), source.version)
        found = left.get(other)
        return other if found is not None and found.shape == record.shape else None
    if source.kind is Enters.GRADIENT:
        return None
    for one, found in left.items():
        if one.kind is Enters.ARRIVED and found.digest is not None:
            same = found.digest == record.digest and found.shape == record.shape
            if same and would_differ(found.digest, record.digest):
                return one
    return None


def _is_lone(source: Source, record: TensorRecord) -> bool:
    return source.kind is Enters.ARRIVED and is_rounded(record)


def take_what_is_unseen(numbers: CommonNumbers, step: StepOfBoth) -> bool:
    """Whether both runs take what may have been computed past every recorded call, and not the same.

    Where one run alone has such a tensor, the two programs are not one, and law P tells how far they are apart. So it
    does where each run takes a constant of its own.
    """
    both = (numbers.reference, step.reference), (numbers.candidate, step.candidate)
    held = [(side.program.held & numbers.lone[side.run], side, one) for side, one in both]
    return all(lone for lone, _, _ in held) and not all(
        are_constants(side.program, lone, one.constants) for lone, side, one in held
    )
