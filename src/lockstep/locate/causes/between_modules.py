"""Between which modules an origin lies where modules alone were recorded: the calls there belong to neither."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.align.step import Aligned, AlignedStep, is_below
from lockstep.core.finding import Kind, Origin
from lockstep.core.manifest import OPERATORS
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import Recording

_ARRIVING = frozenset({Role.INPUT, Role.GRAD_OUTPUT})
_LEAVING = {
    Role.INPUT: Role.OUTPUT, Role.OUTPUT: Role.OUTPUT, Role.GRAD_OUTPUT: Role.GRAD_INPUT,
    Role.GRAD_INPUT: Role.GRAD_INPUT,
}  # fmt: skip
"""What the module before left, by what differs first."""


def operators_unseen(*recordings: Recording) -> str:
    """Return the words for operators that were not recorded, "not recorded at L0"; "" if they were."""
    gaps = (gap for one in recordings for gap in one.manifest.not_seen if gap.what == OPERATORS)
    return next((f"not recorded{f' at {gap.level}' if gap.level else ''}" for gap in gaps), "")


def between_words(origin: Origin, step: AlignedStep, unseen: str) -> str:
    """Return between which modules an origin lies, "between fc and rnn, not recorded at L0"; "" where it is in one.

    Parameters
    ----------
    origin
        Of this step.
    step
        Where modules alone were recorded.
    unseen
        As `operators_unseen` tells it.
    """
    record = origin.finding.pair.present
    if not unseen or origin.kind is not Kind.FAULT or record.role not in _LEAVING:
        return ""
    met = _call_of(origin, step)
    if met is None or (record.role not in _ARRIVING and not step.is_container(met)):
        return ""
    path = met.reference.site.module
    inside = record.role not in _ARRIVING
    before = _last_before(step, met, record.sequence, _LEAVING[record.role], inside=inside)
    backward = record.role in (Role.GRAD_OUTPUT, Role.GRAD_INPUT)
    start = before or ("the loss" if backward else f"the input of {_name(_outer(step, met))}")
    end = path or "the model"
    if inside:
        end = f"the {'input' if backward else 'result'} of {_name(path)}"
    return f"between {start} and {end}, {unseen}"


def _call_of(origin: Origin, step: AlignedStep) -> Aligned | None:
    """The module call at which an origin was met."""
    record = origin.finding.pair.present
    return next(
        (
            item
            for item in step.of_kind(CallKind.MODULE)
            if any(pair.present is record for pair in item.whole)
        ),
        None,
    )


def _last_before(step: AlignedStep, met: Aligned, moment: int, role: Role, *, inside: bool) -> str:
    """Path of the module that was the last to leave something before a moment; "" where none was."""
    path = met.reference.site.module
    found = max(
        (
            (pair.present.sequence, item.reference.site.module)
            for item in _others(step, met)
            if not is_below(path, item.reference.site.module)
            and (not inside or is_below(item.reference.site.module, path))
            for pair in item.complete(role)
            if pair.present.sequence < moment
        ),
        default=(0, ""),
    )
    return found[1]


def _others(step: AlignedStep, met: Aligned) -> Iterator[Aligned]:
    return (item for item in step.of_kind(CallKind.MODULE) if item is not met)


def _outer(step: AlignedStep, met: Aligned) -> str:
    around = step.module_around(met)
    return "" if around is None else around.reference.site.module


def _name(path: str) -> str:
    return path or "the model"
