"""Which rank of one recording is compared with which of the other, and whether the two can be compared at all.

A process with a rank of its own has a directory of that name. Several that trained without one, or with the same, were
named in the order in which they came first, which is left to chance: they are told apart by how they were started,
else by what they trained.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from lockstep.align.names import NameMap
from lockstep.core.manifest import OTHER_TRAININGS
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.process import ANY_WORKER, STARTED_BY_MULTIPROCESSING, how_started, rank_number
from lockstep.core.remarks import On, Remark
from lockstep.core.site import CallKind
from lockstep.store.reader import RankRecording, Recording

_AS_STARTED = "by how they were started"


@dataclass(frozen=True)
class RankPairs:
    """The pairs of ranks to compare.

    Attributes
    ----------
    both
        The rank of the reference and the one of the candidate, which goes by the reference's name here.
    alone
        Sentences about ranks that have no partner.
    notes
        Which ranks of different names belong together, and why.
    """

    both: Mapping[str, tuple[RankRecording, RankRecording]]
    alone: tuple[NotCompared, ...]
    notes: tuple[Remark, ...]


@dataclass(frozen=True, eq=False)
class _Process:
    """A rank, and what its directory is called."""

    name: str
    rank: RankRecording

    @property
    def argv(self) -> list[str]:
        return self.rank.manifest.argv

    @property
    def lineage(self) -> str:
        return self.rank.manifest.lineage or "/"

    @property
    def one_of_several(self) -> str:
        """Which of the trainings of its threads was recorded, "" where there was but one."""
        gaps = self.rank.manifest.not_seen
        return next((gap.reason for gap in gaps if gap.what == OTHER_TRAININGS), "")

    def __str__(self) -> str:
        started = how_started(self.rank.manifest)
        return f"{self.name} ({started})" if started else self.name


@dataclass
class _Group:
    """The processes of one rank number: those without a partner yet, and the pairs that were found, each with how."""

    left: list[_Process]
    right: list[_Process]
    pairs: list[tuple[_Process, _Process, str]] = field(default_factory=list)

    def pair(self, left: _Process, right: _Process, how: str = _AS_STARTED) -> None:
        self.left.remove(left)
        self.right.remove(right)
        self.pairs.append((left, right, how))


def pair_ranks(reference: Recording, candidate: Recording) -> RankPairs:
    """Find the partner of each rank.

    Where nothing tells which of several processes belongs to which, they have none, and that is said.
    """
    left, right = _by_number(reference), _by_number(candidate)
    groups = [
        _paired(_Group(left.get(number, []), right.get(number, [])))
        for number in dict.fromkeys([*left, *right])
    ]
    found = [pair for group in groups for pair in group.pairs]
    partners = {left.name: right for left, right, _ in found}
    return RankPairs(
        {
            name: (rank, _under_name(partners[name].rank, name))
            for name, rank in reference.ranks.items()
            if name in partners
        },
        tuple(sentence for group in groups for sentence in _alone(group)),
        tuple(_notes(found)),
    )


def _under_name(rank: RankRecording, name: str) -> RankRecording:
    if rank.name == name:
        return rank
    other = copy.copy(rank)
    other.name = name
    return other


def _by_number(recording: Recording) -> dict[str, list[_Process]]:
    found: dict[str, list[_Process]] = defaultdict(list)
    for name, rank in recording.ranks.items():
        found[rank_number(name)].append(_Process(name, rank))
    return found


def _paired(group: _Group) -> _Group:
    if len(group.left) == len(group.right) == 1 and _may_be_same(group.left[0], group.right[0]):
        group.pair(group.left[0], group.right[0])
        return group
    if len(group.left) == len(group.right) == 1:
        return group
    if group.left and group.right:
        _by_start(group)
        _by_content(group)
        _by_order(group)
    if any(not one.rank.manifest.lineage for one in (*group.left, *group.right)):
        _by_name(group)
    return group


def _may_be_same(left: _Process, right: _Process) -> bool:
    """Whether two processes hold the same training; of several threads of one, chance picks which is recorded."""
    if not left.one_of_several or not right.one_of_several:
        return True
    if left.one_of_several == right.one_of_several:
        return True
    return _digests(left, (CallKind.INIT,)) == _digests(right, (CallKind.INIT,))


# --- by how they were started ----------------------------------------------------------------------------------------


def _by_start(group: _Group) -> None:
    """Pair those of the same place among their parents' children, and of these, those of like command lines."""
    lines = _Lines(group.left, group.right)
    for lineage in sorted({rank.lineage for rank in group.left}):
        if ANY_WORKER in lineage:
            continue
        left = [rank for rank in group.left if rank.lineage == lineage]
        right = [rank for rank in group.right if rank.lineage == lineage]
        if len(left) == len(right) == 1 and lines.may_be_same(left[0], right[0]):
            group.pair(left[0], right[0])
            continue
        for one, other in lines.best(left, right):
            group.pair(one, other)


