"""Which call made each tensor and which calls used it: the data flow inside one recording.

Equal content numbers mean equal tensors within one rank, so the producer of an input is the latest
earlier call that has this content among its outputs. Module calls that contain other calls only
pass tensors on; they are containers, neither producers nor the makers of gradients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence

from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role

_PRODUCED = frozenset({Role.OUTPUT, Role.BUFFER, Role.LOSS})


class Flow:
    """The data flow of one step of one rank of one recording.

    calls: Every call by its number.
    containers: Numbers of the module calls inside of which something was recorded.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = {call.id: call for call in calls}
        self.containers = frozenset(call.parent for call in calls if call.parent in self.calls)
        self._producers: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._consumers: dict[int, list[int]] = defaultdict(list)
        self._passed_out: dict[int, list[int]] = defaultdict(list)
        for call in calls:
            self._enter(call)
        for producers in self._producers.values():
            producers.sort()

    def _enter(self, call: Call) -> None:
        container = call.id in self.containers
        for record in call.records:
            content = record.content.id
            if record.role is Role.INPUT and call.kind is not CallKind.DATA:
                consumers = self._consumers[content]
                if not consumers or consumers[-1] != call.id:
                    consumers.append(call.id)
            elif record.role in _PRODUCED and call.kind is not CallKind.INIT:
                if container:
                    self._passed_out[content].append(call.id)
                else:
                    self._producers[content].append((record.sequence, call.id))

    def producer(self, content: int, before: int) -> Call | None:
        """Latest call that made this content before a moment, None where it was not seen."""
        producers = self._producers.get(content, [])
        position = bisect_left(producers, (before, -1))
        return self.calls[producers[position - 1][1]] if position else None

    def times_made(self, content: int, op: str) -> int:
        """How many calls of an operator made this content: a loop may compute it anew each time."""
        makers = (self.calls[number] for _, number in self._producers.get(content, ()))
        return sum(call.site.op == op for call in makers)

    def consumers(self, content: int) -> Iterator[Call]:
        """Calls, containers too, that this content went into."""
        return (self.calls[number] for number in self._consumers.get(content, ()))

    def passed_out_by(self, content: int) -> Iterator[Call]:
        """Containers that returned this content."""
        return (self.calls[number] for number in self._passed_out.get(content, ()))

    def is_inside(self, call: Call, container: int) -> bool:
        """Whether a call happened inside a module call, at any depth."""
        parent = call.parent
        while parent in self.calls:
            if parent == container:
                return True
            parent = self.calls[parent].parent
        return False
