"""The program of a step that one rank has run, or several together. Knows no torch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.sketch import sketch_of
from lockstep.laws.exchanges import (
    AXIS,
    BY,
    COMPLETION,
    FACTOR,
    GATHERING,
    MEMBER,
    NAME,
    OUT_OF_SIGHT,
    REDUCTION,
    exchange_of,
    given_to,
    members_of,
    number_of,
    partial_by,
    takes_gradient,
)
from lockstep.laws.program import ProgramBuilder, step_program
from lockstep.laws.rank_prefixes import (
    CALLS_OF_A_RANK,
    UNRECORDED,
    rank_and_name,
    ranks_of,
    with_rank,
)
from lockstep.laws.step_events import (
    Backward,
    Enters,
    Event,
    Gathered,
    Node,
    NotApplicable,
    Operator,
    Source,
    StepProgram,
    Taken,
    finished,
)
from lockstep.laws.written_views import without_written_updates


def program_of(calls: Sequence[Call]) -> StepProgram:
    """The program of a step, of all ranks whose calls these are.

    calls: Those of one rank as they were recorded; of several ranks, as `calls_of_ranks` of `rank_prefixes` gives them.

    Raises NotApplicable if the recording does not hold the whole of it.
    """
    ranks = ranks_of(calls)
    if len(ranks) < 2:
        return step_program(calls)
    plain = without_written_updates(calls)
    return _joint_program(ranks if plain is None else ranks_of(plain))


def _joint_program(ranks: Mapping[str, Sequence[Call]]) -> StepProgram:
    gradients, shards = _Gradients(ranks), _Shards(ranks)
    builders = [
        ProgramBuilder(calls, _OutOfSight(gradients, shards, rank, place * CALLS_OF_A_RANK))
        for place, (rank, calls) in enumerate(ranks.items())
    ]
    for builder in builders:
        builder.gather()
    programs = dict(zip(ranks, (one.program for one in builders), strict=True))
    hooked = {name: node for one in builders for name, node in one.hooked.items()}
    for program in programs.values() if hooked else ():
        program.events = [_behind_hooks(event, hooked) for event in program.events]
    merged = StepProgram(
        events=_Meeting(programs).merged(),
        sources={key: one for each in programs.values() for key, one in each.sources.items()},
        gradients={key: one for each in programs.values() for key, one in each.gradients.items()},
        buffers={key: one for each in programs.values() for key, one in each.buffers.items()},
        unplaced=[one for each in programs.values() for one in each.unplaced],
        results={key: one for each in programs.values() for key, one in each.results.items()},
        held={one for each in programs.values() for one in each.held},
        moved=[one for each in programs.values() for one in each.moved],
    )
    return finished(merged, merged.makers())


def _behind_hooks(event: Event, hooked: Mapping[str, Node]) -> Event:
    """An exchange of gradients takes what hooks have made of them on each rank."""
    if not isinstance(event, Operator) or event.call.site.op != REDUCTION:
        return event
    taken = {
        place: replace(one, link=hooked.get(one.link.name, one.link))
        if isinstance(one.link, Source)
        else one
        for place, one in event.taken.items()
    }
    return replace(event, taken=taken)


# --- gradients that a wrapper exchanges -------------------------------------------------------------------------------

Row = npt.NDArray[np.float64]

_ALIKE = 0.02
"""Relative distance up to which a tensor is the ranks' gradients put together: some roundings of 16 bits, in which a
wrapper may send them. Another parameter's gradient is about once its norm away."""


class _Gradients:
    """The gradients of all ranks before they were exchanged, as their recordings hold them."""

    def __init__(self, ranks: Mapping[str, Sequence[Call]]) -> None:
        self.ranks = tuple(ranks)
        self._recorded: dict[str, dict[str, list[TensorRecord]]] = {}
        """By parameter and rank, one after the other."""
        self._sums: dict[tuple[str, int], Row | None] = {}
        for rank, calls in ranks.items():
            for call in calls:
                for one in call.with_role(Role.PARAM_GRAD) if _is_gradient(call) else ():
                    of_ranks = self._recorded.setdefault(rank_and_name(one.name)[1], {})
                    of_ranks.setdefault(rank, []).append(one)

    def before(self, rank: str, sequence: int) -> dict[str, int]:
        """How many gradients of each parameter a rank had recorded before a moment."""
        counts = {
            name: sum(one.sequence < sequence for one in of_ranks.get(rank, ()))
            for name, of_ranks in self._recorded.items()
        }
        return {name: count for name, count in counts.items() if count}

    def of_all(self, name: str, count: int) -> dict[str, TensorRecord]:
        """The gradient of a parameter that each rank has when it has recorded so many; ranks without are left out."""
        return {
            rank: records[min(count, len(records)) - 1]
            for rank, records in self._recorded.get(name, {}).items()
        }

    def factor(self, record: TensorRecord, name: str, count: int) -> tuple[float, float]:
        """What the sum of the ranks' gradients is multiplied by to give a tensor, and how far that is off, relative."""
        key = name, count
        if key not in self._sums:
            parts = [_row_of(one) for one in self.of_all(name, count).values()]
            known = [one for one in parts if one is not None]
            self._sums[key] = sum(known[1:], known[0]) if len(known) == len(parts) else None
        total, row = self._sums[key], _row_of(record)
        if total is None or row is None:
            return 1 / len(self.ranks), 0.0
        choices = (1 / len(self.ranks), 1.0)
        apart = [float(np.linalg.norm(row - one * total)) for one in choices]
        factor = choices[int(np.argmin(apart))]
        size = max(float(np.linalg.norm(row)), factor * float(np.linalg.norm(total)))
        return factor, min(apart) / size if size > 0 else 0.0


