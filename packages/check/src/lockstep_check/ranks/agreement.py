"""Holding the ranks of one recording against each other: they read other samples, and stay copies of one model."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from lockstep.compare import Given, NameMap, Pair, model_setup
from lockstep.errors import UsageError
from lockstep.judging import measure_pair
from lockstep.recordings import (
    Call,
    CallKind,
    NoteKind,
    RankRecording,
    Recording,
    Role,
    TensorRecord,
    opened,
    rank_number,
)
from lockstep.terminal import listed
from lockstep_check.data_files import rows_of
from lockstep_check.setups.answers import Answers
from lockstep_check.setups.calls import words_of
from lockstep_check.setups.manifests import look_at_model, look_at_process

_FILE = Path(__file__).with_name("facts.yaml")
_OF_SET_UP = frozenset({
    "versions", "deterministic", "matmul-precision", "default-dtype", "amp", "module-settings", "modes", "frozen",
    "tied", "optimizer", "optimizer-options", "optimizer-groups", "schedule", "model", "kernels",
})  # fmt: skip
"""Aspects of two set-ups that two ranks have alike too."""

_NO_COPIES = "ranks hold parts of one model, and no copies of it"

_ALWAYS_THERE = frozenset({"batches", "weights-before", "gradients", "weights"})
"""What every training has; a model may have no buffers."""


@dataclass(frozen=True, slots=True)
class Fact:
    """One thing that ranks have alike or not, as a row of the file says it."""

    name: str
    title: str
    meaning: str
    cure: str
    source: str
    counts: bool = True


@cache
def facts() -> Mapping[str, Fact]:
    """Every fact by its name, in order."""
    rows = (
        {("name" if key == "id" else key): value for key, value in row.items()}
        for row in rows_of(_FILE)
    )
    return {row["name"]: Fact(**row) for row in rows}


@dataclass(slots=True)
class RankAnswers:
    """The answers about ranks, by the name of a fact: errors in words, and reasons for unknowns."""

    ranks: tuple[str, ...]
    steps: tuple[int, ...]
    wrong: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    unknown: dict[str, str] = field(default_factory=dict)
    looked_at: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    @property
    def differs(self) -> bool:
        """Whether anything is wrong that counts."""
        return any(facts()[name].counts for name in self.wrong)


def look_at_ranks(given: Given) -> RankAnswers:
    """Hold the ranks of a recording against each other.

    Raises RecordingError if it cannot be read. Raises UsageError if it has but one rank.
    """
    recording = opened("recording", given)
    ranks = {name: rank for name, rank in recording.ranks.items() if rank_number(name) == name}
    if len(ranks) < 2:
        raise UsageError(
            f"{recording.path} has one rank: check takes two recordings, or one of several ranks"
        )
    steps = sorted(set.intersection(*(set(rank.steps) for rank in ranks.values())))
    answers = RankAnswers(tuple(ranks), tuple(steps))
    _note_missing(recording, ranks, answers)
    _look_at_ends(ranks, answers)
    _look_at_set_up(ranks, answers)
    first, *others = ranks.values()
    if why_not := _why_no_copies(ranks):
        for name in ("weights-before", "buffers", "gradients", "weights"):
            answers.unknown[name] = why_not
    seen: dict[tuple[str, ...], tuple[str, int]] = {}
    for step in steps:
        calls = {rank.name: rank.calls(step) for rank in ranks.values()}
        for other in others:
            if not why_not:
                _look_at_copies(
                    calls[first.name], calls[other.name], (first.name, other.name), answers
                )
        _look_at_batches(calls, step, seen, answers)
    for name in _ALWAYS_THERE - answers.looked_at:
        answers.unknown.setdefault(name, "nothing of it was recorded of two ranks")
    return answers


def _note_missing(
    recording: Recording, ranks: Mapping[str, RankRecording], answers: RankAnswers
) -> None:
    world_size = max(rank.manifest.world_size for rank in ranks.values())
    if world_size > len(ranks):
        answers.notes.append(f"{len(ranks)} of {world_size} ranks were recorded")
    if more := [name for name in recording.ranks if name not in ranks]:
        answers.notes.append(f"not looked at are other processes of the same rank: {listed(more)}")


def _why_no_copies(ranks: Mapping[str, RankRecording]) -> str:
    """Why ranks are no copies of each other, "" where they are to be."""
    if any(gap.parts_a_model for rank in ranks.values() for gap in rank.manifest.not_seen):
        return _NO_COPIES
    paths = [set(rank.module_table["module"].to_list()) for rank in ranks.values()]
    return "" if all(one == paths[0] for one in paths) else "ranks have other modules"


def _look_at_set_up(ranks: Mapping[str, RankRecording], answers: RankAnswers) -> None:
    first, *others = ranks.values()
    for other in others:
        of_two = Answers()
        look_at_process(first.manifest, other.manifest, of_two)
        look_at_model(model_setup(first, other), first, other, NameMap(), of_two)
        for answer in of_two.answers():
            for one in answer.differences if answer.aspect.name in _OF_SET_UP else ():
                words = (
                    f"{one.name}: {one.reference} in {first.name}, {one.candidate} in {other.name}"
                )
                answers.wrong["set-up"][words] = None
    answers.looked_at.add("set-up")


# --- what must be the same ------------------------------------------------------------------------------------------


def _look_at_copies(
    left: list[Call], right: list[Call], ranks: tuple[str, str], answers: RankAnswers
) -> None:
    """Weights, buffers and gradients of two ranks in one step."""
    step = left[0].step if left else 0
    wanted: dict[str, Callable[[Call, TensorRecord], bool]] = {
        "weights-before": lambda call, one: call.kind is CallKind.INIT and one.role is Role.PARAM,
        "buffers": lambda call, one: call.kind is CallKind.INIT and one.role is Role.BUFFER,
        "gradients": lambda call, one: (
            call.kind is CallKind.OPTIMIZER and one.role is Role.PARAM_GRAD
        ),
        "weights": lambda call, one: one.role is Role.PARAM_AFTER,
        "running": lambda call, one: call.kind is CallKind.MODULE and one.role is Role.BUFFER,
    }
    for name, is_wanted in wanted.items():
        ours, theirs = (_records(calls, is_wanted) for calls in (left, right))
        other, held = [], 0
        for key in ours.keys() & theirs.keys():
            pair = ours[key], theirs[key]
            if any(one.content.told.kind is NoteKind.PART for one in pair):
                answers.unknown.setdefault(name, _NO_COPIES)
            elif None in (pair[0].digest, pair[1].digest):
                answers.unknown.setdefault(name, f"{pair[0].name} could not be read")
            else:
                held += 1
                other += [pair] if pair[0].digest != pair[1].digest else []
        if held:
            answers.looked_at.add(name)
        if other and not any(name in one for one in answers.wrong.get(name, ())):
            answers.wrong[name][_apart(other, held, step, ranks)] = None


def _records(
    calls: Iterable[Call], wanted: Callable[[Call, TensorRecord], bool]
) -> dict[tuple[str, int], TensorRecord]:
    """Records by their tensor's name, and how often it had come by then."""
    counts: dict[str, int] = defaultdict(int)
    found = {}
    for call in calls:
        for record in call.records:
            if wanted(call, record):
                name = record.name if record.argument == "" else f"{call.site.module}.{record.name}"
                found[name, counts[name]] = record
                counts[name] += 1
    return found


