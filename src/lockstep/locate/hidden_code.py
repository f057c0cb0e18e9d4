"""Results of compiled code that nothing bounds: their noise floor accepts what a wrong operator inside would make.

Of compiled code a recording holds the boundary alone, so its results are judged as those of one unknown operator. In
single precision that bounds them to some thousand roundoffs. In 16 bits it lets half of a tensor be anything, and a
model that lacks its activation agrees.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from lockstep.align.alignment import is_compiled
from lockstep.align.dataflow import Flow
from lockstep.align.step import AlignedStep
from lockstep.core.finding import Evidence, Finding, Outcome
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role, Site
from lockstep.judge.tolerances import COMPILED_BOUND

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
    by_floor = finding.floor >= COMPILED_BOUND and finding.judged_by != "local-error"
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
