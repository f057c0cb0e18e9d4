"""Parameters that one run trains and the other does not, or that are one parameter in one run and two in the other."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Evidence, Finding, Kind, Metrics, Origin, Outcome, Pair
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.locate.causes.lone_updates import origin_of_moved, still_moved
from lockstep.locate.setups.setup_facts import FROZEN, TIED

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
