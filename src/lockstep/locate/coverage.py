"""Check that every loss, gradient and parameter was judged, compiled code too, before two runs may agree."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import Enum

from lockstep.align.alignment import is_compiled
from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import BY_LOCAL_ERROR, Evidence, Finding, Outcome, SetupDifference
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.judge.tolerances import COMPILED_BOUND
from lockstep.locate.setups.model_setup import CLASS, OtherModule, unseen_inside

_KINDS = frozenset({CallKind.INIT, CallKind.LOSS, CallKind.GRADIENT, CallKind.OPTIMIZER})


class Quantity(str, Enum):
    """A quantity that must be judged before two trainings may agree."""

    LOSS = "loss"
    GRADIENT = "gradient"
    PARAMETER = "parameter"
    STATE = "state"


_QUANTITIES = {
    Role.LOSS: Quantity.LOSS,
    Role.PARAM_GRAD: Quantity.GRADIENT,
    Role.PARAM: Quantity.PARAMETER,
    Role.PARAM_AFTER: Quantity.PARAMETER,
}


class Coverage:
    """Gathers losses, gradients and parameters without partner, over all ranks and steps."""

    def __init__(self) -> None:
        self._alone: dict[tuple[Quantity, str], dict[str, int]] = defaultdict(dict)
        self._other_inside: dict[str, SetupDifference] = {}

    def note(self, step: AlignedStep) -> None:
        """Keep the parts of one step of one rank that only one side has."""
        paired: tuple[set[tuple[Quantity, str]], ...] = (set(), set())
        for item in step.aligned:
            if item.reference.kind in _KINDS:
                for pair in item.whole:
                    for names, record in zip(paired, (pair.reference, pair.candidate), strict=True):
                        names.update(_quantity(record))
        for is_candidate, record in _alone(step):
            side = "candidate" if is_candidate else "reference"
            for key in _quantity(record):
                if key[0] is Quantity.LOSS or key not in paired[is_candidate]:
                    self._alone[key[0], side].setdefault(key[1], record.step)

    def note_inside(self, step: AlignedStep, modules: Mapping[str, OtherModule]) -> None:
        """Keep modules of a different class whose inside was not recorded: their results may differ by design."""
        for around, inside in unseen_inside(step, modules).items():
            if any(
                _differs(item)
                for item in step.of_kind(CallKind.MODULE)
                if item.reference.site.module == around
            ):
                for path, module in inside.items():
                    self._other_inside.update(
                        (path, one) for one in module.differences if one.name == CLASS
                    )

    def gaps(self, findings: Iterable[Finding]) -> list[NotCompared]:
        """Return the things that were not judged; empty if all was."""
        return [*self._unjudged(findings), *self._without_partner(), *self._unseen()]

    def _unjudged(self, findings: Iterable[Finding]) -> Iterator[NotCompared]:
        found: dict[Quantity, dict[str, Finding]] = defaultdict(dict)
        for finding in findings:
            known = (
                not math.isnan(finding.difference) or finding.pair.present.role is not Role.STATE
            )
            if finding.outcome is Outcome.INCOMPARABLE and known:
                for quantity, name in _of_training(finding.pair.present):
                    found[quantity].setdefault(name, finding)
        for quantity, unjudged in found.items():
            first = next(iter(unjudged.values()))
            yield NotCompared(
                WhyNot.TRAINED_NOT_JUDGED, at=quantity.value, names=tuple(unjudged),
                step=first.pair.present.step, reason=first.reason,
            )  # fmt: skip

    def _without_partner(self) -> Iterator[NotCompared]:
        for (quantity, side), names in self._alone.items():
            yield NotCompared(
                WhyNot.TRAINED_ALONE, at=quantity.value, names=tuple(names), side=side,
                step=min(names.values()),
            )  # fmt: skip

    def _unseen(self) -> Iterator[NotCompared]:
        if self._other_inside:
            one = next(iter(self._other_inside.values()))
            yield NotCompared(
                WhyNot.UNSEEN_INSIDE, names=tuple(self._other_inside),
                reference=one.reference, candidate=one.candidate,
            )  # fmt: skip


def _differs(item: Aligned) -> bool:
    """Whether a call returned anything that is not equal bit by bit."""
    results = item.complete(Role.OUTPUT, Role.GRAD_INPUT)
    return any(
        one.reference is None
        or one.candidate is None
        or one.reference.digest != one.candidate.digest
        for one in results
    )


def _alone(step: AlignedStep) -> Iterator[tuple[bool, TensorRecord]]:
    """Records without partner of the calls that hold losses, gradients and parameters; whether the candidate's."""
    for calls in step.lone:
        if calls.present.kind in _KINDS:
            for record in calls.present.records:
                yield calls.reference is None, record
    for item in step.aligned:
        if item.reference.kind in _KINDS and len(item.whole) < len(item.pairs):
            for pair in item.pairs:
                if pair.reference is None or pair.candidate is None:
                    yield pair.reference is None, pair.present


