"""Parameters that one run alone changes: moved though frozen by hand, trained in one run, written in place."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from lockstep.align.dataflow import Flow
from lockstep.align.step import AlignedStep
from lockstep.core.finding import Evidence, Finding, Kind, Metrics, Origin, Outcome, Pair
from lockstep.core.optimizer_classes import STEP_COUNT, WEIGHT_DECAY
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.update_model import state_name
from lockstep.locate.causes.step_origins import StepOrigins
from lockstep.locate.flow.origins import origin_at, place_of_call, without_partner
from lockstep.locate.flow.updates import CHANGED
from lockstep.locate.setups.setup_facts import FROZEN, TIED


@dataclass(frozen=True, slots=True)
class StillMoved:
    """Updates that one run alone makes of gradients that are zero.

    calls: The updates, by the parameter's name, in order of time.
    zeroed: `operator at file:line` of the call of that run alone that made a gradient zero, or "".
    """

    calls: Mapping[str, Call]
    zeroed: str = ""

    @property
    def first(self) -> Call:
        """The first of them."""
        return next(iter(self.calls.values()))

    def words(self, still: str, moving: str, *, frozen: bool) -> str:
        """Say which run leaves these parameters unchanged, and what moves them in the other."""
        names = list(self.calls)
        are, gradients, them = ("are", "their gradients are", "them")
        if len(names) == 1:
            are, gradients, them = ("is", "its gradient is", "it")
        are = f"{are} frozen in the {still} (requires_grad)"
        if not frozen:
            are = f"{'get' if len(names) > 1 else 'gets'} no gradient in the {still}"
        zeroed = f" ({self.zeroed})" if self.zeroed else ""
        updated = f"the {moving} still updates {them}: {gradients} zero there{zeroed}"
        return f"{listed(names)} {are}, but {updated}, and {_causes(self.first)} {them}"


def still_moved(step: AlignedStep, gradients: Mapping[str, TensorRecord]) -> StillMoved | None:
    """Return the parameters among these that the optimizer of one run moves without a gradient; None for none.

    step: The step.
    gradients: By parameter the gradient that one run alone computes.
    """
    calls: dict[str, Call] = {}
    lone = (pair.present for pair in step.lone if pair.present.kind is CallKind.OPTIMIZER)
    for call in sorted(lone, key=lambda one: one.sequence):
        name = next((one.name for one in call.with_role(Role.PARAM) if one.name in gradients), "")
        if name and _is_without_gradient(call) and _moves(call):
            calls.setdefault(name, call)
    if not calls:
        return None
    return StillMoved(calls, _zeroed(step, [gradients[name] for name in calls]))


def _is_without_gradient(call: Call) -> bool:
    given = call.with_role(Role.PARAM_GRAD)
    return bool(given) and all(
        one.statistics is not None and one.statistics.zero_count == one.content.numel
        for one in given
    )


def _moves(call: Call) -> bool:
    before, after = call.with_role(Role.PARAM), call.with_role(Role.PARAM_AFTER)
    digests = [one.digest for one in (*before[:1], *after[:1])]
    return len(digests) == 2 and None not in digests and digests[0] != digests[1]


def _causes(call: Call) -> str:
    """What moves a parameter without a gradient: `weight decay (0.1) and momentum (exp_avg) move`."""
    decay = call.arguments.get(WEIGHT_DECAY)
    found = [f"weight decay ({decay:g})"] if isinstance(decay, float) and decay else []
    kept = [
        state_name(one)
        for one in call.with_role(Role.STATE)
        if one.statistics is not None and one.statistics.norm > 0 and state_name(one) != STEP_COUNT
    ]
    if kept:
        found.append(f"momentum ({kept[0]})")
    if not found:
        return "the optimizer moves"
    return f"{' and '.join(found)} {'move' if len(found) > 1 else 'moves'}"


def _zeroed(step: AlignedStep, gradients: list[TensorRecord]) -> str:
    """The call without partner that takes one of these gradients and leaves nothing of it."""
    sought = {one.content.id for one in gradients}
    for pair in step.lone:
        call = pair.present
        taken = call.kind is CallKind.OPERATOR and any(
            one.content.id in sought for one in call.with_role(Role.INPUT)
        )
        left = [one.statistics for one in call.with_role(Role.OUTPUT)] if taken else []
        if left and all(one is not None and one.norm == 0.0 for one in left) and call.source:
            return f"{call.site.op} at {call.source}"
    return ""


def origin_of_moved(step: AlignedStep, moved: StillMoved, reason: str, kind: Kind) -> Origin:
    """Return the origin at the first of these updates."""
    call = moved.first
    after = call.with_role(Role.PARAM_AFTER)[0]
    is_reference = any(pair.reference is call for pair in step.lone)
    pair = Pair(after, None) if is_reference else Pair(None, after)
    finding = replace(without_partner(pair, reason), kind=kind)
    return origin_at(place_of_call(call, after, step.module_classes), finding, reason, kind)


def origin_of_lone(
    step: AlignedStep, call: Call, gradients: Mapping[str, TensorRecord], *, is_reference: bool
) -> Origin:
    """Return the origin of gradients that one run alone computes, the first by `call`, of parameters that both have."""
    side, other = ("reference", "candidate") if is_reference else ("candidate", "reference")
    moved = still_moved(step, gradients)
    if moved is not None:
        return origin_of_moved(step, moved, moved.words(other, side, frozen=False), Kind.FAULT)
    record = next(iter(gradients.values()))
    words = f"only the {side} computes gradients of {listed(list(gradients))}, which both runs have"
    reason = Reason(Clause(About.LONE_CALL, words, call.site.op))
    finding = without_partner(Pair(record, None) if is_reference else Pair(None, record), reason)
    place = replace(place_of_call(call, record, step.module_classes), phase=Phase.BACKWARD)
    return origin_at(place, finding, reason, Kind.FAULT)


__all__ = ["StillMoved", "origin_of_lone", "origin_of_moved", "still_moved"]


_OTHER = {"reference": "candidate", "candidate": "reference"}


def frozen_origin(step: AlignedStep, frozen: Mapping[str, str]) -> Origin | None:
    """The origin of parameters that get a gradient in one run only, as they are frozen in the other.

    `frozen` tells for each parameter in which run it is; where neither run computes a gradient it changes nothing.
    """
    found = _lone_gradients(step, frozen)
    if not found:
        return None
    names = list(found)
    side = frozen[names[0]]
    moved = still_moved(step, found)
    if moved is not None:
        reason = Reason(Clause(About.SETTING, moved.words(side, _OTHER[side], frozen=True), FROZEN))
        return origin_of_moved(step, moved, reason, Kind.SETUP)
    words = (
        f"{listed(names)} {'are' if len(names) > 1 else 'is'} frozen in the {side}"
        f" (requires_grad), so only the {_OTHER[side]} computes {'their' if len(names) > 1 else 'its'} gradient"
    )
    reason = Reason(Clause(About.SETTING, words, FROZEN))
    return _origin(step, found[names[0]], names[0], reason)


def tied_origin(step: AlignedStep, tied: Mapping[str, tuple[str, str]]) -> Origin | None:
    """The origin of parameters that are one and the same in one run, and two in the other."""
    parts = {part: alias for alias in tied for part in _parameters_below(step, alias)}
    found = _lone_gradients(step, parts)
    if not found:
        return None
    name = next(iter(found))
    alias = parts[name]
    other, side = tied[alias]
    more = len(tied) - 1
    words = f"{alias} is {other} itself in the {side}, and one of its own in the {_OTHER[side]}" + (
        f"; and {more} more" if more else ""
    )
    return _origin(step, found[name], name, Reason(Clause(About.SETTING, words, TIED)))


def _parameters_below(step: AlignedStep, path: str) -> Collection[str]:
    """Names of parameters with a gradient in one run only that are a name, or lie below a module."""
    return [
        record.name
        for pair in step.lone
        if pair.present.kind is CallKind.GRADIENT
        for record in pair.present.records
        if record.name == path or record.name.startswith(f"{path}.")
    ]


def _lone_gradients(step: AlignedStep, names: Collection[str]) -> dict[str, TensorRecord]:
    """Gradients of these parameters that only one run has, in order of time."""
    records = [
        record
        for pair in step.lone
        if pair.present.kind is CallKind.GRADIENT
        for record in pair.present.with_role(Role.PARAM_GRAD)
        if record.name in names
    ]
    found: dict[str, TensorRecord] = {}
    for record in sorted(records, key=lambda one: one.sequence):
        found.setdefault(record.name, record)
    return found


def _origin(step: AlignedStep, record: TensorRecord, name: str, reason: Reason) -> Origin:
    is_reference = record in _of_reference(step)
    pair = Pair(record, None) if is_reference else Pair(None, record)
    finding = Finding(
        pair, Outcome.MISSING, Metrics(Evidence.NONE), math.nan, math.nan, reason, kind=Kind.SETUP
    )
    module = record.site.module
    return Origin(
        rank=record.rank,
        step=record.step,
        phase=Phase.BACKWARD,
        module=module,
        module_class=step.module_classes.get(module, ""),
        op=record.site.op,
        call=record.site.call,
        role=record.role,
        index=record.index,
        tensor=name,
        source=record.source,
        finding=finding,
        reason=reason,
        sequence=record.sequence,
        kind=Kind.SETUP,
    )


def _of_reference(step: AlignedStep) -> list[TensorRecord]:
    return [
        record
        for pair in step.lone
        if pair.reference is not None
        for record in pair.reference.records
    ]


# Parameters that an operator changes in place in one run only, as an embedding with `max_norm` does.
#
# Such an operator has a result too, which is named where it differs. That it also writes into what it reads is said
# beside it, and the parameter found otherwise before its update follows from that.

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
