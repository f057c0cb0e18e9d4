"""The two runs of a rank after the recorded steps: their states and length, their processes and how these ended.

Of what is held beside the training some may be of no use at all, an unseeded helper: it never moves, is no copy of
anything trained, and no optimizer holds it.
"""

from __future__ import annotations

import math
import re
import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from lockstep.align.names import NameMap
from lockstep.core.errors import SIGNALLED
from lockstep.core.finding import RanksCompared
from lockstep.core.manifest import APART, END, EXIT_AFTER, HELD, ended_itself, was_asked_to_end
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.records import Content
from lockstep.core.site import CallKind, Role
from lockstep.core.sketch import distance
from lockstep.core.states import HeldSetting, LaterLoss, Moment, Standing, StateRecord
from lockstep.locate.setups.model_setup import settings_of
from lockstep.store.manifest_files import rank_order
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.schema import END_FILE, STATES_FILE

SIDES = ("reference", "candidate")
States = dict[tuple[Role, str], StateRecord]


@dataclass(frozen=True, slots=True)
class Side:
    """One training of one rank after its recorded steps.

    `why_none` tells why its end is not known, "" where it is; `ended_by` what ended it before its time; `first`,
    `last` and `end` are its states behind the first and last recorded step and at the end, by the reference's names.
    `held` are the tensors that variables of its script led to at the end, by path, and `settings` the numbers and
    modes, None where neither was kept; `modules` are the plain attributes of the modules that recorded steps called, as
    they were then, `scheduled` the values of the last of these steps of each option of optimizers ("lr") that they
    change, and `chosen` those of each option that they keep; `held_cut` tells what was not looked at there, and
    `end_cut` what of the end could not be put together of several ranks.
    """

    steps: int | None
    losses: tuple[LaterLoss, ...] = ()
    first: States = field(default_factory=dict)
    last: States = field(default_factory=dict)
    end: States = field(default_factory=dict)
    ended_by: str = ""
    why_none: str = ""
    held: Mapping[str, StateRecord] = field(default_factory=dict)
    settings: Mapping[str, HeldSetting] | None = None
    held_cut: str = ""
    end_cut: str = ""
    modules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    scheduled: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    chosen: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def attribute_then(self, name: str) -> Any:
        """A plain attribute of a called module, or an element of one, as it was in the recorded steps.

        None where that is not known. A variable may lead to a module, which is told by its attributes: all that have
        these must have had the same.
        """
        found = _ELEMENT.fullmatch(name)
        if found is None:
            return None
        path, attribute, places = found["path"] or "", found["attribute"], found["places"]
        of_modules = [self.modules[path]] if path in self.modules else self._told_by(path)
        alike = [_element(one[attribute], places) for one in of_modules if attribute in one]
        return alike[0] if alike and all(one == alike[0] for one in alike) else None

    def _told_by(self, path: str) -> list[Mapping[str, Any]]:
        """The called modules all of whose attributes are held at a path."""
        held = self.settings or {}
        return [
            one
            for one in self.modules.values()
            if all(
                f"{path}.{other}" in held
                for other, value in one.items()
                if isinstance(value, (int, float))
            )
        ]

    @property
    def went_on(self) -> bool:
        """Whether it trained further steps than were recorded."""
        return self.steps is not None and any(one.step < self.steps for one in self.last.values())

    @property
    def moments(self) -> tuple[States, States, States]:
        """Its states at each moment, in order of time."""
        return self.first, self.last, self.end


_ELEMENT = re.compile(r"(?:(?P<path>.*)\.)?(?P<attribute>[^.\[\]]+)(?P<places>(?:\[\d+\])*)")


def _element(value: Any, places: str) -> Any:
    """An element of a list of lists, by "[0][1]"; None where there is none."""
    for place in re.findall(r"\d+", places):
        if not isinstance(value, list) or int(place) >= len(value):
            return None
        value = value[int(place)]
    return value


def side_of(rank: RankRecording, names: NameMap | None = None) -> Side:
    """Return the end of a training as a rank's recording has it; `names` are those of a candidate."""
    found = _by_moment(rank.states, names)
    end = found[Moment.END]
    return Side(
        rank.manifest.trained,
        rank.losses,
        found[Moment.FIRST],
        found[Moment.LAST],
        end,
        rank.manifest.ended_by,
        "" if end else _why_none(rank),
        {state.name: state for state in rank.held},
        None if rank.held_settings is None else {one.path: one for one in rank.held_settings},
        next((gap.reason for gap in rank.manifest.not_seen if gap.what == HELD), ""),
        "; ".join(gap.reason for gap in rank.manifest.not_seen if gap.what == APART),
        {} if rank.held_settings is None else _called_modules(rank, names),
        *(({}, {}) if rank.held_settings is None else _options(rank)),
    )