class _Lines:
    """Command lines, by what tells them from those of the others in the same recording.

    A recording on another device was started by other words, which all its processes have.
    """

    def __init__(self, *sides: Sequence[_Process]) -> None:
        self._words: dict[int, Counter[tuple[str, str]]] = {}
        self._own: dict[int, Counter[tuple[str, str]]] = {}
        for side in sides:
            words = {id(rank): _words(rank.argv) for rank in side}
            shared = Counter(next(iter(words.values()), Counter()))
            for one in words.values():
                shared &= one
            self._words |= words
            self._own |= {key: one - shared for key, one in words.items()}

    def alike(self, left: _Process, right: _Process) -> int:
        """How many words that only one of a side has, the other has too."""
        there, back = (
            (self._own[id(one)] & self._words[id(other)]).total()
            for one, other in ((left, right), (right, left))
        )
        return there + back

    def may_be_same(self, left: _Process, right: _Process) -> bool:
        """Whether nothing on the lines speaks against it."""
        own = self._own[id(left)] and self._own[id(right)]
        return not own or self.alike(left, right) > 0

    def best(
        self, left: Sequence[_Process], right: Sequence[_Process]
    ) -> list[tuple[_Process, _Process]]:
        """Those that are each other's only most like one."""
        found = []
        for one in left:
            other = self._only_best(one, right)
            if other is not None and self._only_best(other, left) is one:
                found.append((one, other))
        return found

    def _only_best(self, rank: _Process, others: Sequence[_Process]) -> _Process | None:
        alike = [self.alike(rank, other) for other in others]
        most = max(alike, default=0)
        return others[alike.index(most)] if most and alike.count(most) == 1 else None


def _words(argv: Sequence[str]) -> Counter[tuple[str, str]]:
    """Words of a command line, each with the one before it, which mostly says what it is."""
    words = [word for word in argv[1:] if not word.startswith(STARTED_BY_MULTIPROCESSING)]
    return Counter(zip(["", *words], words, strict=False))


# --- by what they trained --------------------------------------------------------------------------------------------

_Key = Callable[[_Process], tuple[str, ...]]


def _by_content(group: _Group) -> None:
    """Pair those that hold the same numbers: the whole first step, or what only one of each side began with."""
    if not group.left or not group.right:
        return
    how = "by what they trained"
    _by_equal(group, cache(_first_step), how, of_several=True)
    for kinds in ((CallKind.INIT, CallKind.DATA), (CallKind.INIT,), (CallKind.DATA,)):
        _by_equal(group, cache(lambda rank, kinds=kinds: _digests(rank, kinds)), how)


def _by_equal(group: _Group, key: _Key, how: str, *, of_several: bool = False) -> None:
    """Pair those of equal key, where one of each side has it, or where it does not matter which is taken."""
    for value in dict.fromkeys(key(rank) for rank in group.left):
        left = [rank for rank in group.left if key(rank) == value]
        right = [rank for rank in group.right if key(rank) == value]
        if value and (of_several or len(left) == len(right) == 1):
            for one, other in zip(left, right, strict=False):
                group.pair(one, other, how)


def _first_step(rank: _Process) -> tuple[str, ...]:
    return _digests(rank, tuple(CallKind))


def _digests(process: _Process, kinds: Iterable[CallKind]) -> tuple[str, ...]:
    """Digests of what calls of some kinds hold in the first step, in any order."""
    rank = process.rank
    if not rank.steps:
        return ()
    calls = [call for kind in kinds for call in rank.calls(rank.steps[0], kind=kind)]
    rank.close_tensors()
    digests = (record.digest for call in calls for record in call.records)
    return tuple(sorted(digest for digest in digests if digest))


# --- by what is left -------------------------------------------------------------------------------------------------


def _by_order(group: _Group) -> None:
    """Pair the last ones of both sides; of several, where each has a number, in the order of these."""
    if len(group.left) == len(group.right) == 1:
        group.pair(group.left[0], group.right[0], "as nothing else was left")
    for side in (group.left, group.right):
        numbers = {rank.lineage for rank in side}
        if len(numbers) < len(side) or any(ANY_WORKER in number for number in numbers):
            return
    if len(group.left) == len(group.right):
        for one, other in zip(*map(_in_order, (group.left, group.right)), strict=True):
            group.pair(one, other, "in the order in which they were started")