def _apart(
    other: list[tuple[TensorRecord, TensorRecord]], held: int, step: int, ranks: tuple[str, str]
) -> str:
    other.sort(key=lambda pair: pair[0].sequence)
    worst = max(measure_pair(Pair(left, right)).difference for left, right in other)
    names = listed([left.name for left, _ in other])
    return (
        f"at step {step} {len(other)} of {held} are others in {ranks[1]} than in {ranks[0]},"
        f" up to rel {worst:.2g}: {names}"
    )


# --- what must differ -----------------------------------------------------------------------------------------------


def _look_at_batches(
    calls: Mapping[str, list[Call]],
    step: int,
    seen: dict[tuple[str, ...], tuple[str, int]],
    answers: RankAnswers,
) -> None:
    """Whether a batch of one rank has come to another one, in this step or before it."""
    if any(
        one.content.told.kind is NoteKind.PART
        for of_rank in calls.values()
        for one in _of_batches(of_rank)
    ):
        answers.unknown["batches"] = "ranks share one tensor of samples"
        return
    for rank, of_rank in calls.items():
        # All that arrives in a step at once: labels alone are often the same by chance.
        told = [one for one in _of_batches(of_rank) if _tells_samples(one)]
        if not told:
            continue
        answers.looked_at.add("batches")
        before = seen.setdefault(tuple(one.digest or "" for one in told), (rank, step))
        if before[0] != rank:
            names = listed([one.name for one in told])
            words = f"at step {step} {rank} gets what {before[0]} gets at step {before[1]}: {names}"
            answers.wrong["batches"][words] = None


def _of_batches(calls: Iterable[Call]) -> Iterator[TensorRecord]:
    return (one for call in calls if call.kind is CallKind.DATA for one in call.records)


def _tells_samples(record: TensorRecord) -> bool:
    """Whether a tensor is of samples: not a number, nor a mask or positions that every batch has alike."""
    statistics = record.statistics
    if record.content.numel < 2 or record.digest is None or statistics is None:
        return False
    return statistics.minimum != statistics.maximum


# --- where they ended -----------------------------------------------------------------------------------------------


def _look_at_ends(ranks: Mapping[str, RankRecording], answers: RankAnswers) -> None:
    """The last call of each rank, where they were cut off or trained other numbers of steps."""
    lengths = {rank.manifest.trained for rank in ranks.values()}
    cut = [rank for rank in ranks.values() if not set(rank.steps) <= set(rank.complete_steps)]
    answers.looked_at.add("ends")
    if len(lengths) < 2 and not cut:
        return
    for rank in ranks.values():
        answers.wrong["ends"][f"{rank.name}: {_end_of(rank)}"] = None


def _end_of(rank: RankRecording) -> str:
    last = max(rank.steps, default=None)
    if last is None:
        return "nothing was recorded"
    if last in rank.complete_steps:
        trained = rank.manifest.trained
        many = "its steps were not counted" if trained is None else f"{trained} steps were trained"
        return f"step {last}, the last that was recorded, is complete; {many}"
    calls = rank.calls(last)
    by = f"; ended by {rank.manifest.ended_by}" if rank.manifest.ended_by else ""
    where = f"the last call that was recorded is {words_of(calls[-1])}" if calls else "no call"
    return f"step {last} is incomplete, {where}{by}"