class EndsOfRanks:
    """Gives the parameters at the end of trainings and the losses before, rank by rank; the latest are kept alone."""

    def __init__(self) -> None:
        self._marks: tuple[str | None, ...] = ()
        self._end: States = {}

    def of(self, rank: RankRecording) -> Side:
        """The end of a rank; copies of a model that end alike are read once."""
        files = rank.manifest.files
        marks = files.get(STATES_FILE), files.get(END_FILE)
        if marks != self._marks:
            end = _by_moment(rank.read_states(with_sketches=False), None)[Moment.END]
            self._end = {key: state for key, state in end.items() if key[0] is Role.PARAM}
            self._marks = marks
        return Side(None, rank.read_losses(), end=self._end)


def _by_moment(states: Iterable[StateRecord], names: NameMap | None) -> dict[Moment, States]:
    found: dict[Moment, States] = {moment: {} for moment in Moment}
    for state in states:
        key = state.key if names is None else (state.role, names.tensor(state.name))
        found[state.moment][key] = state
    return _without_earlier_trainings(found)


def _called_modules(rank: RankRecording, names: NameMap | None) -> dict[str, Mapping[str, Any]]:
    """The plain attributes of modules that the recorded steps called, by the reference's paths."""
    calls = rank.call_table
    called = set(calls.filter(calls["kind"] == CallKind.MODULE.value)["module"])
    found: dict[str, Mapping[str, Any]] = {}
    for row in rank.module_table.iter_rows(named=True):
        if row["module"] in called:
            path = row["module"] if names is None else names.module(row["module"])
            found[path] = settings_of(rank, row.get("settings", "{}"))
    return found


def _options(rank: RankRecording) -> tuple[dict[str, tuple[Any, ...]], dict[str, tuple[Any, ...]]]:
    """The options of optimizers: of those that change from step to step the values of the last one; then all others."""
    calls = rank.call_table
    updates = calls.filter(calls["kind"] == CallKind.OPTIMIZER.value)
    columns = ["step", "module", "op", "arguments"]
    values: dict[tuple[str, str, str], dict[int, list[Any]]] = {}
    for step, module, op, text in updates.select(columns).unique(maintain_order=True).iter_rows():
        for name, value in settings_of(rank, text or "{}", "calls", "an update").items():
            values.setdefault((module, op, name), {}).setdefault(step, []).append(value)
    scheduled: dict[str, tuple[Any, ...]] = {}
    chosen: dict[str, tuple[Any, ...]] = {}
    for (_, _, name), steps in values.items():
        moves = any(one != other for one, other in pairwise(steps.values()))
        found = scheduled if moves else chosen
        found[name] = (*found.get(name, ()), *steps[max(steps)])
    return scheduled, {name: one for name, one in chosen.items() if name not in scheduled}


def _without_earlier_trainings(moments: dict[Moment, States]) -> dict[Moment, States]:
    """The states without those of modules that were made before and stay as they are, the others called by their order.

    What a process has left of what it did before is left to chance.
    """
    seen: dict[tuple[str, Role, str], set[str | None]] = {}
    for states in moments.values():
        for key, state in states.items():
            if state.standing is Standing.BEFORE:
                seen.setdefault((root_of(state), *key), set()).add(state.content.digest)
    moving = {root for (root, *_), digests in seen.items() if len(digests) > 1}
    counts, labels = Counter[str](), dict[str, str]()
    for root in sorted(moving, key=lambda one: (len(one), one)):
        kind = _PLACE.sub("", root)
        labels[root] = f"{kind}~{counts[kind]}" if counts[kind] else f"{kind}~"
        counts[kind] += 1
    return {
        moment: {
            (key[0], key[1] if renamed is state else renamed.name): renamed
            for key, state in states.items()
            if (renamed := _as_called(state, labels)) is not None
        }
        for moment, states in moments.items()
    }


_PLACE = re.compile(r"_\d+$")


def _as_called(state: StateRecord, labels: Mapping[str, str]) -> StateRecord | None:
    if state.standing is not Standing.BEFORE:
        return state
    label, root = labels.get(root_of(state)), root_of(state)
    if label is None:
        return None
    module, name = (f"{label}{text.removeprefix(root)}" for text in (state.module, state.name))
    return replace(state, module=module, name=name, standing=Standing.BESIDE)


