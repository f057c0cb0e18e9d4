"""Explain, for the first origins, the candidate's computation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

from lockstep.core.errors import RecordingError
from lockstep.core.finding import Kind, Origin
from lockstep.core.laws import BY_LAWS
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.questions import Answers, Instead, Unexplained
from lockstep.store.reader import Recording

MOST_ORIGINS = 16
"""Origins that are explained while there is time: later ones are most often consequences, and each takes hundreds of
re-runs."""

EXPLAIN_SECONDS = 12.0
"""How long one comparison may take over what the candidate computes instead."""

_MOST_SECONDS = 6.0
"""How long it may take over one origin."""

_MOST_EARLIER = 3
"""Earlier calls that are offered as where a stale tensor comes from."""

_MOST_OTHERS = 4096
"""Records of the step that are offered as terms or as other tensors."""

_BLAMED = frozenset({Kind.FAULT, Kind.SETUP})


def explained_origins(
    origins: Sequence[Origin], reference: Recording, candidate: Recording, asked: Answers
) -> tuple[Origin, ...]:
    """Return the same origins, the first few with the computation that explains the candidate's result, if one is
    found.
    """
    until = time.monotonic() + EXPLAIN_SECONDS
    found = []
    for origin in origins[:MOST_ORIGINS]:
        seconds = min(until - time.monotonic(), _MOST_SECONDS)
        by_calls = origin.finding.judged_by != BY_LAWS
        if origin.kind in _BLAMED and by_calls and seconds > 0:
            origin = _explained(origin, reference, candidate, asked, seconds)
        found.append(origin)
    return (*found, *origins[len(found) :])


def _explained(
    origin: Origin, reference: Recording, candidate: Recording, asked: Answers, seconds: float
) -> Origin:
    pair = origin.finding.pair
    if not (_is_whole(pair.reference) and _is_whole(pair.candidate)):
        return origin
    try:
        left, right = (
            made_by(recording, record, origin.op)
            for recording, record in zip((reference, candidate), pair.both, strict=True)
        )
        others = _others(reference, left[0])
        earlier = () if right[1] is None else _earlier(candidate, right[1])
        updated = _updated_before(candidate, right[0])
        question = Unexplained(
            left[0], right[0], left[1], right[1], others, earlier, updated, seconds
        )
        return replace(origin, explanation=asked.ask(Instead(question)))
    except (CannotReplay, RecordingError):
        return origin  # what cannot be run again is not explained, and the verdict stands without


def _is_whole(record: TensorRecord | None) -> bool:
    return record is not None and record.content.loader is not None


def made_by(
    recording: Recording, record: TensorRecord, op: str
) -> tuple[TensorRecord, Call | None]:
    """The operator or update that gave a tensor, with its record of it.

    A finding may stand at the module whose result an operator's is: then that of the operator is taken.
    """
    if record.rank not in recording.ranks:
        return record, None
    same = [
        (own, call)
        for call in recording.ranks[record.rank].calls(record.step)
        if call.kind in (CallKind.OPERATOR, CallKind.OPTIMIZER)
        for own in call.records
        if own.content.id == record.content.id and own.role is record.role
    ]
    exact = [one for one in same if one[0].sequence == record.sequence]
    named = [one for one in same if one[1].site.op == op and _inside(one[1], record)]
    inside = [one for one in same if _inside(one[1], record)]
    return next(iter((*exact, *named[-1:], *inside[-1:])), (record, None))


def _inside(call: Call, record: TensorRecord) -> bool:
    """Whether a call is of the module that a record is of, or of one inside of it."""
    path = record.site.module
    return call.site.module == path or call.site.module.startswith(f"{path}.") or not path


def _others(recording: Recording, record: TensorRecord) -> tuple[TensorRecord, ...]:
    """Tensors of the same shape in the step and the one before, each content once."""
    if record.rank not in recording.ranks:
        return ()
    rank = recording.ranks[record.rank]
    steps = [step for step in (record.step, record.step - 1) if step in rank.steps]
    found: dict[int, TensorRecord] = {}
    for step in steps:
        for call in rank.calls(step):
            for own in call.records:
                if own.shape == record.shape and own.content.loader is not None:
                    found.setdefault(own.content.id, own)
    found.pop(record.content.id, None)
    return tuple(found.values())[:_MOST_OTHERS]


def _earlier(recording: Recording, call: Call) -> tuple[Call, ...]:
    """The same call in the step before, and the latest of its operator before it in this step."""
    if call.rank not in recording.ranks:
        return ()
    rank = recording.ranks[call.rank]
    before = rank.calls(call.step - 1) if call.step - 1 in rank.steps else ()
    found = [one for one in before if one.kind is call.kind and _stands_for(one, call)]
    here = [
        one
        for one in rank.calls(call.step)
        if one.kind is CallKind.OPERATOR and one.site.op == call.site.op and one.id < call.id
    ]
    return (*found[:1], *here[:-_MOST_EARLIER:-1])


def _updated_before(recording: Recording, record: TensorRecord) -> frozenset[str]:
    """Parameters that were updated at the end of the step before."""
    rank = recording.ranks.get(record.rank)
    if rank is None or record.step - 1 not in rank.steps:
        return frozenset()
    return frozenset(
        own.name
        for call in rank.calls(record.step - 1)
        if call.kind is CallKind.OPTIMIZER
        for own in call.with_role(Role.PARAM_AFTER)
    )


def _stands_for(one: Call, other: Call) -> bool:
    """Whether a call is the same one in another step: of an optimizer, that on the same parameter."""
    names = [[r.name for r in call.with_role(Role.PARAM)] for call in (one, other)]
    return one.site == other.site and names[0] == names[1]
