"""Parameters that one run alone updates though their gradient is zero: frozen by hand, and moved all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Kind, Origin, Pair
from lockstep.core.optimizer_classes import STEP_COUNT, WEIGHT_DECAY
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.update_model import state_name
from lockstep.locate.flow.origins import origin_at, place_of_call, without_partner


@dataclass(frozen=True, slots=True)
class StillMoved:
    """Updates that one run alone makes of gradients that are zero.

    Attributes
    ----------
    calls
        The updates, by the parameter's name, in order of time.
    zeroed
        `operator at file:line` of the call of that run alone that made a gradient zero, or "".
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

    Parameters
    ----------
    step
        The step.
    gradients
        By parameter the gradient that one run alone computes.
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
