"""Put the result of following losses into words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from lockstep.commands.record_again import record_again
from lockstep.core.errors import ExitCode
from lockstep.core.text import shell_line
from lockstep.store.reader import Recording
from lockstep.wings.follow.chart import loss_chart
from lockstep.wings.follow.loss_floors import LossFloors
from lockstep.wings.follow.loss_following import FollowedRank, LossesFollowed

ALONE = "nothing but the losses was compared: what else the trainings do may differ"


def losses_text(followed: LossesFollowed, floors: LossFloors) -> Iterator[str]:
    """Return the result of following losses, a line or a chart at a time."""
    parted, named = followed.parted, len(followed.ranks) > 1
    for rank in followed.ranks:
        yield from _of_rank(rank, "" if not named else f"{rank.name}: ")
        if parted is None:
            yield from _not_heard(rank, "" if not named else f"{rank.name}: ")
    for name in sorted(set(floors.expected) - {rank.name for rank in followed.ranks}):
        yield f"{name}: no loss was heard"
    if not followed.ranks:
        yield f"nothing was compared: {followed.ended.why_nothing}"
        return
    if parted is None:
        yield _agreement(followed)
        if followed.ended.code:
            yield f"the command ended with exit code {followed.ended.code}: what would have followed is not known"
    else:
        name, pair = parted
        yield (
            f"losses part at step {pair.step} ({name}): {_number(pair.reference)} in the reference,"
            f" {_number(pair.candidate)} here, {pair.floors:.3g} floors apart"
        )
    yield floors.words
    yield ALONE


def _agreement(followed: LossesFollowed) -> str:
    compared = [pair for rank in followed.ranks for pair in rank.compared]
    if not compared:
        return "nothing was compared: the reference has no loss of these steps"
    furthest = max(compared, key=lambda pair: pair.floors)
    first, last = (way(pair.step for pair in compared) for way in (min, max))
    return (
        f"losses agree: steps {first}-{last}, {len(compared)} losses, at most {furthest.floors:.3g} floors apart"
        f" (step {furthest.step}); no step was recorded"
    )


def _of_rank(rank: FollowedRank, head: str) -> Iterator[str]:
    apart: dict[int, float] = {}
    for pair in rank.compared:
        apart[pair.step] = max(apart.get(pair.step, 0.0), pair.floors)
    if apart:
        yield head + loss_chart(apart)
    alone = sorted({pair.step for pair in rank.pairs} - apart.keys())
    if alone:
        yield (
            f"{head}not compared: {len(alone)} steps, {alone[0]} to {alone[-1]}, of which the reference has no loss"
        )


def _not_heard(rank: FollowedRank, head: str) -> Iterator[str]:
    """What is not known of a rank whose losses do not part."""
    heard = max((pair.step for pair in rank.pairs), default=-1)
    if heard < rank.last_expected:
        yield (
            f"{head}not compared: steps {heard + 1}-{rank.last_expected} of the reference, which this one has not"
        )
    if not rank.is_whole:
        yield f"{head}losses were heard to step {heard} alone, not to the end of the training"


def next_commands(followed: LossesFollowed, reference: Recording) -> Iterator[str]:
    """Return the commands for the recorded step, if the reference does not hold it."""
    if followed.recorded is None or followed.step is None:
        yield "the training ended before the next step could be recorded"
        return
    path, step = str(followed.recorded.path), followed.step
    again = record_again(reference, steps=str(step))
    compared = shell_line(["lockstep", "compare", str(again.path), path])
    yield f"step {step} is recorded whole in {path}; the reference does not hold it. Next:"
    yield f"  {again.line} && {compared}"
    yield f"  {shell_line(['lockstep', 'replay', path, '--whole'])}    each of its operators alone, without a reference"
    yield f"  {shell_line(['lockstep', 'show', path, '--steps', str(step)])}"


def losses_values(followed: LossesFollowed, floors: LossFloors) -> dict[str, Any]:
    """The same for JSON."""
    parted = followed.parted
    return {
        "compared": "losses",
        "floor": floors.words,
        "ranks": {
            rank.name: {
                "losses": [
                    [pair.step, pair.reference, pair.candidate, pair.floors] for pair in rank.pairs
                ],
                "is_whole": rank.is_whole,
                "last_step_of_reference": rank.last_expected,
            }
            for rank in followed.ranks
        },
        "parted_at": None if parted is None else parted[1].step,
        "recorded_step": followed.step,
    }


def losses_code(
    followed: LossesFollowed, floors: LossFloors, *, allow_crash: bool = False
) -> ExitCode:
    """Return 0 if all losses agree that both have, 1 if they part, 2 if that cannot be said, as after a crash."""
    if followed.parted is not None:
        return ExitCode.DIFFERS
    heard = {rank.name for rank in followed.ranks if rank.compared and rank.is_whole}
    failed = followed.ended.code and not allow_crash
    agrees = not failed and heard >= set(floors.expected)
    return ExitCode.AGREES if agrees else ExitCode.FAILED


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.9g}"