def _is_gradient(call: Call) -> bool:
    return call.kind is CallKind.GRADIENT


def _row_of(record: TensorRecord) -> Row | None:
    """The sketch of a tensor; None where neither that nor the whole was recorded."""
    sketch = record.content.sketch
    if sketch is None and record.content.loader is not None:
        sketch = sketch_of(record.load())
    return sketch


@dataclass
class _OutOfSight:
    """What wrappers such as DDP and FSDP do with one rank's gradients and parameters, which no recorded call shows.

    See `lockstep.laws.step_events.Passing`.
    """

    gradients: _Gradients
    shards: _Shards
    rank: str
    first: int
    _made: int = 0

    def reduced(self, record: TensorRecord, name: str = "") -> Operator | None:
        """The call that made a gradient of those of all ranks."""
        counts = self.gradients.before(self.rank, record.sequence)
        plain = rank_and_name(name)[1] if name else self._named(record, counts)
        if plain not in counts:
            return None
        factor, _ = self.gradients.factor(record, plain, counts[plain])
        parts = self.gradients.of_all(plain, counts[plain])
        if any(one.shape != record.shape for one in parts.values()):
            return None
        call = self._call(record, REDUCTION, {FACTOR: factor, NAME: plain})
        sources = (Source(Enters.GRADIENT, with_rank(plain, rank)) for rank in parts)
        return Operator(call, _taken(sources, parts.values(), detached=True))

    def completing(self, record: TensorRecord, call: Call) -> Call | None:
        """The call that puts the ranks' parts of an input together, where what comes of it is whole."""
        by = partial_by(record)
        if not by or any(partial_by(one) for one in call.with_role(Role.OUTPUT)):
            return None
        return self._call(record, COMPLETION, {BY: by, NAME: call.site.op})

    def gathered(self, record: TensorRecord) -> Gathered | None:
        """The call that put a parameter together of the shards that ranks hold."""
        plain = rank_and_name(record.name)[1]
        parts = self.shards.of(plain)
        own = parts.get(self.rank)
        if own is None or own.shape == record.shape:
            return None
        axis = _axis_of(record, list(parts.values()))
        if axis is None or len(parts) < len(self.gradients.ranks):
            raise NotApplicable(
                f"{plain} is not made of the shards that all ranks hold, one after the other"
            )
        call = self._call(record, GATHERING, {AXIS: axis, NAME: plain})
        sources = (Source(Enters.NAMED, with_rank(plain, rank)) for rank in parts)
        return Gathered(Operator(call, _taken(sources, parts.values(), detached=False)), own)

    def number(self) -> int:
        """A number for a call that no recording holds."""
        self._made += 1
        return self.first + UNRECORDED + self._made

    def _call(self, record: TensorRecord, op: str, arguments: dict[str, object]) -> Call:
        return Call(
            self.number(), self.rank, record.step, CallKind.OPERATOR,
            replace(record.site, op=op), "", -1, record.sequence, (), arguments, False,
            (replace(record, role=Role.OUTPUT, index=0),),
        )  # fmt: skip

    def _named(self, record: TensorRecord, counts: Mapping[str, int]) -> str:
        """The parameter whose gradient a tensor is, by its numbers; "" where it is none's."""
        near = {}
        for name, count in counts.items():
            parts = self.gradients.of_all(name, count)
            if all(one.shape == record.shape for one in parts.values()):
                near[name] = self.gradients.factor(record, name, count)[1]
        best = min(near, key=lambda one: near[one], default="")
        return best if best and near[best] <= _ALIKE else ""


def _taken(
    sources: Iterable[Source], records: Iterable[TensorRecord], *, detached: bool
) -> dict[int, Taken]:
    """What each member gives."""
    both = zip(sources, records, strict=True)
    return {place * MEMBER: Taken(*one, detached=detached) for place, one in enumerate(both)}


