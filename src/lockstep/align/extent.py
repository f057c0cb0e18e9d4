"""Reduce each step to the calls that both recordings could hold.

A recording may end anywhere: the process was killed, the disk or `--max-bytes` full. And it may have been asked to look
at less: `--level`, `--only`, `--skip`. What is missing for such a reason is no difference, so it is taken out of both
sides before they are aligned, and said once in words: a comparison that left something out agrees about the rest only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from lockstep.align.alignment import align_calls
from lockstep.align.names import NameMap
from lockstep.align.step import AlignedStep
from lockstep.core.manifest import MODULES, NESTING, ORDER, Options
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.records import Call
from lockstep.core.remarks import On, Remark
from lockstep.core.selection import SiteFilter
from lockstep.core.site import CallKind, Phase
from lockstep.core.text import runs_of
from lockstep.store.reader import RankRecording

SIDES = ("reference", "candidate")

_ALWAYS_RECORDED = frozenset({CallKind.DATA, CallKind.LOSS})
_BY_THE_ENGINE = frozenset({Phase.BACKWARD, Phase.OPTIMIZER})
"""Phases whose order is not that of the code: two sound runs may come to two gradients in either order."""


@dataclass(frozen=True)
class View:
    """The options that decide which part of a training each recording holds.

    reference, candidate: What each was asked for.
    """

    reference: Options
    candidate: Options

    @property
    def is_shared(self) -> bool:
        """Whether both were asked to look at the same."""
        return _looks(self.reference) == _looks(self.candidate)

    def common(
        self, reference: Sequence[Call], candidate: Sequence[Call], names: NameMap
    ) -> tuple[list[Call], list[Call]]:
        """The calls of a step that both looked at."""
        filters = [
            SiteFilter(tuple(options.only), tuple(options.skip))
            for options in (self.reference, self.candidate)
        ]
        operators = self.reference.level == self.candidate.level

        def is_common(call: Call, path: str) -> bool:
            if call.kind is CallKind.OPERATOR and not operators:
                return False
            return call.kind in _ALWAYS_RECORDED or all(
                one.wants(path, call.site.op) for one in filters
            )

        left = [call for call in reference if is_common(call, call.site.module)]
        right = [call for call in candidate if is_common(call, names.module(call.site.module))]
        # What arrives is called after the call that it first went into, which need not be the same one.
        arriving = _arriving(left) & _arriving(right)
        return _without_data(left, arriving), _without_data(right, arriving)

    def notes(self) -> list[Remark]:
        """Return notes, if one side kept less of each tensor."""
        left, right = self.reference.save, self.candidate.save
        differs = left != right
        return [Remark(On.SAVED_LESS, reference=left, candidate=right)] if differs else []


def _looks(options: Options) -> tuple[object, ...]:
    return options.level, sorted(set(options.only)), sorted(set(options.skip))


def _as_typed(options: Options) -> str:
    only = [f"--only {pattern}" for pattern in options.only]
    skip = [f"--skip {pattern}" for pattern in options.skip]
    return " ".join((f"--level {options.level}", *only, *skip))


def _arriving(calls: Iterable[Call]) -> set[str]:
    data = (call for call in calls if call.kind is CallKind.DATA)
    return {record.name for call in data for record in call.records}


def _without_data(calls: Iterable[Call], but: Collection[str]) -> list[Call]:
    return [
        call
        for call in calls
        if call.kind is not CallKind.DATA or all(record.name in but for record in call.records)
    ]


def _is_flat(rank: RankRecording) -> bool:
    """Whether it tells every operator outside of modules, wherever it was called."""
    return any(gap.what == MODULES for gap in rank.manifest.not_seen)


def _flattened(calls: Iterable[Call]) -> list[Call]:
    """Calls as a tool tells them that knows no modules: those of modules left out, operators outside of them."""
    numbers: Counter[tuple[str, Phase]] = Counter()
    found = []
    for call in calls:
        if call.kind is CallKind.OPERATOR:
            place = call.site.op, call.site.phase
            site = replace(call.site, module="", call=numbers[place])
            numbers[place] += 1
            records = tuple(
                replace(one, site=replace(site, phase=one.site.phase)) for one in call.records
            )
            found.append(replace(call, site=site, parent=-1, module_class="", records=records))
        elif call.kind is not CallKind.MODULE:
            found.append(call)
    return found


class Extent:
    """Aligns the steps of one rank as far as both recordings go, and lists the calls that were left out.

    reference, candidate: The rank in both recordings.
    view: What both were asked to look at.
    names: What the candidate calls otherwise.
    """

    def __init__(
        self, reference: RankRecording, candidate: RankRecording, view: View, names: NameMap
    ) -> None:
        self._ranks = (reference, candidate)
        self._view, self._names = view, names
        self._cut: dict[int, NotCompared] = {}
        self.left_out = [0, 0]
        """Calls of the reference, and of the candidate, that the other side was not to look at."""

    @property
    def tells_order(self) -> bool:
        """Return whether at least one side knows the order of its calls."""
        return any(map(tells_order, self._ranks))

    def step(self, number: int) -> AlignedStep:
        """Return one step of both runs, without calls that only one of them could have recorded."""
        left, right = (list(rank.calls(number)) for rank in self._ranks)
        flat = [_is_flat(rank) for rank in self._ranks]
        if flat[0] != flat[1]:
            left, right = (left, _flattened(right)) if flat[0] else (_flattened(left), right)
        if not self._view.is_shared:
            every = len(left), len(right)
            left, right = self._view.common(left, right, self._names)
            self.left_out[0] += every[0] - len(left)
            self.left_out[1] += every[1] - len(right)
        if not all(map(tells_nesting, self._ranks)):
            left, right = map(list, nested_by_path(left, right, self._names))
        told = tells_order(self._ranks[0]), tells_order(self._ranks[1])
        left, right = map(list, in_one_order(left, right, self._names, told))
        step = AlignedStep(left, right, self._names)
        ends = [number not in rank.complete_steps for rank in self._ranks]
        if not any(ends):
            return step
        kept = _as_far_as_both(step, (left, right), ends)
        if all(ends) and kept == [left, right] and not any(map(why_it_was_cut, self._ranks)):
            return step  # both runs came to an end by themselves, at the same place
        self._cut[number] = self._what_was_cut(number, (left, right), kept, ends)
        return AlignedStep(kept[0], kept[1], self._names)

    def _what_was_cut(
        self,
        number: int,
        calls: Sequence[Sequence[Call]],
        kept: Sequence[Sequence[Call]],
        ends: Sequence[bool],
    ) -> NotCompared:
        """Which recording ends in a step, why, and how much of it was compared."""
        reasons = [why_it_ends(rank) for rank, end in zip(self._ranks, ends, strict=True) if end]
        return NotCompared(
            WhyNot.STEP_CUT, rank=self._ranks[0].name, step=number,
            side="" if all(ends) else SIDES[ends.index(True)],
            count=min(len(one) for one in kept), of=max(len(one) for one in calls),
            reason="; ".join(dict.fromkeys(reason for reason in reasons if reason)),
        )  # fmt: skip

    def not_compared(self, steps: Collection[int] | None) -> list[NotCompared]:
        """Return the parts of this rank that were not compared because one recording ends before the other.

        steps: The steps that were asked for; None for all.
        """
        whole, any_rows = (
            [
                {step for step in numbers if steps is None or step in steps}
                for numbers in (getattr(rank, which) for rank in self._ranks)
            ]
            for which in ("complete_steps", "steps")
        )
        found, name = [self._cut[number] for number in sorted(self._cut)], self._ranks[0].name
        said = {0, 1} if self._cut else set[int]()
        for side in (0, 1):
            alone = sorted((whole[side] - whole[1 - side]) - (any_rows[0] & any_rows[1]))
            if alone:
                said.add(1 - side)
                found.append(self._only_in(side, alone))
            found.extend(
                NotCompared(WhyNot.STEP_INCOMPLETE, rank=name, step=step, side=SIDES[side])
                for step in sorted(any_rows[side] - any_rows[1 - side] - whole[side])
            )
        for side, rank in enumerate(self._ranks):
            beyond = steps is None or max(steps, default=-1) > max(rank.complete_steps, default=-1)
            reason = why_it_was_cut(rank)
            if reason and beyond and side not in said:
                last = max(rank.complete_steps, default=None)
                cut = WhyNot.RECORDING_CUT
                one = NotCompared(cut, rank=rank.name, side=SIDES[side], step=last, reason=reason)
                found.append(one)
        return found

    def _only_in(self, side: int, numbers: Sequence[int]) -> NotCompared:
        """Steps of which the other side has nothing."""
        return NotCompared(
            WhyNot.STEPS_ALONE, rank=self._ranks[0].name, side=SIDES[side], count=len(numbers),
            step=numbers[0], names=tuple(runs_of(numbers)), reason=why_it_ends(self._ranks[1 - side]),
        )  # fmt: skip


def why_it_was_cut(rank: RankRecording) -> str:
    """Why a recording ends before the run that it is of, or ""."""
    if rank.manifest.stopped_because:
        return str(rank.manifest.stopped_because)
    return "" if rank.is_closed else "the run was cut off"


def why_it_ends(rank: RankRecording) -> str:
    """Why a recording ends before the steps that it was asked for, or ""."""
    if why := why_it_was_cut(rank):
        return why
    if set(rank.steps) - set(rank.complete_steps):
        return "the run ended in the middle of a step"
    return ""


def looked_at_more(view: View, extents: Iterable[Extent]) -> list[NotCompared]:
    """Return the parts that were not compared because one recording was asked to look at less."""
    counts = [sum(numbers) for numbers in zip(*(one.left_out for one in extents), strict=True)]
    if not any(counts):
        return []
    sides = (
        f"{count} calls of the {side}" for count, side in zip(counts, SIDES, strict=True) if count
    )
    typed = _as_typed(view.reference), _as_typed(view.candidate)
    less = WhyNot.LESS_RECORDED
    return [NotCompared(less, names=tuple(sides), reference=typed[0], candidate=typed[1])]


# --- as far as both go --------------------------------------------------------------------------


def _as_far_as_both(
    step: AlignedStep, calls: Sequence[Sequence[Call]], ends: Sequence[bool]
) -> list[list[Call]]:
    """The calls of both sides without what comes after the end of a side that ends in this step.

    A row is written when its call has ended, and so it is there exactly where that was before the end.
    """
    partners = _Partners(step)
    kept = []
    for side in (0, 1):
        if not ends[1 - side]:
            kept.append(list(calls[side]))
            continue
        horizon = partners.horizon(side, _last_phase(calls[1 - side]))
        kept.append(partners.until(side, calls[side], horizon))
    return kept


class _Partners:
    """Calls and records of one step that have a partner, by side, with the moments when they were written."""

    def __init__(self, step: AlignedStep) -> None:
        self._calls: tuple[set[int], set[int]] = (set(), set())
        self._records: tuple[set[int], set[int]] = (set(), set())
        self._moments: tuple[list[tuple[int, Phase]], ...] = ([], [])
        for item in step.aligned:
            for side, call in enumerate((item.reference, item.candidate)):
                self._calls[side].add(call.id)
                ended = _ended(call)
                self._moments[side].append((ended, call.site.phase))
                for pair in item.whole:
                    record = pair.candidate if side else pair.reference
                    assert record is not None
                    self._records[side].add(record.sequence)
                    self._moments[side].append((max(ended, record.sequence), record.site.phase))

    def horizon(self, side: int, last: Phase) -> int:
        """The moment on one side until which the other side, which ends in a phase, has everything.

        Within a phase whose order is the engine's, that is the moment when it began.
        """
        code_order = last not in _BY_THE_ENGINE
        moments = (
            moment for moment, phase in self._moments[side] if code_order or phase is not last
        )
        return max(moments, default=-1)

    def until(self, side: int, calls: Iterable[Call], horizon: int) -> list[Call]:
        """Return calls without those recorded after a moment, unless they have a partner."""
        kept = []
        for call in calls:
            ended = _ended(call)
            if call.id not in self._calls[side] and ended > horizon:
                continue
            records = tuple(
                record
                for record in call.records
                if record.sequence in self._records[side] or max(ended, record.sequence) <= horizon
            )
            whole = len(records) == len(call.records)
            kept.append(call if whole else replace(call, records=records))
        return kept


def _ended(call: Call) -> int:
    """When a call had ended: backward comes back to it later."""
    own = (record.sequence for record in call.records if record.site.phase is call.site.phase)
    return max((call.sequence, *own))


def _last_phase(calls: Iterable[Call]) -> Phase:
    """The phase in which a recording ends."""
    last, phase = -1, Phase.FORWARD
    for call in calls:
        ended = _ended(call)
        for record in call.records:
            if max(ended, record.sequence) > last:
                last, phase = max(ended, record.sequence), record.site.phase
    return phase


Calls = Sequence[Call]


def tells_order(rank: RankRecording) -> bool:
    """Return whether the order of a rank's calls is known."""
    return all(gap.what != ORDER for gap in rank.manifest.not_seen)


