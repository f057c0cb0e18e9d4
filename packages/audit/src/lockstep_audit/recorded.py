"""Auditing a recording that is there."""

from __future__ import annotations

from lockstep.compare import pattern_for, record_again
from lockstep.errors import UsageError
from lockstep.options import StepSelection, is_rank
from lockstep.recordings import (
    ChosenRanks,
    Phase,
    RankRecording,
    Recording,
    Site,
    check_choice,
    is_chosen,
    no_match,
)
from lockstep.rerun import RUNS_AGAIN
from lockstep.terminal import Progress, spans
from lockstep_audit.auditor import Auditor, SiteChoice


def audit_recording(
    auditor: Auditor, recording: Recording, steps: StepSelection, rank: ChosenRanks, told: Progress
) -> None:
    """Audit the chosen steps, a step at a time.

    Raises UsageError if there is no such rank, step or site, or nothing was saved whole. Raises RecordingError if it is
    no recording, or is damaged.
    """
    check_choice(recording, step=None, rank=rank)
    ranks = [item for name, item in recording.ranks.items() if is_rank(rank, name)]
    _check_steps(recording, ranks, steps)
    _check_patterns(recording, auditor.choice)
    _check_whole(recording, ranks, steps, auditor.choice)
    trained = max((item.manifest.trained or 0 for item in ranks), default=0)
    auditor.tally.trained = max([trained, *(len(item.steps) for item in ranks)])
    for item in ranks:
        for number in steps.numbers_in(item.steps):
            auditor.step(item, number, told)
            item.close_tensors()


def _check_steps(recording: Recording, ranks: list[RankRecording], steps: StepSelection) -> None:
    there = sorted({number for item in ranks for number in item.steps})
    if not steps.numbers_in(there):
        raise UsageError(f"{recording.path}: has no such step; it has {spans(there) or 'none'}")


def _check_patterns(recording: Recording, choice: SiteChoice) -> None:
    """See that each pattern names something; of the tables alone, no record is read."""
    rows = [
        row
        for rank in recording.ranks.values()
        for row in rank.call_table.select("kind", "module", "op", "call", "phase")
        .unique()
        .iter_rows()
        if row[0] in {kind.value for kind in RUNS_AGAIN}
    ]
    sites = [Site(module, op, call, Phase(phase)) for _, module, op, call, phase in rows]
    ops = {site.op for site in sites}
    for pattern in choice.only:
        if not any(is_chosen(pattern, site) for site in sites):
            known = ops | {site.module for site in sites} - {""}
            raise no_match(recording, pattern, known=known)


def _check_whole(
    recording: Recording, ranks: list[RankRecording], steps: StepSelection, choice: SiteChoice
) -> None:
    recording.check_can_run_again()
    if recording.has_whole_calls and any(item.has_tensors for item in ranks):
        return
    if not any(item.steps for item in ranks):
        raise UsageError(f"{recording.path}: holds no step; record with --level api --save tensors")
    chosen = sorted({number for item in ranks for number in steps.numbers_in(item.steps)})
    only = [_as_recorded(pattern) for pattern in choice.only]
    again = record_again(recording, only=only, steps=",".join(map(str, chosen)))
    raise UsageError(
        f"{recording.path}: no call was saved whole, so nothing can be run again; record it with",
        command=again.line,
    )


def _as_recorded(pattern: str) -> str:
    """A pattern as `record --only` takes it: of a printed site its module, or else its operator."""
    module, printed, operator = pattern.partition(" / ")
    if not printed:
        return pattern
    return pattern_for("" if module == "(model)" else module, operator.partition(" #")[0])
