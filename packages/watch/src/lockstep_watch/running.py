"""Watching a command: each step of its training is recorded apart, looked at and taken away."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.launch import Ended, Event, Follow, WhenFull, WrittenStep, launch
from lockstep.recordings import Options

WAITING_STEPS = 8
"""How many steps may wait to be looked at: as many small ones as come while it is slept between two looks."""


def watch_training(
    command: Sequence[str],
    options: Options,
    look: Callable[[WrittenStep], None],
    hear: Callable[[Event], None],
    *,
    budget: float | None = None,
    may_end: bool = False,
    one_by_one: bool = False,
    **streams: Any,
) -> Ended:
    """Run a command to its end and look at the steps of its training as they come.

    options: What of a step is recorded.
    look: Is given each step.
    hear: Is given what happens beside.
    budget: Share of the training's time that all this may cost; steps beyond it are left out. None for none: the
        training waits for each step to be looked at.
    may_end: Whether `look` may ask the training to end.
    one_by_one: Whether the training waits until each step was looked at, before it goes on.
    streams: As `lockstep.launch.launch` takes them.

    Raises UsageError if the command cannot be started, or there is no place for its steps.
    """
    full = WhenFull.WAIT if budget is None else WhenFull.LEAVE_OUT
    waiting = 1 if one_by_one else WAITING_STEPS
    follow = Follow(look, waiting_steps=waiting, when_full=full, budget=budget, may_end=may_end)
    try:
        place = tempfile.TemporaryDirectory(prefix="lockstep-watch-", ignore_cleanup_errors=True)
    except OSError as error:
        reason = error.strerror or error
        raise UsageError(
            f"no temporary directory: {reason}; give one with room by TMPDIR"
        ) from error
    with place as temporary:
        directory = Path(temporary) / "recording"
        return launch(command, directory, options, follow=follow, hear=hear, **streams)


def what_is_missing(ended: Ended) -> Iterator[str]:
    """Return notes about parts of a command that were not watched, a line each."""
    if ended.why_nothing:
        yield f"nothing was looked at: {ended.why_nothing}"
    elif ended.unwritten:
        yield f"not all steps could be written, so not all were looked at: {ended.unwritten}"
    if ended.unwritten:
        yield "steps wait in the temporary directory until they were looked at: TMPDIR gives another, with more room"
    if ended.code:
        yield f"the training ended with exit code {ended.code}"


def end_soon(step: WrittenStep) -> int:
    """End the training after the first step that no rank is past yet, and return that step."""
    last = step.number + (WAITING_STEPS + 1 if step.rank.manifest.world_size > 1 else 0)
    step.end_training_after(last)
    return last


def end_words(step: WrittenStep) -> str:
    """Ask the training to end, and say when it does."""
    last = end_soon(step)
    if last > step.number:
        lag = f"{last - step.number} after the one that was looked at, as all ranks have to end together"
        return f"the training is asked to end after step {last}, {lag}"
    return (
        f"the training is asked to end after step {last}, or after the step it is in: it may be up to"
        f" {WAITING_STEPS + 1} ahead, as steps are looked at while it goes on"
    )