def _quantity(record: TensorRecord | None) -> Iterator[tuple[Quantity, str]]:
    if record is not None and record.role in _QUANTITIES:
        yield _QUANTITIES[record.role], record.name


def _of_training(record: TensorRecord) -> Iterator[tuple[Quantity, str]]:
    """As `_quantity`, without what single operators send to parameters: it is judged where it is added up."""
    if record.role is Role.STATE:  # what an update left is judged by what entered it
        yield Quantity.STATE, record.name
    added_up = record.site.phase is Phase.OPTIMIZER or record.site.op == "accumulate_grad"
    if record.role is not Role.PARAM_GRAD or added_up:
        yield from _quantity(record)


# Results of compiled code that nothing bounds: their noise floor accepts what a wrong operator inside would make.
#
# Of compiled code a recording holds the boundary alone, so its results are judged as those of one unknown operator.
# In single precision that bounds them to some thousand roundoffs. In 16 bits it lets half of a tensor be anything,
# and a model that lacks its activation agrees.

_MADE = frozenset({Role.OUTPUT, Role.GRAD_INPUT, Role.BUFFER})


class CompiledCode:
    """Gathers, over all ranks and steps, which results are of compiled code."""

    def __init__(self) -> None:
        self._sites: set[tuple[str, int, Site]] = set()
        self._parameters: set[str] = set()

    def note(self, step: AlignedStep, sides: Collection[str]) -> None:
        """Keep what compiled code made in one step of one rank, where a side ("reference", "candidate") has some."""
        flows = [
            flow
            for side, flow in (("reference", step.reference), ("candidate", step.candidate))
            if side in sides
        ]
        for item in step.of_kind(CallKind.MODULE, CallKind.OPERATOR):
            calls = (item.reference, item.candidate)
            if any(_is_hidden(call, flow) for flow in flows for call in calls):
                for call in calls:
                    self._sites.update((one.rank, one.step, one.site) for one in call.records)
        for flow in flows:
            self._parameters |= _unseen_gradients(step, flow)

    def unbounded(
        self, findings: Iterable[Finding], rounding_alone: Collection[str]
    ) -> Iterator[NotCompared]:
        """What was not judged of compiled code; `rounding_alone` names gradients that are zero but for rounding."""
        found = [
            one
            for one in findings
            if self._made(one.pair.present)
            and one.pair.present.name not in rounding_alone
            and _bounds_nothing(one)
        ]
        if found:
            yield _not_judged(found)

    def _made(self, record: TensorRecord) -> bool:
        """Whether compiled code made a tensor, or the gradient that its parameter is left with."""
        if record.role is Role.PARAM_GRAD and record.name in self._parameters:
            return True
        return record.role in _MADE and (record.rank, record.step, record.site) in self._sites


def _is_hidden(call: Call, flow: Flow) -> bool:
    """Whether a call of a run that compiles shows nothing inside of itself, and is of no known operator."""
    if flow.calls.get(call.id) is not call:
        return False
    if is_compiled(call):
        return True
    is_module = call.kind is CallKind.MODULE and call.id not in flow.containers
    return is_module and family_of(call.site.op) is Family.UNKNOWN


def _unseen_gradients(step: AlignedStep, flow: Flow) -> set[str]:
    """Parameters that get a gradient in a run, and no call of it is seen to send one."""
    is_candidate = flow is step.candidate
    sent, gathered = set[str](), set[str]()
    for call in flow.calls.values():
        names = gathered if call.kind is CallKind.GRADIENT else sent
        if call.kind in _SENDING:
            for record in call.with_role(Role.PARAM_GRAD):
                names.add(step.name_of(record, is_candidate=is_candidate))
    return gathered - sent


_SENDING = frozenset({CallKind.GRADIENT, CallKind.MODULE, CallKind.OPERATOR})


def _bounds_nothing(finding: Finding) -> bool:
    """Whether two results differ, and no more is known than that their noise floor accepts it, or nothing does."""
    if finding.metrics.evidence is Evidence.DIGEST or not finding.difference > 0:
        return False
    if finding.outcome is Outcome.INCOMPARABLE:
        return True
    by_floor = finding.floor >= COMPILED_BOUND and finding.judged_by != BY_LOCAL_ERROR
    return finding.outcome is Outcome.AGREE and by_floor


def _not_judged(found: Sequence[Finding]) -> NotCompared:
    first = found[0].pair.present
    what = f"the gradient of {first.name}" if first.role is Role.PARAM_GRAD else ""
    return NotCompared(
        WhyNot.COMPILED_UNBOUNDED,
        count=len(found),
        at=what or f"{first.name} of {first.site}",
        step=first.step,
        numbers={
            "furthest": max(one.difference for one in found),
            "floor": max((one.floor for one in found if one.floor > 0), default=0.0),
        },
    )