def training_sides(
    ranks: Mapping[str, tuple[RankRecording, RankRecording]], names: Mapping[str, NameMap]
) -> dict[str, tuple[Side, Side]]:
    """Return both runs of each rank; `names` maps the candidate's names, by rank."""
    return {name: (side_of(both[0]), side_of(both[1], names[name])) for name, both in ranks.items()}


def _why_none(rank: RankRecording) -> str:
    manifest = rank.manifest
    if not rank.is_closed:
        return "was cut off"
    if manifest.stopped_because:
        return "stopped recording before"
    reasons = [gap.reason for gap in manifest.not_seen if gap.what == END]
    return f"has none: {reasons[0]}" if reasons else "has none"


# --- how far two are apart -----------------------------------------------------------------------


def is_equal(left: StateRecord, right: StateRecord) -> bool:
    """Whether two hold the same bits of the same dtype."""
    return left.content.digest == right.content.digest and left.content.dtype == right.content.dtype


def relative(left: Content, right: Content) -> float:
    """`|c - r| / max(|c|, |r|)` by sketches; 0 for equal bits, NaN where it is not known."""
    if left.digest is not None and (left.digest, left.dtype) == (right.digest, right.dtype):
        return 0.0
    apart = absolute(left, right)
    size = max(norm(left), norm(right))
    return apart / size if size > 0 else apart


def further_apart(left: Content, right: Content) -> float:
    """As `relative`; by statistics alone how far apart the norms are, which is less; `inf` without these."""
    apart = relative(left, right)
    if math.isnan(apart):
        size = max(norm(left), norm(right))
        apart = abs(norm(left) - norm(right)) / size if size > 0 else 0.0
    return math.inf if math.isnan(apart) else apart


def absolute(left: Content, right: Content) -> float:
    """`|c - r|` by sketches; NaN where it is not known."""
    if left.numel != right.numel or left.sketch is None or right.sketch is None:
        return math.nan
    return distance(left.sketch, right.sketch)


def norm(content: Content) -> float:
    """Euclidean norm over the finite elements; NaN where it is not known."""
    return math.nan if content.statistics is None else content.statistics.norm


# --- what is of use ------------------------------------------------------------------------------


def root_of(state: StateRecord) -> str:
    """Return the variable that leads to a tensor, else the tensor's own path."""
    held_beside = state.standing in (Standing.BESIDE, Standing.BEFORE)
    return state.module.partition(".")[0] if held_beside else state.name


@dataclass(frozen=True, slots=True)
class Beside:
    """Other tensors of the process, by the variables that lead to them.

    used: Roots that move in a run, or are a copy of something trained.
    moving: Those of them that move.
    every: All of them.
    """

    used: frozenset[str]
    moving: frozenset[str]
    every: frozenset[str]

    def is_idle(self, state: StateRecord) -> bool:
        """Whether nothing tells that a state is of use."""
        return state.standing is Standing.BESIDE and root_of(state) not in self.used


def beside(*sides: Side) -> Beside:
    """Return the tensors that runs hold beside their training."""
    copies, moving, every = set[str](), set[str](), set[str]()
    for side in sides:
        trained = {
            state.content.digest
            for states in side.moments
            for state in states.values()
            if state.standing is not Standing.BESIDE and state.content.numel > 1
        }
        for states in side.moments:
            for key, state in states.items():
                if state.standing is Standing.BESIDE:
                    every.add(root_of(state))
                    if state.content.digest in trained:
                        copies.add(root_of(state))
                    if _moves(side, key):
                        moving.add(root_of(state))
    return Beside(frozenset(copies | moving), frozenset(moving), frozenset(every))


def _moves(side: Side, key: tuple[Role, str]) -> bool:
    """Whether something is not the same at all moments at which it was seen."""
    seen = {states[key].content.digest for states in side.moments if key in states}
    return len(seen) > 1


# Which processes of two trainings were compared, of how many, and how their commands ended.
#
# A training that crashed is no agreement, however equal its recorded steps are: what it would have become is not
# known.


def ranks_compared(names: Iterable[str], *recordings: Recording) -> RanksCompared:
    """The ranks that were compared, of those that the two trainings had."""
    manifests = [rank.manifest for recording in recordings for rank in recording.ranks.values()]
    return RanksCompared(
        tuple(sorted({rank_order(name)[0] for name in names})),
        max((manifest.world_size for manifest in manifests), default=0),
    )


