"""The parts that all ways of putting ranks together share: pairing calls, notes, the recording they make."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.core.manifest import APART, ARGUMENTS, LEFT_OUT, PUT_TOGETHER, NotSeen
from lockstep.core.operators import parameters_by_call
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind
from lockstep.core.text import listed
from lockstep.hookspecs import Reader
from lockstep.store.other_tools import made_by
from lockstep.store.reader import RankRecording, Recording
from lockstep.unify.states_of_ranks import DimsOf, give_ends

Key = tuple[object, ...]
Numbered = tuple[str, int]
"""A call by its rank, and its id there."""
_SEVERAL_A_SITE = frozenset({CallKind.GRADIENT, CallKind.OPTIMIZER})
Calls = Iterator[ReadCall | NotSeen]


@dataclass
class Told:
    """The notes about ranks that were put together.

    apart: What could not be, by the reason.
    beside: Of that, calls that nothing trained depends on.
    copies, rounded: Tensors whose copies differ by more than rounding, and by rounding.
    lost: Steps that ranks have not, in words.
    """

    apart: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    beside: list[str] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)
    rounded: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def _steps_of(self, ranks: Mapping[int, RankRecording]) -> list[int]:
        """Those; of others it is said which rank lacks them."""
        every = sorted({step for rank in ranks.values() for step in rank.steps})
        complete = {number: set(rank.complete_steps) for number, rank in ranks.items()}
        for number, rank in ranks.items():
            lacks = [step for step in every if step not in complete[number]]
            if lacks:
                by = rank.manifest.ended_by or (
                    "" if rank.is_closed else "something that killed it"
                )
                ended = f", as rank{number} was ended by {by}" if by else ""
                what = f"step{'s' * (len(lacks) > 1)} {listed([*map(str, lacks)])}"
                why = f"rank{number} of {len(ranks)} did not record {what} to the end{ended}"
                self.lost.append(f"{why}; record all ranks again to compare it")
        return [step for step in every if all(step in done for done in complete.values())]

    def steps_of(self, ranks: Mapping[int, RankRecording], path: Path) -> list[int]:
        """Return the steps that every rank recorded to its end, of a recording that lies there.

        Raises UsageError if there is none.
        """
        steps = self._steps_of(ranks)
        if not steps:
            lost = "; ".join(self.lost) or "none holds a step"
            raise UsageError(f"{path}: no step of all {len(ranks)} ranks can be compared: {lost}")
        return steps

    def gaps(self) -> Iterator[NotSeen]:
        """All of that, a sentence each."""
        yield from (NotSeen(APART, text) for text in self.lost)
        for why, where in self.apart.items():
            what = f"{len(where)} tensors or calls were not put together, first {where[0]}: {why}"
            yield NotSeen(APART, what)
        if self.beside:
            what = f"nothing trained depends on {len(self.beside)} of them, first {self.beside[0]}"
            yield NotSeen("calls and tensors that ranks have in other ways", what)
        if self.copies:
            what = f"those of {len(self.copies)} tensors differ by more than rounding, first {self.copies[0]}"
            yield NotSeen("equal copies", what)
        if self.rounded:
            what = (
                f"those of {len(self.rounded)} tensors differ by rounding, first {self.rounded[0]}"
            )
            yield NotSeen("bitwise equal copies", f"{what}; the first rank's are compared")


def made_of(
    many: Recording,
    ranks: Mapping[int, RankRecording],
    name: str,
    calls: Callable[[], Calls],
    dims_of: DimsOf,
    summed_losses: Callable[[], bool],
) -> Recording:
    """Return the recording of one rank that some ranks make, gone with this process.

    many, ranks: The recording of all, and those of them that are put together, by number.
    name: What they are put together by, for messages.
    calls: Gives the calls, and what is to be said.
    dims_of, summed_losses: As `give_ends` takes them; asked once all calls were given.

    Raises RecordingError if a rank cannot be read.
    """
    reader = Reader(name, lambda _: True, lambda _: _with_gaps(many, calls()))
    parts = f"its {len(ranks)} ranks" if len(ranks) > 1 else name
    gap = NotSeen(PUT_TOGETHER, f"{parts} were put together, and are compared as one")
    made = Recording(made_by(reader, many.path, gap))
    made.path, made.put_together_of = many.path, many
    made.manifest.options.save = many.manifest.options.save  # so much was kept of each tensor
    (rank,) = made.ranks.values()
    give_ends(rank, ranks, dims_of, summed_losses=summed_losses())
    return made


def _with_gaps(many: Recording, calls: Calls) -> Calls:
    yield from calls
    yield NotSeen(ARGUMENTS, "they are those of the first rank, so no call is made again")
    for gap in dict.fromkeys((gap.what, gap.reason) for gap in many.manifest.not_seen):
        if gap[0] != LEFT_OUT:
            yield NotSeen(*gap)


def calls_by_key(calls: Sequence[Call]) -> dict[Key, Call]:
    """Return calls by their key on every rank, without those that backward computed again.

    What a script calls on the gradient of one parameter goes by that, and by its order among such calls.
    """
    counts: Counter[Key] = Counter()
    found: dict[Key, Call] = {}
    gradients = parameters_by_call(calls)
    for call in calls:
        if call.recomputed:
            continue
        name = gradients.get(call.id, "")
        key = (call.kind, replace(call.site, call=0) if name else call.site, name or name_of(call))
        found[(*key, counts[key])] = call
        counts[key] += 1
    return found


def name_of(call: Call) -> str:
    """Return the name that identifies a call at its site: the parameter, for gradients and optimizers."""
    return call.records[0].name if call.kind in _SEVERAL_A_SITE and call.records else ""


def record_key(record: TensorRecord) -> Key:
    """Return the key of a record within its call, the same on every rank."""
    return record.site.phase, record.role, record.index, record.name, record.occurrence


def read_call(
    call: Call,
    tensors: Sequence[ReadTensor],
    numbers: dict[Numbered, int],
    arguments: Mapping[str, object] | None = None,
) -> ReadCall:
    """Return a call of the first rank with the tensors of all; `numbers` are those of earlier calls by their id."""
    key, number = (call.rank, call.id), len(numbers)
    if key in numbers:  # a batch that several parts have counts each time
        numbers["", -1 - number] = numbers[key]
    numbers[key] = number
    return ReadCall(
        call.step, call.site.module, call.site.op, tensors, kind=call.kind, phase=call.site.phase,
        arguments=call.arguments if arguments is None else arguments, module_class=call.module_class,
        parent=numbers.get((call.rank, call.parent), -1), stack=call.stack, moment=call.sequence,
    )  # fmt: skip


def place_of(record: TensorRecord, call: Call) -> str:
    """A tensor in words."""
    return f"{record.role.value} {record.name} of {call.site}"


__all__ = [
    "Calls",
    "Key",
    "Numbered",
    "Told",
    "calls_by_key",
    "made_of",
    "name_of",
    "place_of",
    "read_call",
    "record_key",
]
