"""`lockstep profile`: where a training step spends its time, and what to change."""

from __future__ import annotations

import contextlib
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.errors import ExitCode, OutputExistsError, UsageError, code_of
from lockstep.files import url_of, written
from lockstep.options import TrainingCommand, runs_elsewhere, training_command
from lockstep.page import write_page
from lockstep.terminal import json_text
from lockstep_tune import diffing
from lockstep_tune.diffing import differences
from lockstep_tune.profile import Profile, time_text
from lockstep_tune.profile_diff_page import DIFF_PAGE, profile_diff_page
from lockstep_tune.profile_page import profile_page
from lockstep_tune.profile_run import Profiled, profile_command, steps_of
from lockstep_tune.profile_screen import as_values, render
from lockstep_tune.trace import read_profile

PAGE = "profile.html"


class _Command(TrainingCommand):
    usage = "{-- COMMAND... | TRACE | diff LEFT RIGHT...}"


@runs_elsewhere(writes=("--output",))
@click.command(cls=_Command)
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path))
@options.option(
    "--output",
    default=None,
    form=options.PATH,
    words="A folder, also in object storage: the page, and each rank's trace; of diff the page.",
)
@options.option("--steps", default="3:8", words="These steps are profiled.")
@options.option("--max-steps")
@click.option("--simple", is_flag=True, help="Print the advice and the outermost modules alone.")
@options.limit
@options.as_json
@options.force
def profile(
    traces: tuple[Path, ...],
    output: Path | None,
    steps: str,
    max_steps: int | None,
    simple: bool,
    limit: int,
    as_json: bool,
    force: bool,
) -> int:
    """Run COMMAND, profile some steps of its training, and name the lines that slow them, with the edit.

    You change no line of the script. The largest gain comes first; then modules and operators with
    times, calls, shapes, memory and FLOPs. With -o you get a page and the trace, which Perfetto and
    chrome://tracing open. In the step before them, which is not timed, Lockstep marks each call
    with its line.

    A TRACE is one that torch.profiler wrote elsewhere, or a CSV of Ascend's profiler.

    `diff` compares two profiles by module, with an interval for each difference; more pairs of
    profiles are repeats of the two.

    Exit code that of the command, or 2 if nothing was profiled; of `diff`, 1 if the steps differ.

    \b
    lockstep profile -- python train.py
    lockstep profile -o prof --steps 10:20 --max-steps 20 -- torchrun --nproc_per_node 2 train.py
    lockstep profile trace.json.gz
    lockstep profile diff before after
    """
    command = training_command()
    is_diff = traces[:1] == (Path("diff"),)
    if not is_diff and (bool(command) == bool(traces) or len(traces) > 1):
        raise UsageError(
            "give either one trace, or a training's command after --, or diff and two traces"
        )
    shown = _Shown(limit, simple, as_json, force)
    with contextlib.ExitStack() as stack:
        place = None if output is None else stack.enter_context(written(output, force=force))
        if is_diff:
            code = _diff(traces[1:], place, shown)
        elif traces:
            found = Profiled(ExitCode.AGREES, (read_profile(traces[0]),))
            code = _conclude(found, place, shown)
        else:
            code = _profile_command(command, place, steps, max_steps, shown)
    if output is not None and not as_json:  # all is there now
        page, url = DIFF_PAGE if is_diff else PAGE, url_of(output)
        click.echo(f"\nwrote {f'{url}/{page}' if url else output / page}")
    return code


@dataclass(frozen=True)
class _Shown:
    """How the answer is shown, and whether it may replace files."""

    limit: int
    simple: bool
    as_json: bool
    force: bool


def _profile_command(
    command: Sequence[str], place: Path | None, steps: str, max_steps: int | None, shown: _Shown
) -> int:
    first, end = steps_of(steps)
    if max_steps is not None and max_steps < end:
        raise UsageError(
            f"--max-steps {max_steps} ends the training before --steps {first}:{end} are done"
        )
    streams: dict[str, Any] = {"stdout": sys.stderr} if shown.as_json else {}
    if place is not None:
        _make(place, force=shown.force)
        found = profile_command(command, place, steps, max_steps, **streams)
        return _conclude(found, place, replace(shown, force=True))
    with tempfile.TemporaryDirectory(prefix="lockstep-profile-") as name:
        found = profile_command(command, Path(name), steps, max_steps, **streams)
    return _conclude(found, None, shown)


def _diff(traces: tuple[Path, ...], place: Path | None, shown: _Shown) -> int:
    """Set two trainings side by side; of more than two profiles each second one is of the right one."""
    if not traces or len(traces) % 2:
        raise UsageError(
            f"diff takes two profiles, or several pairs of them; {len(traces)} were given"
        )
    left, right = ([read_profile(one) for one in traces[at::2]] for at in (0, 1))
    found = differences(left, right)
    if shown.as_json:
        click.echo(json_text(diffing.as_values(found, left, right)))
    else:
        click.echo(diffing.render(found, left, right, limit=shown.limit).plain.rstrip("\n"))
    if place is not None:
        _make(place, force=shown.force)
        write_page(profile_diff_page(found, left, right), place / DIFF_PAGE)
    step = diffing.whole_step(left, right)
    return code_of(differs=step.is_told, looked=not math.isnan(step.low_us))


def _make(folder: Path, *, force: bool) -> None:
    """Make the folder, or take one that is empty.

    Raises OutputExistsError if something is in it, or it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()) and not force:
            raise OutputExistsError(f"{folder} is there; give another name, or --force")
    except OSError as error:
        raise OutputExistsError(f"{folder}: cannot be made ({error.strerror or error})") from error


def _conclude(found: Profiled, place: Path | None, shown: _Shown) -> int:
    slowest = max(found.ranks, key=lambda one: one.step_us)
    if shown.as_json:
        click.echo(json_text(as_values(slowest)))
    else:
        click.echo(render(slowest, limit=shown.limit, simple=shown.simple).plain.rstrip("\n"))
        if len(found.ranks) > 1:
            click.echo(
                f"\nthis is the slowest of {len(found.ranks)} ranks: {_of_ranks(found.ranks)}"
            )
    if place is not None:
        _make(place, force=shown.force)
        write_page(profile_page(slowest), place / PAGE)
    return found.code


def _of_ranks(ranks: tuple[Profile, ...]) -> str:
    return ", ".join(f"{Path(one.name).name} {time_text(one.step_us)}" for one in ranks)
