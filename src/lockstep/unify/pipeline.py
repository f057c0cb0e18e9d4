"""Ranks that each hold a stage of a model, as pipeline parallelism cuts it, beside one rank that holds all of it.

A stage finds its place by its module paths; where these are its own, as of blocks that are counted from 0, by the bits
of its parameters when the training begins. Its micro-batches become a batch as `gradient_accumulation` says. If several
stages call a module, as the outermost one, the first stage has the inputs and the last one the outputs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from lockstep.core.errors import UsageError
from lockstep.core.manifest import APART, NotSeen
from lockstep.core.read_calls import ReadCall
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import RankRecording, Recording
from lockstep.unify.gradient_accumulation import (
    Made,
    MicroForms,
    PartJoiner,
    give_losses,
    in_time,
)
from lockstep.unify.micro_batches import Dealt, Parted, groups_of
from lockstep.unify.one_recording import Calls, Key, Told, made_of
from lockstep.unify.rank_layouts import Order
from lockstep.unify.sorted_rows import sorted_in
from lockstep.unify.states_of_ranks import joined_states

_OF_PARAMETERS = frozenset(
    {Role.PARAM, Role.PARAM_AFTER, Role.PARAM_GRAD, Role.STATE, Role.STATE_AFTER}
)
_ENTERING = frozenset({Role.INPUT, Role.GRAD_INPUT})


@dataclass(frozen=True)
class Stage:
    """A part of the model.

    ranks: Those that hold it, which train on other parts of the batch.
    paths: Module paths of the one rank by those of the stage, where they differ.
    """

    ranks: Sequence[RankRecording]
    paths: Mapping[str, str]

    def calls(self, rank: RankRecording, step: int) -> list[Call]:
        """The calls of a step, under the names of the one rank."""
        return [self._named(call) for call in rank.calls(step)]

    def name(self, path: str) -> str:
        """The one rank's path, or name of a parameter, of one of the stage."""
        own = path
        while own:
            if own in self.paths:
                return self.paths[own] + path[len(own) :]
            own = own.rpartition(".")[0]
        return path

    def _named(self, call: Call) -> Call:
        if not self.paths:
            return call
        site = replace(call.site, module=self.name(call.site.module))
        return replace(call, site=site, records=tuple(map(self._record, call.records)))

    def _record(self, record: TensorRecord) -> TensorRecord:
        name = self.name(record.name) if record.role in _OF_PARAMETERS else record.name
        site = replace(record.site, module=self.name(record.site.module))
        return replace(record, site=site, name=name, edge=None)  # each rank counts edges of its own


def stages_of(many: Recording, one: RankRecording) -> list[Stage]:
    """Return the stages of a training in their order; none where its ranks do not hold different parameters.

    many: Of all ranks, `rank0` to the last.
    one: Of the same training on one rank.

    Raises RecordingError if one of them cannot be read. Raises UsageError if two stages hold one parameter of the one
    rank.
    """
    ranks = [many.ranks[f"rank{number}"] for number in range(len(many.ranks))]
    whole, own = _parameters(one), [*map(_parameters, ranks)]
    by_bits = [_paths(held, whole) for held in own]
    for paths in (by_bits, [dict[str, str]()] * len(ranks)):
        named = [
            frozenset(map(Stage([], path).name, held))
            for path, held in zip(paths, own, strict=True)
        ]
        sizes = Counter(named)
        if (
            len(sizes) > 1
            and len(set(sizes.values())) == 1
            and frozenset().union(*named) == set(whole)
        ):
            return _in_order(many, ranks, paths, named, whole)
    return []


def _in_order(
    many: Recording,
    ranks: Sequence[RankRecording],
    paths: Sequence[Mapping[str, str]],
    named: Sequence[frozenset[str]],
    whole: Sequence[str] | Mapping[str, object],
) -> list[Stage]:
    """The stages by the first of their parameters, as one rank has them; of a training whose ranks hold these names.

    Raises UsageError if two stages hold one parameter.
    """
    held = [name for names in set(named) for name in names]
    if twice := [name for name, times in Counter(held).items() if times > 1]:
        raise UsageError(
            f"{many.path}: stages of the model share {min(twice)}, and nothing says how their gradients belong"
            " together; give each stage a parameter of its own, in both trainings"
        )
    order = {name: place for place, name in enumerate(whole)}
    stages = dict.fromkeys(sorted(named, key=lambda names: min(map(order.__getitem__, names))))
    return [
        Stage(
            [rank for rank, own in zip(ranks, named, strict=True) if own == names],
            paths[named.index(names)],
        )
        for names in stages
    ]


