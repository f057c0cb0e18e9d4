"""Which call made each tensor and which calls used it: the data flow inside one recording.

Equal content numbers mean equal tensors within one rank, so the producer of an input is the latest
earlier call that has this content among its outputs. Module calls that contain other calls only
pass tensors on; they are containers, neither producers nor the makers of gradients.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property

from lockstep.align.names import NameMap
from lockstep.core.records import BEGAN_ANEW, Call, TensorRecord
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


# --- gradients that nothing takes -------------------------------------------------------------------------------------
#
# Of parameters, which no update and no other call takes before the script drops them. They change nothing: what is
# taken later, in which they are, is another gradient. One run computes them where the other cuts the graph: parameters
# that no optimizer was given in place of frozen ones, a generator whose images the discriminator takes detached in one
# run alone.

NameOf = Callable[[str], str]


def without_unused(
    reference: Sequence[Call], candidate: Sequence[Call], names: NameMap
) -> tuple[Sequence[Call], Sequence[Call], Mapping[str, Collection[str]]]:
    """The calls of both runs without gradients that nothing takes, as many as the other run has less of a parameter.

    With them, by run ("reference" or "candidate"), the parameters that such gradients are of, as the reference calls
    them.
    """
    counts = [
        Counter(name(one.name) for one in _parameter_gradients(calls))
        for calls, name in ((reference, str), (candidate, names.tensor))
    ]
    if counts[0] == counts[1]:
        return reference, candidate, {}
    more = counts[0] - counts[1], counts[1] - counts[0]
    ours = _without(reference, more[0], str)
    theirs = _without(candidate, more[1], names.tensor)
    dropped = {"reference": ours[1], "candidate": theirs[1]}
    return ours[0], theirs[0], {run: names for run, names in dropped.items() if names}


def _parameter_gradients(calls: Sequence[Call]) -> Iterator[TensorRecord]:
    for call in calls:
        if call.kind is CallKind.GRADIENT:
            yield from call.with_role(Role.PARAM_GRAD)


class UnusedGradients:
    """What nothing takes of the gradients of one step of one run."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    @cached_property
    def _flow(self) -> Flow:
        return Flow(self._calls)

    @cached_property
    def _passes(self) -> dict[str, list[Call]]:
        """By parameter, the calls that have added to its gradient, in order of time."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self._calls:
            if call.kind is CallKind.GRADIENT:
                for one in call.with_role(Role.PARAM_GRAD):
                    found[one.name].append(call)
        return found

    @cached_property
    def _taken(self) -> frozenset[int]:
        """Contents that a call takes, other than gradients as they are added up."""
        kinds = (CallKind.GRADIENT, CallKind.OPTIMIZER)
        return frozenset(
            one.content.id
            for call in self._calls
            if call.kind not in kinds
            for one in call.with_role(Role.INPUT)
        )

    @cached_property
    def _updates(self) -> dict[str, list[int]]:
        """By parameter, when it was updated."""
        found: dict[str, list[int]] = defaultdict(list)
        for call in self._calls:
            if call.kind is CallKind.OPTIMIZER:
                for one in call.with_role(Role.PARAM):
                    found[one.name].append(call.sequence)
        return found

    @cached_property
    def calls(self) -> frozenset[int]:
        """Numbers of the calls that add up a gradient which nothing takes; none in a step without updates."""
        found: set[int] = set()
        for name, passes in self._passes.items() if self._updates else ():
            added: list[Call] = []
            for call, following in zip(passes, [*passes[1:], None], strict=True):
                added.append(call)
                if following is None or following.arguments.get(BEGAN_ANEW):
                    until = float("inf") if following is None else following.sequence
                    if not self._is_taken(name, added, until):
                        found |= {one.id for one in added}
                    added = []
        return frozenset(found)

    def _is_taken(self, name: str, added: Sequence[Call], until: float) -> bool:
        since = added[0].sequence
        return any(since < one < until for one in self._updates.get(name, ())) or any(
            one.content.id in self._taken
            for call in added
            for one in call.with_role(Role.PARAM_GRAD)
        )

    def leads_nowhere(self, call: Call, gradient: TensorRecord) -> bool:
        """Whether the gradient that a call sends to an input only reaches gradients that nothing takes.

        gradient: Among the records of `call`, of role GRAD_INPUT.
        """
        if not self.calls:
            return False
        index = gradient.index
        waiting = [(one, gradient) for one in call.with_role(Role.INPUT) if one.index == index]
        seen: set[int] = set()
        while waiting:
            entering, sent = waiting.pop()
            if sent.content.id in self._taken:
                return False
            if entering.name in self._passes and not self._is_unused(entering.name, sent):
                return False
            maker = self._flow.producer(entering.content.id, entering.sequence)
            if maker is None or maker.id in seen:
                continue
            seen.add(maker.id)
            if maker.kind is CallKind.MODULE and not self._is_unused_below(maker, sent):
                return False
            sends = {one.index: one for one in maker.with_role(Role.GRAD_INPUT)}
            waiting += [(one, sends.get(one.index, sent)) for one in maker.with_role(Role.INPUT)]
        return True

    def _is_unused(self, name: str, sent: TensorRecord) -> bool:
        """Whether nothing takes the gradient of a parameter that the pass which sends this adds to."""
        call = next((one for one in self._passes[name] if one.sequence > sent.sequence), None)
        return call is not None and call.id in self.calls

    def _is_unused_below(self, module: Call, sent: TensorRecord) -> bool:
        """The same of all parameters of a module whose inside was not recorded."""
        path = module.site.module
        return all(
            self._is_unused(name, sent)
            for name in self._passes
            if not path or name.startswith(f"{path}.")
        )


def _without(
    calls: Sequence[Call], more: Counter[str], name: NameOf
) -> tuple[Sequence[Call], Collection[str]]:
    """The calls without the first that nothing takes, as many of each parameter as `more` tells; and the parameters."""
    if not more:
        return calls, ()
    unused, left = UnusedGradients(calls).calls, Counter(more)
    dropped: set[int] = set()
    for call in calls:
        of = [name(one.name) for one in call.with_role(Role.PARAM_GRAD)]
        if call.id in unused and all(left[one] > 0 for one in of):
            left.subtract(of)
            dropped.add(call.id)
    return [one for one in calls if one.id not in dropped], {
        one for one, count in more.items() if left[one] < count
    }