def tells_nesting(rank: RankRecording) -> bool:
    """Whether it is known which call was made inside of which."""
    return all(gap.what != NESTING for gap in rank.manifest.not_seen)


def nested_by_path(reference: Calls, candidate: Calls, names: NameMap) -> tuple[Calls, Calls]:
    """Calls of both sides, put into each other by the paths of the modules that both call."""
    sides = (reference, str), (candidate, names.module)
    both = _called(*sides[0]) & _called(*sides[1])
    left, right = ([*_nested(calls, both, path_of)] for calls, path_of in sides)
    return left, right


def _called(calls: Calls, path_of: Callable[[str], str]) -> set[str]:
    return {path_of(call.site.module) for call in calls if call.kind is CallKind.MODULE}


def _nested(
    calls: Calls, holders: Collection[str], path_of: Callable[[str], str]
) -> Iterable[Call]:
    """Each call inside of the last call of the innermost of these modules around it."""
    last: dict[str, int] = {}
    for call in calls:
        own = path_of(call.site.module)
        path = own.rpartition(".")[0] if call.kind is CallKind.MODULE else own
        while path and path not in last:
            path = path.rpartition(".")[0]
        yield replace(call, parent=last[path] if path else -1)
        if call.kind is CallKind.MODULE and own in holders:
            last[own] = call.id