def _parameters(rank: RankRecording) -> dict[str, tuple[str | None, tuple[int, ...]]]:
    """The bits and the shape of each parameter when recording begins, in the model's order."""
    records = (
        record
        for call in rank.calls(rank.steps[0], kind=CallKind.INIT)
        for record in call.with_role(Role.PARAM)
    )
    return {one.name: (one.digest, one.shape) for one in records} if rank.steps else {}


def _paths(
    own: Mapping[str, tuple[str | None, tuple[int, ...]]],
    whole: Mapping[str, tuple[str | None, tuple[int, ...]]],
) -> dict[str, str]:
    """Module paths of the one rank by those of a stage, by parameters of equal bits.

    Parameters that many hold alike, as norms of ones, tell nothing; those beside them do.
    """
    if all(bits == whole.get(name) for name, bits in own.items()):
        return {}
    by_bits: dict[object, list[str]] = defaultdict(list)
    for name, bits in whole.items():
        by_bits[bits].append(name)
    found: dict[str, str] = {}
    for name, bits in own.items():
        (there, *others) = by_bits.get(bits, [""])
        if not there or others:
            continue
        left, right = name.split("."), there.split(".")
        while left and right and left[-1] == right[-1]:
            left.pop()
            right.pop()
        if left:
            found[".".join(left)] = ".".join(right)
    return {path: there for path, there in found.items() if path != there}


def as_whole_model(many: Recording, one: Recording, stages: Sequence[Stage]) -> Recording:
    """Return the recording of one rank that stages make together.

    many, one: As of `stages_of`.
    stages: What that returned.

    Raises RecordingError if one of them cannot be read. Raises UsageError if nothing says which micro-batches make a
    batch of the one rank.
    """
    (alone,) = one.ranks.values()
    first = stages[0]
    for step in set.intersection(*(set(rank.complete_steps) for rank in (*first.ranks, alone))):
        parted = [Parted.of(first.calls(rank, step)) for rank in first.ranks]
        Dealt.of(parted, Parted.of(alone.calls(step))).are_parts(many, one)
    joiner = _StagesJoiner(many, alone, stages)
    last = joiner.joiners[-1]
    made = made_of(
        many, dict(enumerate(stages[-1].ranks)), f"the {len(stages)} stages of the model", joiner.calls,
        last.of_state, lambda: last.forms.sums_losses,
    )  # fmt: skip
    (rank,) = made.ranks.values()
    give_losses(rank, last.forms)
    found = [
        (stage, *joined_states(dict(enumerate(stage.ranks)), own.of_state))
        for stage, own in zip(stages, joiner.joiners, strict=True)
    ]
    rank.states = tuple(
        replace(one, name=stage.name(one.name)) for stage, states, _ in found for one in states
    )
    gaps = [NotSeen(APART, text) for _, _, said in found[:-1] for text in said]
    rank.manifest = replace(rank.manifest, not_seen=[*rank.manifest.not_seen, *gaps])
    return made


Batch = tuple[Order, Mapping[int, int]]


class StageForms(MicroForms):
    """Forms of the tensors of a stage: losses are averaged over micro-batches, or gradients once all are accumulated.

    The last stage has the losses, and says so to the others.
    """

    _batches: Iterator[Batch] = iter(())

    def follow(self, last: StageForms, batches: Sequence[Batch]) -> None:
        """Take over the last stage's losses and the first stage's batches, one for each part of the one rank."""
        self._divided_by, self._batches = last._divided_by, iter(batches)

    def begin(
        self, step: int, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> None:
        """Look at the losses; an order that a stage sorts by its own batch would not fit the rows of the first."""
        super().begin(step, by_rank, whole)
        if (batch := next(self._batches, None)) is not None:
            self._order, self._rows = batch
            self._sorted = sorted_in(by_rank, whole, self._order)

    def batch(self, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]) -> Batch:
        """Return the order of the samples of one part, and how many rows each micro-batch has."""
        super().begin(0, by_rank, whole)
        return self._order, self._rows

    @property
    def _of_accumulated(self) -> int:
        return self._divided_by


class _StageJoiner(PartJoiner):
    """Puts the micro-batches of one stage together."""

    def __init__(self, many: Recording, stage: Stage, one: RankRecording) -> None:
        self.forms = StageForms(stage.ranks)
        super().__init__(many.path, stage.ranks, one, self.forms)
        self._stage = stage

    @property
    def count(self) -> int:
        """How many calls were made so far."""
        return len(self._numbers)

    def calls_of(self, rank: RankRecording, step: int) -> list[Call]:
        """Those, under the names of the one rank."""
        return self._stage.calls(rank, step)