# --- parameters that a wrapper gathers --------------------------------------------------------------------------------


class _Shards:
    """The parameters that the ranks' optimizers hold, as they are before their first update."""

    def __init__(self, ranks: Mapping[str, Sequence[Call]]) -> None:
        self._held: dict[str, dict[str, TensorRecord]] = {}
        for rank, calls in ranks.items():
            for call in calls:
                for one in call.with_role(Role.PARAM) if call.kind is CallKind.OPTIMIZER else ():
                    of_ranks = self._held.setdefault(rank_and_name(one.name)[1], {})
                    of_ranks.setdefault(rank, one)

    def of(self, name: str) -> Mapping[str, TensorRecord]:
        """What each rank holds of a parameter."""
        return self._held.get(name, {})


def _axis_of(record: TensorRecord, shards: Sequence[TensorRecord]) -> int | None:
    """Along which axis shards make a parameter, one after the other; None where they do not."""
    for axis, extent in enumerate(record.shape):
        rests = {(*one.shape[:axis], *one.shape[axis + 1 :]) for one in shards}
        if rests == {(*record.shape[:axis], *record.shape[axis + 1 :])} and extent == sum(
            one.shape[axis] for one in shards
        ):
            return axis
    return None


# --- the order of all ranks' events -----------------------------------------------------------------------------------


class _Meeting:
    """Puts the events of several ranks in one order: each rank waits for the others where they exchange something."""

    def __init__(self, programs: Mapping[str, StepProgram]) -> None:
        self._waiting = {rank: deque(one.events) for rank, one in programs.items()}
        self._numbers = {number_of(rank): rank for rank in programs}
        self._events: list[Event] = []

    def merged(self) -> list[Event]:
        """All events. Raises NotApplicable if the ranks do not meet."""
        while any(self._waiting.values()):
            for events in self._waiting.values():
                while events and not self._meets(events[0]):
                    self._events.append(events.popleft())
            if any(self._waiting.values()) and not (self._exchange() or self._go_back()):
                raise NotApplicable("the ranks do not call the same exchanges in the same order")
        return self._events

    @staticmethod
    def _meets(event: Event) -> bool:
        if isinstance(event, Operator):
            return bool(exchange_of(event.call))
        return isinstance(event, Backward)

    def _go_back(self) -> bool:
        """Let all ranks begin a backward pass that stand before one, once none waits for another thing."""
        heads = {rank: one[0] for rank, one in self._waiting.items() if one}
        if not all(isinstance(one, Backward) for one in heads.values()):
            return False
        begun = [self._waiting[rank].popleft() for rank in heads]
        anew = frozenset(name for one in begun for name in getattr(one, "anew", ()))
        for place, one in enumerate(begun):
            assert isinstance(one, Backward)
            self._events.append(replace(one, anew=anew if not place else frozenset()))
        return True

    def _exchange(self) -> bool:
        """Make the first exchange that all its members stand before."""
        for rank, events in self._waiting.items():
            head = events[0] if events else None
            if not isinstance(head, Operator):
                continue
            members = self._members(head)
            if members and members[0] == rank:
                heads = [self._waiting[one][0] for one in members]
                for one, event in zip(members, heads, strict=True):
                    self._waiting[one].popleft()
                    self._events.append(_with_inputs_of_all(event, heads))
                return True
        return False

    def _members(self, head: Operator) -> list[str]:
        """The ranks that take part in an exchange; none where some do not stand before it yet."""
        key = _meeting_of(head)
        if head.call.site.op in OUT_OF_SIGHT:
            members = list(self._waiting)
        else:
            known = [self._numbers.get(one) for one in members_of(head.call)]
            members = [one for one in known if one is not None]
            if len(members) < len(known):
                raise NotApplicable("not all ranks were recorded, and they exchange tensors")
        heads = [self._waiting[one][0] if self._waiting[one] else None for one in members]
        meet = all(isinstance(one, Operator) and _meeting_of(one) == key for one in heads)
        return members if meet else []


def _meeting_of(operator: Operator) -> tuple[object, ...]:
    """What tells one exchange from another."""
    call = operator.call
    return exchange_of(call), members_of(call), call.arguments.get(NAME)


def _with_inputs_of_all(event: Event, heads: Sequence[Event]) -> Operator:
    """One member's part of an exchange, with what all members give."""
    assert isinstance(event, Operator)
    if event.call.site.op in (REDUCTION, GATHERING):
        return event
    if (record := takes_gradient(event.call)) is not None:
        raise NotApplicable(f"a gradient goes back through {event.call.site.op} of {record.site}")
    taken = {
        place * MEMBER + index: one
        for place, head in enumerate(heads)
        if isinstance(head, Operator)
        for index, one in given_to(head).items()
    }
    return Operator(event.call, taken)