def _in_order(ranks: Iterable[_Process]) -> list[_Process]:
    return sorted(ranks, key=lambda rank: [int(one) for one in rank.lineage.split("/") if one])


def _by_name(group: _Group) -> None:
    """As before recordings told how a process was started."""
    names = {rank.name: rank for rank in group.right}
    for one in list(group.left):
        if one.name in names:
            group.pair(one, names[one.name], "by their names")


# --- in words --------------------------------------------------------------------------------------------------------


def _alone(group: _Group) -> list[NotCompared]:
    if group.left and group.right and group.left[0].one_of_several:
        return [
            NotCompared(
                WhyNot.SEVERAL_TRAININGS,
                side=side,
                rank=process.name,
                reason=process.one_of_several,
            )
            for side, (process, *_) in (("reference", group.left), ("candidate", group.right))
        ]
    if group.left and group.right:
        left, right = (", ".join(map(str, side)) for side in (group.left, group.right))
        return [NotCompared(WhyNot.ALIKE_PROCESSES, reference=left, candidate=right)]
    sides = (("reference", group.left), ("candidate", group.right))
    return [
        NotCompared(WhyNot.RANK_ALONE, rank=rank.name, side=side)
        for side, ranks in sides
        for rank in ranks
    ]


def _notes(pairs: Iterable[tuple[_Process, _Process, str]]) -> list[Remark]:
    """Which processes were paired otherwise than their names say, or by something weaker than how they were started."""
    by_reason: dict[str, list[str]] = defaultdict(list)
    for left, right, how in pairs:
        if how != _AS_STARTED or left.name != right.name:
            by_reason[how].append(f"{left} with the candidate's {right.name}")
    return [
        Remark(On.RANKS_PAIRED, names=tuple(told), reason=how) for how, told in by_reason.items()
    ]


__all__ = ["RankPairs", "pair_ranks"]


_MODEL_OVERLAP = 0.5
"""Share of module and parameter names that both runs must have; renamed parts leave more, other
models less."""


def shared_steps(
    reference: RankRecording, candidate: RankRecording, steps: Collection[int] | None
) -> list[int]:
    """The steps that two ranks both hold, of those that are asked for; None asks for all."""
    both = sorted(set(reference.steps) & set(candidate.steps))
    return [step for step in both if steps is None or step in steps]


def why_incomparable(
    reference: Recording,
    candidate: Recording,
    ranks: RankPairs,
    steps: Collection[int] | None,
    names: Mapping[str, NameMap],
) -> NotCompared | None:
    """Why nothing can be compared; None where something can."""
    for recording in (reference, candidate):
        if not recording.ranks:
            which = (str(recording.path),)
            return NotCompared(WhyNot.NOTHING_RECORDED, names=which, reason=recording.missing[0])
    if not ranks.both:
        if set(reference.ranks) & set(candidate.ranks):
            return NotCompared(WhyNot.NO_RANK, reason="; ".join(ranks.alone))
        both = _listed(reference.ranks), _listed(candidate.ranks)
        return NotCompared(WhyNot.NO_RANK, reference=both[0], candidate=both[1])
    first, (left, right) = next(iter(ranks.both.items()))
    if not any(shared_steps(*both, steps) for both in ranks.both.values()):
        shared = {step for both in ranks.both.values() for step in shared_steps(*both, None)}
        if steps is not None and shared:
            asked, has_both = (
                tuple(map(str, sorted(steps))),
                f"step{'s' * (len(shared) > 1)} {_listed(sorted(shared))}",
            )
            return NotCompared(WhyNot.STEP_NOT_RECORDED, names=asked, reason=has_both)
        has = _listed(left.steps), _listed(right.steps)
        return NotCompared(WhyNot.NO_STEP, reference=has[0], candidate=has[1])
    return _why_other_model(left, right, names[first])


def _why_other_model(
    reference: RankRecording, candidate: RankRecording, names: NameMap
) -> NotCompared | None:
    left, right = _model_names(reference), {names.module(name) for name in _model_names(candidate)}
    shared = len(left & right)
    if not left or not right or shared >= _MODEL_OVERLAP * min(len(left), len(right)):
        return None
    counts = str(len(left)), str(len(right))
    return NotCompared(WhyNot.OTHER_MODEL, reference=counts[0], candidate=counts[1], count=shared)


def _model_names(rank: RankRecording) -> set[str]:
    table = rank.module_table
    names = (
        set(table["module"].to_list()) if table.height else set(rank.call_table["module"].to_list())
    )
    return {name for name in names if name}


def _listed(items: Collection[object]) -> str:
    return ", ".join(str(item) for item in items) or "none"
