"""Which calls of a training nothing trained depends on: what only shows a number, such as a loss averaged for the log.

Told by the recorded data flow alone: by contents, from the last recorded step back to the first. What Python does with
a number that it reads is not seen; what it decides shows in settings, batches and calls, which are compared themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

from lockstep.core.operators import Trait, operator_of, writes_in_place
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role

_MADE = (Role.OUTPUT, Role.LOSS, Role.BUFFER)
_TRAINS = frozenset({CallKind.GRADIENT, CallKind.OPTIMIZER})
_HELD = (Role.PARAM, Role.PARAM_AFTER, Role.STATE, Role.STATE_AFTER, Role.BUFFER)


class Dependence:
    """What the training of one rank depends on.

    steps: Its recorded steps.
    calls: Gives those of a step, in order of time.
    """

    def __init__(self, steps: Sequence[int], calls: Callable[[int], Sequence[Call]]) -> None:
        self._steps, self._calls = steps, calls

    def beside(self, call: Call) -> bool:
        """Return whether nothing trained depends on a call.

        It is an operator outside of all modules that no gradient goes through. Of what it makes, no loss, no gradient,
        no parameter, buffer or state is computed in any recorded step. It takes no parameter either, as an average of
        weights that the script keeps does, and writes into no memory but what such a call has made.
        """
        if call.kind is not CallKind.OPERATOR or call.site.module:
            return False  # no step has to be read for that
        return call.id in self._beside.get(call.step, ())

    @cached_property
    def _beside(self) -> Mapping[int, Collection[int]]:
        needed: set[int] = set()
        return {
            step: frozenset(_beside(self._calls(step), needed))
            for step in sorted(self._steps, reverse=True)
        }


def _beside(calls: Sequence[Call], needed: set[int]) -> Iterator[int]:
    """The calls of a step that nothing needed is computed from; what the others take is added to `needed`."""
    if not any(call.kind in _TRAINS for call in calls):
        needed |= {record.content.id for call in calls for record in call.records}
        return
    held = {one.content.id for call in calls for one in _held(call)}
    makers = _makers(calls)
    for call in reversed(calls):
        given = {one.content.id for one in call.with_role(Role.INPUT)}
        made = {one.content.id for one in call.with_role(*_MADE)}
        is_apart = _only_computes(call) and not (made & needed or given & held)
        if is_apart and (not _writes(call) or _writes_into_own(call, makers)):
            yield call.id
            continue
        needed |= given | {one.content.id for one in call.records if one.role not in _MADE}


def _held(call: Call) -> Iterator[TensorRecord]:
    """What a call takes or leaves of the parameters, buffers and states."""
    yield from call.with_role(*_HELD)
    yield from (one for one in call.with_role(Role.INPUT) if one.argument)


def _only_computes(call: Call) -> bool:
    outside = call.kind is CallKind.OPERATOR and call.parent == -1 and not call.site.module
    return outside and all(
        one.site.phase is Phase.FORWARD and one.role in (Role.INPUT, Role.OUTPUT)
        for one in call.records
    )


def _writes(call: Call) -> bool:
    """Whether a call may write into the tensor that it is given first."""
    return writes_in_place(call.site.op) or call.site.op.startswith("torch.distributed.")


def _makers(calls: Sequence[Call]) -> dict[int, list[Call]]:
    """The calls that made each content, in order of time."""
    makers: dict[int, list[Call]] = {}
    for call in calls:
        for record in call.with_role(*_MADE):
            makers.setdefault(record.content.id, []).append(call)
    return makers


def _writes_into_own(call: Call, makers: Mapping[int, Sequence[Call]]) -> bool:
    """Whether the memory that a call writes into was made by an operator outside of modules, and is no other's."""
    given = call.with_role(Role.INPUT)[:1]
    if not given:
        return False
    before = [one for one in makers.get(given[0].content.id, ()) if one.id < call.id]
    if not before or not _only_computes(before[-1]):
        return False
    maker = before[-1]
    shares = Trait.VIEWS in operator_of(maker.site.op).traits or _writes(maker)
    return not shares or _writes_into_own(maker, makers)


__all__ = ["Dependence"]