def in_one_order(
    reference: Calls, candidate: Calls, names: NameMap, told: tuple[bool, bool]
) -> tuple[Calls, Calls]:
    """Calls of both sides, those of one that tells no order at the moments of their partners."""
    if told[0] == told[1]:
        return reference, candidate
    pairs = [
        (pair.reference, pair.candidate)
        for pair in align_calls(reference, candidate, names)
        if pair.reference is not None and pair.candidate is not None
    ]
    if told[0]:
        return reference, _moved({right.id: left for left, right in pairs}, candidate, reference)
    return _moved({left.id: right for left, right in pairs}, reference, candidate), candidate


def _moved(partners: Mapping[int, Call], calls: Calls, told: Calls) -> Calls:
    """Calls at the moments of their partners; those without one come last."""
    end = max(map(_last, told), default=0) + 1
    moved = []
    for call in calls:
        partner = partners.get(call.id)
        moved.append(_behind(call, end) if partner is None else _beside(call, partner))
    return sorted(moved, key=lambda call: call.sequence)


def _last(call: Call) -> int:
    return max((record.sequence for record in call.records), default=call.sequence)


def _behind(call: Call, end: int) -> Call:
    records = tuple(replace(one, sequence=end + one.sequence) for one in call.records)
    return replace(call, sequence=end + call.sequence, records=records)


def _beside(call: Call, partner: Call) -> Call:
    """A call when its partner was, each of its records when the partner's of its role was, or behind all."""
    seen = {(one.role, one.index): one.sequence for one in partner.records}
    last = _last(partner)
    records = tuple(
        replace(one, sequence=seen.get((one.role, one.index), last)) for one in call.records
    )
    return replace(call, sequence=partner.sequence, records=records)
