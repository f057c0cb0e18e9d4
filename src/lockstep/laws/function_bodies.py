"""What a custom autograd function calls, as a part of a step's program: its results, and what its backward sends.

What it calls forward are calls of the program like all others. Its backward is run where autograd comes to the
function: of what arrives there, of what the function has taken, made and given, and of what enters beside. Knows no
torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role
from lockstep.laws.step_events import (
    RESULTS,
    Body,
    Link,
    Node,
    NotApplicable,
    Operator,
    Taken,
    arriving_at,
)

_BESIDE = 1 << 20
"""What a function takes beside its inputs is numbered from here on."""


def called_forward(call: Call) -> list[Call]:
    """What a custom function calls to make its results, in order of time, as operators."""
    return as_operators(one for one in call.body if one.site.phase is not Phase.BACKWARD)


def as_operators(calls: Iterable[Call]) -> list[Call]:
    """Calls of a body as calls like all others."""
    return [replace(one, kind=CallKind.OPERATOR) for one in calls]


def with_body(
    operator: Operator,
    made: Mapping[int, Sequence[Node]],
    link_of: Callable[[TensorRecord], Link],
) -> Operator:
    """The call of a custom function, with what its results are and what its backward calls.

    operator: With its inputs alone.
    made: By number of a content, the results that the calls before have made.
    link_of: Where a tensor comes from that the function holds, but for what it has made itself.

    Raises NotApplicable if no recorded call makes one of its results or gradients.
    """
    return _Bodies(operator, made, link_of).found()


class _Bodies:
    """Gathers what one call of a custom function takes and gives."""

    def __init__(
        self,
        operator: Operator,
        made: Mapping[int, Sequence[Node]],
        link_of: Callable[[TensorRecord], Link],
    ) -> None:
        self._call, self._link_of = operator.call, link_of
        self._taken = dict(operator.taken)
        own = {one.id for one in called_forward(operator.call)}
        self._made = {
            content: nodes[-1]
            for content, all_nodes in made.items()
            if (nodes := [one for one in all_nodes if one.call in own])
        }
        self._given: dict[int, Link] = {
            one.record.content.id: one.link for one in operator.taken.values()
        }
        self._given.update(self._made)
        self._back: dict[int, list[Link]] = defaultdict(list)
        self._used: set[Link] = set()

    def found(self) -> Operator:
        """The call with its body."""
        gives = {}
        for one in self._call.with_role(*RESULTS):
            link = self._given.get(one.content.id)
            if link is None or one.role is Role.BUFFER:
                raise self._not_applicable(f"no recorded call makes {one.name}")
            gives[one.index] = self._beside(link, one)
        calls = tuple(self._backward())
        sends = {
            one.index: self._came_from(one)
            for one in self._call.with_role(Role.GRAD_INPUT, Role.PARAM_GRAD)
            if one.occurrence == 0
        }
        return Operator(self._call, self._taken, body=Body(gives, calls, sends))

    def _backward(self) -> Iterator[Operator]:
        """What the first backward pass that reaches the function calls."""
        arrived = self._call.with_role(Role.GRAD_OUTPUT)
        again = min((one.sequence for one in arrived if one.occurrence > 0), default=None)
        for one in arrived:
            if one.occurrence == 0:
                self._back[one.content.id].append(arriving_at(self._call, one.index))
        backward = [one for one in self._call.body if one.site.phase is Phase.BACKWARD]
        for call in as_operators(self._needed(backward)):
            late = again is not None and call.sequence > again
            if late or "raised" in call.arguments:
                continue
            taken = {
                one.index: Taken(self._came_from(one), one) for one in call.with_role(Role.INPUT)
            }
            self._used |= {one.link for one in taken.values()}
            yield Operator(call, taken)
            for one in call.with_role(*RESULTS):
                self._back[one.content.id].append(Node(call.id, one.index))

    def _needed(self, backward: Sequence[Call]) -> list[Call]:
        """The calls on which a gradient depends that the backward sends: it may also log what arrives."""
        needed = {one.content.id for one in self._call.with_role(Role.GRAD_INPUT, Role.PARAM_GRAD)}
        found: list[Call] = []
        for call in sorted(backward, key=lambda one: one.sequence, reverse=True):
            if needed.isdisjoint(one.content.id for one in call.with_role(*RESULTS)):
                continue
            needed.update(one.content.id for one in call.with_role(Role.INPUT))
            found.append(call)
        return found[::-1]

    def _came_from(self, record: TensorRecord) -> Link:
        """The latest tensor of these numbers within the backward, before those that were taken; else what is held."""
        back = self._back.get(record.content.id)
        if back:
            free = [one for one in back if one not in self._used]
            return (free or back)[-1]
        link = self._given.get(record.content.id)
        if link is None:
            if record.role is not Role.INPUT:
                raise self._not_applicable(f"no recorded call makes the gradient of {record.name}")
            link = self._link_of(record)
            self._given[record.content.id] = link
        self._beside(link, record)
        return link

    def _beside(self, link: Link, record: TensorRecord) -> int:
        """Where the call takes a tensor: as an input, or beside them."""
        known = next((at for at, one in self._taken.items() if one.link == link), None)
        if known is not None:
            return known
        at = _BESIDE + len(self._taken)
        self._taken[at] = Taken(link, replace(record, index=at), detached=True)
        return at

    def _not_applicable(self, why: str) -> NotApplicable:
        return NotApplicable(f"{self._call.site.op} at {self._call.source}: {why}")
