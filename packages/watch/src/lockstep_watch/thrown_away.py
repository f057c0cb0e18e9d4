"""Which passes of a step a script threw away: backward, and then gradients set back, without an update from them.

So it is where a script leaves a step out by hand, as one does whose own loss scale overflows. The gradient that the
next backward leaves holds nothing of the one before then: it is, to the last bit, what that backward alone has sent, or
it is finite where the one before was not; where operators are not seen, it lies in other memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from lockstep.recordings import BEGAN_ANEW, Call, CallKind, Role, Statistics, TensorRecord

_SENDS = (CallKind.MODULE, CallKind.OPERATOR)


def last_thrown_away(calls: Sequence[Call]) -> int:
    """Return the time up to which all that a step computed was thrown away; -1 where nothing was.

    A pass that an optimizer took something of before, or that changed a parameter (as sharpness-aware minimisation
    does), was not.
    """
    losses = [one.sequence for call in calls if call.kind is CallKind.LOSS for one in call.records]
    if len(losses) < 2:
        return -1
    left, fresh = _gradients(calls), _begun_anew(calls)
    sent = _sent(calls)
    first_update = min(
        (call.sequence for call in calls if call.kind is CallKind.OPTIMIZER), default=1 << 62
    )
    for began in reversed(losses[1:]):
        before = [one.sequence for ones in left.values() for one in ones if one.sequence < began]
        if not before or max(before) > first_update:
            continue
        earlier = {
            name: [one for one in ones if one.sequence < began] for name, ones in left.items()
        }
        told = [name for name, ones in earlier.items() if ones]
        anew = [
            name
            for name in told
            if _begins_anew(earlier[name], left[name], sent[name])
            or _behind(earlier[name], left[name]) in fresh
        ]
        if anew and len(anew) == len(told) and not _changed(calls, max(before)):
            return max(before)
    return -1


def _gradients(calls: Sequence[Call]) -> dict[str, list[TensorRecord]]:
    found: dict[str, list[TensorRecord]] = defaultdict(list)
    for call in calls:
        if call.kind is CallKind.GRADIENT:
            for record in call.with_role(Role.PARAM_GRAD):
                found[record.name].append(record)
    return found


def _begun_anew(calls: Sequence[Call]) -> set[int]:
    """Moments of gradients in whose place another one had been before."""
    return {
        record.sequence
        for call in calls
        if call.kind is CallKind.GRADIENT and call.arguments.get(BEGAN_ANEW)
        for record in call.records
    }


def _behind(earlier: Sequence[TensorRecord], left: Sequence[TensorRecord]) -> int:
    """When a parameter got its next gradient; -1 for never."""
    behind = left[len(earlier) :]
    return behind[0].sequence if behind else -1


def _sent(calls: Sequence[Call]) -> dict[str, list[TensorRecord]]:
    """What operators sent to each parameter; modules only where no operators are recorded."""
    kinds = {call.kind for call in calls}
    kind = CallKind.OPERATOR if CallKind.OPERATOR in kinds else CallKind.MODULE
    found: dict[str, list[TensorRecord]] = defaultdict(list)
    for call in calls:
        if call.kind is kind:
            for record in call.with_role(Role.PARAM_GRAD):
                found[record.name].append(record)
    return found


def _begins_anew(
    earlier: Sequence[TensorRecord], left: Sequence[TensorRecord], sent: Sequence[TensorRecord]
) -> bool:
    """Whether a parameter's next gradient holds nothing of the one before."""
    behind = left[len(earlier) :]
    if not behind:
        return True  # nothing is added to it any more; an update would have taken it
    one, other = earlier[-1], behind[0]
    if _is_broken(one.statistics) and not _is_broken(other.statistics):
        return True
    pieces = [piece for piece in sent if one.sequence < piece.sequence < other.sequence]
    was_zero = one.statistics is not None and one.statistics.zero_count == one.content.numel
    return len(pieces) == 1 and pieces[0].content.id == other.content.id and not was_zero


def _is_broken(numbers: Statistics | None) -> bool:
    return numbers is not None and bool(numbers.nan_count or numbers.inf_count)


def _changed(calls: Sequence[Call], time: int) -> bool:
    """Whether a parameter that an operator reads is another behind a time than before it."""
    held = {one.name for call in calls for one in call.with_role(Role.PARAM, Role.PARAM_GRAD)}
    before: dict[str, set[int]] = defaultdict(set)
    behind: dict[str, set[int]] = defaultdict(set)
    for call in calls:
        if call.kind in _SENDS:
            for record in call.with_role(Role.INPUT):
                if record.name in held:
                    read = before if record.sequence <= time else behind
                    read[record.name].add(record.content.id)
    return any(behind[name] - ones for name, ones in before.items())
