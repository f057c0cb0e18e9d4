"""Compare the step logs of two recordings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lockstep.core.finding import Comparison, Verdict
from lockstep.core.step_rows import (
    FactDifference,
    Growth,
    StepLog,
    StepLogsCompared,
    StepRow,
)
from lockstep.locate.step_log.equal_facts import FIRST_STEPS, Pairs, fact_differences
from lockstep.locate.step_log.growth import Value, distances, growth_of
from lockstep.reading.paired_steps import Pairing
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.step_log import read_step_log


def compared_with_logs(
    found: Comparison, pairing: Pairing, calibration: Recording | None
) -> Comparison:
    """Return a comparison with what the step logs of all ranks say. Raises CorruptError if a step log was changed."""
    logs = _compare_all(pairing, calibration)
    if logs is None:
        return found
    verdict = found.verdict if logs.first is None else Verdict.DIVERGED
    return replace(found, verdict=verdict, step_logs=logs)


def _compare_all(pairing: Pairing, calibration: Recording | None) -> StepLogsCompared | None:
    """The answer of the step logs of all ranks; None where the two recordings have none to compare."""
    several = len(pairing.ranks.both) > 1
    found = [
        one
        for name, both in pairing.ranks.both.items()
        if _is_recorded(*both)
        if (one := _compare(both, name if several else "", _log_of(calibration, name))) is not None
    ]
    if not found:
        return None
    differences = sorted((each for one in found for each in one.differences), key=_step)
    return StepLogsCompared(
        min(one.steps for one in found),
        tuple(dict.fromkeys(fact for one in found for fact in one.facts)),
        tuple(differences),
        tuple(each for one in found for each in one.growths),
        min(one.equal_losses for one in found),
    )


def _step(one: FactDifference) -> int:
    return one.step


def _is_recorded(left: RankRecording, right: RankRecording) -> bool:
    """Whether both are ranks of trainings of equal size, as recorded: ranks that were put together have no log."""
    sizes = {one.manifest.world_size for one in (left, right)}
    return len(sizes) == 1 and left.path.is_dir() and right.path.is_dir()


def _log_of(calibration: Recording | None, name: str) -> StepLog | None:
    rank = None if calibration is None else calibration.ranks.get(name)
    return None if rank is None else read_step_log(rank.path)


def _compare(
    both: tuple[RankRecording, RankRecording], rank: str, calibrated: StepLog | None
) -> StepLogsCompared | None:
    logs = [read_step_log(one.path) for one in both]
    left, right = logs
    if left is None or right is None:
        return None
    pairs = _pairs(left, right)
    if len(pairs) <= FIRST_STEPS:
        return None
    facts, differences = fact_differences(left, right, pairs, rank)
    restarts = [one.step for one in both[1].manifest.windows if one.is_set]
    restarts += [one.step for one in both[0].manifest.windows if one.is_set]
    growths = _growths(pairs, left, calibrated, restarts, rank)
    return StepLogsCompared(
        len(pairs), tuple(facts), tuple(differences), tuple(growths), _equal_losses(pairs)
    )


def _pairs(left: StepLog, right: StepLog) -> Pairs:
    rows = {row.step: row for row in right.rows}
    return [(row, rows[row.step]) for row in left.rows if row.step in rows]


def _equal_losses(pairs: Pairs) -> int:
    """How many steps go by until a loss differs in a bit."""
    for number, (left, right) in enumerate(pairs):
        if repr(left.loss) != repr(right.loss):
            return number
    return len(pairs)


def _growths(
    pairs: Pairs, reference: StepLog, calibrated: StepLog | None, restarts: Sequence[int], rank: str
) -> list[Growth]:
    """How the losses grow apart, then the norms of the gradients of each group."""
    until = _until_facts_differ(pairs)
    losses = _values(until, lambda row: row.loss)
    noise = None
    if calibrated is not None:
        calm = _values(_pairs(reference, calibrated), lambda row: row.loss)
        noise = dict(zip((one.step for one in calm), distances(calm), strict=True))
    dtype = pairs[0][0].dtype
    found = [
        growth_of("losses", losses, dtype=dtype, rank=rank, noise=noise, restarts=restarts),
    ]
    for group in range(max((len(one.gradient_norms) for one, _ in until), default=0)):
        norms = _values(until, partial(_norm, group))
        name = f"gradient norms of parameter group {group}"
        found.append(growth_of(name, norms, dtype=dtype, rank=rank, restarts=restarts))
    return [one for one in found if one is not None]


def _until_facts_differ(pairs: Pairs) -> Pairs:
    """The pairs up to the first update that one run alone skipped: from there on the two train on differently."""
    for number, (left, right) in enumerate(pairs):
        if left.skipped != right.skipped:
            return pairs[:number]
    return pairs


def _norm(group: int, row: StepRow) -> float | None:
    return row.gradient_norms[group] if group < len(row.gradient_norms) else None


def _values(pairs: Pairs, number_of: Callable[[StepRow], float | None]) -> list[Value]:
    found = []
    for left, right in pairs:
        one, two = number_of(left), number_of(right)
        if one is not None and two is not None:
            found.append(Value(left.step, one, two))
    return found