def endings(reference: Recording, candidate: Recording) -> tuple[NotCompared, ...]:
    """Return how the trainings ended that did not come to their own end with exit code 0."""
    both = (_as_recorded(reference), _as_recorded(candidate))
    found = [
        one for side, run in zip(SIDES, both, strict=True) if not _is_foreign(run)
        for one in _endings_of(side, run)
    ]  # fmt: skip
    if all(_was_asked(run, EXIT_AFTER) for run in both):  # as both were asked, it tells nothing
        found = [one for one in found if is_crash(one)]
    return tuple(found)


def is_crash(ending: NotCompared) -> bool:
    """Return whether a training ended neither by itself nor by Lockstep as asked."""
    return ending.facts.why is not WhyNot.ENDED


def with_exit_codes(
    sides: Mapping[str, tuple[Side, Side]], reference: Recording, candidate: Recording
) -> dict[str, tuple[Side, Side]]:
    """Return both ends; one without a known cause is cut short by its exit code."""

    def ended(side: Side, run: Recording) -> Side:
        run = _as_recorded(run)
        code, by = _crash_code(run), side.ended_by
        if by and ended_itself(by, run.manifest.exit_code):
            by = ""
        return replace(side, ended_by=by or (f"exit code {code}" if code else ""))

    return {
        name: (ended(left, reference), ended(right, candidate))
        for name, (left, right) in sides.items()
    }


def _as_recorded(recording: Recording) -> Recording:
    """The recording of all ranks, where one was put together of them."""
    return recording.put_together_of or recording


def _is_foreign(recording: Recording) -> bool:
    """Whether another tool wrote it, which tells no end."""
    return recording.is_of_another_tool


def _endings_of(side: str, recording: Recording) -> Iterator[NotCompared]:
    """Return how one training ended: its processes first, then its command."""
    manifest, code = recording.manifest, _crash_code(recording)
    by_ranks: dict[tuple[WhyNot, str, str], list[str]] = {}
    for name, rank in recording.ranks.items():
        why, how = _end_of(rank, manifest.exit_code)
        if how and not (code and len(recording.ranks) == 1):
            when = _when(rank) if why is WhyNot.CRASHED else ""
            by_ranks.setdefault((why, how, when), []).append(name)
    for (why, how, when), names in by_ranks.items():
        every = len(recording.ranks)
        yield NotCompared(why, side=side, names=tuple(names), of=every, reason=how, at=when)
    if code:
        ranks = list(recording.ranks.values())
        by = ranks[0].manifest.ended_by if len(ranks) == 1 else ""
        how = f" ({by or _signal_of(code)})" if by or _signal_of(code) else ""
        when = _when(ranks[0]) if len({_when(rank) for rank in ranks}) == 1 else ""
        yield NotCompared(WhyNot.CRASHED, side=side, count=code, reason=how, at=when)
    elif manifest.state != "complete" and recording.ranks and not by_ranks:
        yield NotCompared(WhyNot.NO_END, side=side)


def _crash_code(recording: Recording) -> int:
    """Return the exit code of a command that failed, 0 of one that did not, or that Lockstep had a part in ending.

    Where Lockstep ends one of several ranks, others may lose their connection to it.
    """
    code = recording.manifest.exit_code or 0
    asked = any(was_asked_to_end(one.manifest.ended_by) for one in recording.ranks.values())
    return 0 if asked else code


def _end_of(rank: RankRecording, code: int | None) -> tuple[WhyNot, str]:
    """Return what ended a process before its recording was done, "" for nothing, and whether that is a crash."""
    by = rank.manifest.ended_by
    if not by:
        is_cut = not (rank.is_closed or rank.manifest.stopped_because)
        return WhyNot.CRASHED, "cut off before its recording was closed" if is_cut else ""
    asked = was_asked_to_end(by) or ended_itself(by, code)
    return WhyNot.ENDED if asked else WhyNot.CRASHED, f"ended by {by}"


def _was_asked(recording: Recording, option: str) -> bool:
    return any(rank.manifest.ended_by == option for rank in recording.ranks.values())


def _when(rank: RankRecording) -> str:
    """Return after how many steps a process ended, from its space on; "" where nothing of that is known."""
    trained, steps = rank.manifest.trained, rank.manifest.steps
    if trained is not None:
        return f" after {trained} trained step{'s' * (trained != 1)}"
    if not steps:
        return ""
    last = steps[-1]
    if not last.complete:
        return f" in step {last.index}"
    return f" after step {last.index}, the last that was recorded"


def _signal_of(code: int) -> str:
    """Return the name of the signal that a shell's exit code tells of, "" for none."""
    number = code - SIGNALLED
    return signal.Signals(number).name if number in signal.valid_signals() else ""


__all__ = ["endings", "is_crash", "ranks_compared", "with_exit_codes"]