class _StagesJoiner:
    """Puts stages together, step by step."""

    def __init__(self, many: Recording, one: RankRecording, stages: Sequence[Stage]) -> None:
        self._many, self._stages = many, stages
        self.joiners = [_StageJoiner(many, stage, one) for stage in stages]
        self._between = self._made = self._moments = 0
        self._unlike: list[str] = []

    def calls(self) -> Calls:
        """Return every call, and the calls that could not be put together."""
        told = Told()
        every = dict(enumerate(rank for stage in self._stages for rank in stage.ranks))
        for step in told.steps_of(every, self._many.path):
            yield from self._step(step)
        yield from told.gaps()
        for joiner in self.joiners:
            yield from joiner.said()
        if self._unlike:
            what = f"{len(self._unlike)} of them did not arrive as they were sent, first at {self._unlike[0]}"
            yield NotSeen("what stages hand on, bit by bit", what)
        if self._between:
            what = f"one rank makes none; {self._between} were left out"
            yield NotSeen("what stages hand to each other", what)

    def _step(self, step: int) -> Iterator[ReadCall]:
        whole = self.joiners[0].whole(step)
        parted = [joiner.parted(step, whole) for joiner in self.joiners]
        self._check_handed(step, parted)
        placing = _Placing(parted, whole)
        parted = [[placing.of(number, rank) for rank in own] for number, own in enumerate(parted)]
        self._between += placing.left_out
        groups = groups_of(parted[0], whole)
        parts = [part for rank in parted[0] for part in rank.parts]
        batches = [
            self.joiners[0].forms.batch([parts[number] for number in own], one)
            for own, one in zip(groups, whole.parts, strict=True)
            if own
        ]
        made: list[tuple[int, float, ReadCall, Key]] = []
        for number, joiner in reversed([*enumerate(self.joiners)]):
            joiner.forms.follow(self.joiners[-1].forms, batches)
            first = joiner.count
            calls = joiner.made(parted[number], whole, groups)
            made[:0] = [
                (number * _MANY + first + at, one.place, call, one.key)
                for at, (one, call) in enumerate(zip(calls, _beside(calls, number), strict=True))
            ]
        for call in in_time(_spanning(made), self._made, self._moments):
            self._made += 1
            self._moments += 1 + len(call.tensors)
            yield call

    def _check_handed(self, step: int, parted: Sequence[Sequence[Parted]]) -> None:
        """Note where a stage was not given what the one before it made."""
        for number, (left, right) in enumerate(pairwise(parted), start=1):
            for copy, ranks in enumerate(zip(left, right, strict=True)):
                for part, sides in enumerate(zip(*(rank.parts for rank in ranks), strict=False)):
                    made, given = (
                        _bits(side, role)
                        for side, role in zip(sides, (Role.OUTPUT, Role.INPUT), strict=True)
                    )
                    if made != given and None not in (made, given):
                        where = f"{self._stages[number].ranks[copy].name}, micro-batch {part} of step {step}"
                        self._unlike.append(where)


def _bits(part: Mapping[Key, Call], role: Role) -> str | None:
    """Those of the first tensor that a stage is given, or returns."""
    outermost = (one for one in part.values() if one.kind is CallKind.MODULE and one.parent == -1)
    records = (record for call in outermost for record in call.with_role(role))
    first = next((one for one in records if not one.argument), None)
    return None if first is None else first.digest


_MANY = 1 << 40
"""More than any training has calls."""
_BETWEEN = 1 << 20
"""More than a step has calls of one stage."""


def _beside(calls: Sequence[Made], stage: int) -> Iterator[ReadCall]:
    """The calls of a stage at the moments of the one rank's; those that it does not make after the one before."""
    order = sorted(range(len(calls)), key=lambda at: (calls[at].place, calls[at].call.moment))
    found: dict[int, ReadCall] = {}
    latest = 0
    for place, at in enumerate(order):
        one, partner = calls[at].call, calls[at].partner
        shift = 0 if partner else 1 + stage * _BETWEEN + place
        latest = partner.sequence if partner else latest
        moments = (
            {(each.role, each.name): each.sequence for each in partner.records} if partner else {}
        )
        found[at] = replace(
            one,
            parent=-1 if one.parent < 0 else stage * _MANY + one.parent,
            moment=latest * _BETWEEN * _BETWEEN + shift,
            tensors=[
                replace(
                    each,
                    moment=moments.get((each.role, each.name), latest) * _BETWEEN * _BETWEEN
                    + shift,
                )
                for each in one.tensors
            ],
        )
    return (found[at] for at in range(len(calls)))


