"""Running a training's command with knobs set, to its end or for a few steps that are timed."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lockstep.errors import UsageError
from lockstep.launch import launch
from lockstep.recordings import Options
from lockstep.terminal import tell
from lockstep_tune.rewrites import rewritten
from lockstep_tune.settings import INSIDE, Settings
from lockstep_tune.trials import INTERRUPTED


@dataclass(frozen=True, slots=True)
class Use:
    """A place of the script at which a knob can be set.

    name: What is called there, such as `DataLoader`.
    knob: Which of `settings.KNOBS` belongs to it; "model" for the model itself.
    place: `file:line`.
    given: What the script gives for it now.
    """

    name: str
    knob: str
    place: str
    given: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TimedRun:
    """The timed steps of a training.

    step_s: Seconds of a step, the mean over those that were timed, on the slowest rank.
    uses: Where knobs can be set.
    threads, cores: Threads of one process, and the cores that it may use.
    device: The accelerator's type, or "cpu".
    without_place: Knobs that were asked for and had no effect on any rank.
    """

    step_s: float
    uses: tuple[Use, ...]
    threads: int
    cores: int
    device: str
    without_place: tuple[str, ...] = ()


class RunFailedError(Exception):
    """The command could not be timed; the text says why."""


class NoPlaceError(Exception):
    """A knob had no effect; the text says what the training lacks."""


def check_command(command: Sequence[str]) -> None:
    """Raise `UsageError` where there is no command, or no such program."""
    if not command:
        raise UsageError("give the training's command after --")
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )


def run_tuned(command: Sequence[str], settings: Settings, **streams: Any) -> int:
    """Run a command to its end with some settings; returns its exit code.

    streams: As `lockstep.launch.launch` takes them.

    Raises UsageError if it cannot be started.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-tuned-", ignore_cleanup_errors=True) as name:
        options = Options(loads=[INSIDE], records_nothing=True)
        return launch(
            settings.command(command), Path(name) / "run", options, hear=tell,
            adjust=lambda environment: environment | settings.variables(), **streams,
        ).code  # fmt: skip


def time_steps(
    command: Sequence[str],
    settings: Settings,
    steps: tuple[int, int],
    place: Path,
    seed: int | None,
    **streams: Any,
) -> TimedRun:
    """Run some steps of a training and time them.

    steps: The first step that is timed, and the one after the last, after which the training ends.
    place: A folder for what it leaves for a moment.
    seed: From which random numbers are drawn; None to leave that to the script.

    Raises RunFailedError if the command fails, or has no such steps.
    """
    into = place / "timed"
    shutil.rmtree(into, ignore_errors=True)
    options = Options(loads=[INSIDE], records_nothing=True, max_steps=steps[1], seed=seed)
    variables = settings.variables(into=str(into), timed=steps)
    with rewritten(settings.command(command), settings.rewrites, streams) as (words, where):
        ended = launch(
            words, place / "run", options, force=True, hear=tell,
            adjust=lambda environment: environment | variables, **where,
        )  # fmt: skip
    told = [json.loads(one.read_text("utf-8")) for one in sorted(into.glob("rank*.json"))]
    shutil.rmtree(into, ignore_errors=True)
    if ended.code in INTERRUPTED:
        raise click.Abort
    if ended.code:
        raise RunFailedError(f"the command ended with exit code {ended.code}")
    if not told:
        raise RunFailedError(f"nothing was timed: {ended.why_nothing}")
    short = next((one for one in told if one["step_s"] is None), None)
    if short is not None:
        raise RunFailedError(
            f"the training ended in step {short['trained']}, before step {steps[1]} began;"
            " choose earlier steps with --steps"
        )
    slowest = max(told, key=lambda one: float(one["step_s"]))
    uses = tuple(Use(**{**one, "place": _place(one["place"])}) for one in slowest["uses"])
    kept = ("step_s", "threads", "cores", "device")
    lacking = set.intersection(*(set(one["without_place"]) for one in told))
    return TimedRun(
        uses=uses, without_place=tuple(sorted(lacking)), **{name: slowest[name] for name in kept}
    )


def _place(text: str) -> str:
    line, _, file = text.partition(":")
    return f"{file}:{line}"
