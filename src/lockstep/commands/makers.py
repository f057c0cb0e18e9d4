"""The call of each run that made the tensor of an origin."""

from __future__ import annotations

from operator import itemgetter

from lockstep.core.errors import RecordingError
from lockstep.core.finding import Origin
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.locate.causes.explained_origins import made_by
from lockstep.replay.calls.held_results import BACKWARD, FORWARD, UPDATED
from lockstep.store.reader import Recording

_MADE = frozenset({*FORWARD, *BACKWARD, *UPDATED, Role.LOSS})


def made_at(
    origin: Origin, reference: Recording, candidate: Recording
) -> tuple[Call | None, Call | None]:
    """Return the operator or update of each run that made an origin's tensor; None if there is none."""
    pair = origin.finding.pair
    return (
        _made(origin, reference, pair.reference),
        _made(origin, candidate, pair.candidate),
    )


def _made(origin: Origin, run: Recording, record: TensorRecord | None) -> Call | None:
    if record is None or origin.phase in (Phase.INIT, Phase.DATA):
        return None
    try:
        if record.role in _MADE:
            call = made_by(run, record, origin.op)[1]
            return call if call is None or _gives(call, record) else None
        return _update_of(run, record) or _maker_of(run, record)
    except RecordingError:  # damaged there: the verdict stands without
        return None


def _gives(call: Call, record: TensorRecord) -> bool:
    """Whether a tensor is a result of a call: a gradient that enters an update is none of it."""
    return call.kind is not CallKind.OPTIMIZER or record.role in UPDATED


def _update_of(run: Recording, record: TensorRecord) -> Call | None:
    """The update that a tensor enters, where one is named for its settings."""
    for call in run.ranks[record.rank].calls(record.step) if record.rank in run.ranks else ():
        if call.kind is CallKind.OPTIMIZER and any(
            own is record or own == record for own in call.records
        ):
            return call
    return None


def _maker_of(run: Recording, record: TensorRecord) -> Call | None:
    """The last operator before a tensor is used that gave it; None for what no recorded call gave as it is."""
    roles = {Role.INPUT: FORWARD, Role.GRAD_OUTPUT: BACKWARD}.get(record.role, ())
    makers = [
        (own.sequence, call)
        for call in (run.ranks[record.rank].calls(record.step) if record.rank in run.ranks else ())
        if call.kind is CallKind.OPERATOR
        for own in call.with_role(*roles)
        if own.content.id == record.content.id and own.sequence < record.sequence
    ]
    return max(makers, key=itemgetter(0))[1] if makers else None