def _spanning(
    made: Sequence[tuple[int, float, ReadCall, Key]],
) -> list[tuple[int, float, ReadCall]]:
    """Calls with those of a module that several stages call as one."""
    kept: dict[tuple[float, Key], int] = {}
    instead: dict[int, int] = {}
    found: dict[int, tuple[float, ReadCall]] = {}
    for name, place, call, key in made:
        first = kept.setdefault((place, key), name)
        if first != name:
            instead[name] = first
            earlier = found[first][1]
            found[first] = place, replace(earlier, tensors=[*earlier.tensors, *call.tensors])
        else:
            found[name] = place, call
    return [
        (name, place, replace(call, parent=instead.get(call.parent, call.parent)))
        for name, (place, call) in found.items()
    ]


class _Placing:
    """Gives the calls of stages the numbers that they have in one rank.

    left_out: How many there are that one rank has no place for: what stages hand to each other, and what each computes
        again.
    """

    def __init__(self, parted: Sequence[Sequence[Parted]], whole: Parted) -> None:
        self._last, self.left_out = len(parted) - 1, 0
        own = {**whole.once, **whole.parts[0]}
        self._batches = {
            call.records[0].name: call.site.call
            for call in own.values()
            if call.kind is CallKind.DATA and call.records
        }
        self._handed: set[str | None] = set()
        self._own = Counter(map(_called, own.values()))
        self._counts = [
            Counter(map(_called, {**ranks[0].once, **ranks[0].parts[0]}.values()))
            for ranks in parted
        ]

    def of(self, stage: int, parted: Parted) -> Parted:
        """The calls of a rank of some stage."""
        self._handed = {
            record.digest
            for part in parted.parts
            for call in part.values()
            if stage and call.kind is CallKind.MODULE and call.parent == -1
            for record in call.with_role(Role.INPUT)
        }
        once = [*self._placed(stage, parted.once)]
        return Parted(
            [{key: call for _, key, call in self._placed(stage, part)} for part in parted.parts],
            {key: call for _, key, call in once},
            {key: parted.at[own] for own, key, _ in once},
        )

    def _placed(self, stage: int, calls: Mapping[Key, Call]) -> Iterator[tuple[Key, Key, Call]]:
        for key, call in calls.items():
            placed = self._call(stage, call)
            if placed is None:
                self.left_out += 1
            else:
                yield key, (key[0], placed.site, *key[2:]), placed

    def _call(self, stage: int, call: Call) -> Call | None:
        """The call as one rank makes it; None where it does not."""
        if call.kind is CallKind.LOSS:
            return call if stage == self._last else None
        if call.kind is CallKind.DATA:
            if not call.records or call.records[0].digest in self._handed:
                return None
            number = self._batches.get(call.records[0].name)
            if number is None:
                return None if stage else call
            return replace(call, site=replace(call.site, call=number))
        if call.kind not in (CallKind.MODULE, CallKind.OPERATOR):
            return call
        name = _called(call)
        if call.kind is CallKind.MODULE and self._stands_in(name):
            return None
        counts = [one[name] for one in self._counts]
        if sum(map(bool, counts)) < 2:
            return call
        if all(count in (0, self._own[name]) for count in counts):
            return self._of_all(stage, call, counts)
        return replace(call, site=replace(call.site, call=call.site.call + sum(counts[:stage])))

    def _stands_in(self, name: tuple[object, ...]) -> bool:
        """Whether a module is called where the one rank calls another, which another stage does, as for a norm."""
        there = [one for one in self._own if one[:2] == name[:2]]
        return name not in there and any(one in counts for one in there for counts in self._counts)

    @staticmethod
    def _of_all(stage: int, call: Call, counts: Sequence[int]) -> Call | None:
        """What every stage calls as often as one rank: the first has a module's inputs, and the last its outputs."""
        stages = [number for number, count in enumerate(counts) if count]
        if call.kind is CallKind.OPERATOR:
            return call if stage == stages[0] else None
        kept = tuple(
            record
            for record in call.records
            if stage == stages[0 if record.role in _ENTERING else -1]
        )
        return replace(call, records=kept)


def _called(call: Call) -> tuple[object, ...]:
    return call.kind, call.site.module, call.site.op, call.site.phase


__all__ = ["as_whole_model", "stages_of"]
