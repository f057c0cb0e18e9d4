"""`lockstep follow`: train the candidate while comparing each step with a recorded reference."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from lockstep.align.mapping import NameMapping
from lockstep.cli import options
from lockstep.cli.elsewhere import TrainingCommand, runs_elsewhere, training_command
from lockstep.cli.notices import say, tell
from lockstep.cli.options import recording_at
from lockstep.comparison import GrowingComparison, SteppedTo, compare_recordings
from lockstep.core.errors import ExitCode, UsageError
from lockstep.core.text import printable, shell_line
from lockstep.report.comparison.json import comparison_json, render_json
from lockstep.report.comparison.screen import print_comparison
from lockstep.report.json_text import enveloped, json_text
from lockstep.store.reader import Recording, open_recording
from lockstep.wings.follow.chart import step_chart
from lockstep.wings.follow.following import Followed, Following, recorded_as
from lockstep.wings.follow.loss_floors import loss_floors
from lockstep.wings.follow.loss_following import follow_losses, recorded_when_parted
from lockstep.wings.follow.loss_words import (
    losses_code,
    losses_text,
    losses_values,
    next_commands,
)


class _Command(TrainingCommand):
    usage = "REFERENCE -- COMMAND..."


@runs_elsewhere(writes=("--output",))
@click.command(cls=_Command)
@click.argument("reference", type=click.Path(path_type=Path))
@options.option("--output", default=Path("followed"), words="The recording of the candidate.")
@options.inputs_of
@options.option("--save", words="[default: sketch, or stats if the reference has no more]")
@options.option("--calibration")
@options.option("--mapping")
@options.form
@click.option(
    "--loss-only", is_flag=True,
    help="Compare only the losses, at almost no cost; when they differ, record the next step with whole tensors.",
)  # fmt: skip
@options.allow_crash
@click.option("--go-on", is_flag=True, help="Train on to the end after the first origin.")
@options.force
@options.as_json
def follow(
    reference: Path,
    output: Path,
    inputs_of: Path | None,
    save: str | None,
    calibration: Path | None,
    mapping: Path | None,
    form: str,
    loss_only: bool,
    allow_crash: bool,
    go_on: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Train a candidate and compare each step with a recorded REFERENCE as it ends; stop at the first origin.

    Lockstep records the training as the reference was recorded, with sketches: megabytes a step. At
    the first operator that leaves the reference beyond noise, it ends the training and prints the
    answer of `compare`. It keeps one more step with that operator's whole tensors, for `replay`.

    With --inputs-of, each module is judged by itself, so the training goes on after an origin.

    --loss-only is for faults that show after hours: the training runs almost bare, and only losses
    are compared. When a loss is off by more than its floor, Lockstep records the next step whole
    and ends the training.

    Exit code as `compare`: 0 if they agree, 1 if they differ, 2 if they cannot be compared or the
    training failed.

    \b
    lockstep follow ref -- python train.py --device npu
    lockstep follow ref --loss-only --calibration cal -- python train.py
    lockstep follow ref --go-on -o cand -- torchrun --nproc_per_node 2 train.py
    """
    command = training_command()
    if not command:
        raise UsageError("give the training's command after --")
    if mapping is not None:
        NameMapping.read(mapping)  # it is needed after the first step; a wrong one is told before
    if loss_only and inputs_of is not None:
        raise UsageError("--loss-only records no module; leave out --inputs-of")
    ways = _Ways(
        open_recording(reference, form=form),
        output,
        calibration,
        mapping,
        allow_crash,
        go_on or inputs_of is not None,
        force,
        as_json,
        recording_at(inputs_of),
    )
    if loss_only:
        return _follow_losses(command, save, ways)
    return _follow_steps(command, save, ways)


@dataclass(frozen=True, slots=True)
class _Ways:
    """What both ways to follow take."""

    reference: Recording
    output: Path
    calibration: Path | None
    mapping: Path | None
    allow_crash: bool
    go_on: bool
    force: bool
    as_json: bool
    inputs_of: str = ""


def _follow_losses(command: Sequence[str], save: str | None, ways: _Ways) -> int:
    calibration = None if ways.calibration is None else open_recording(ways.calibration)
    floors = loss_floors(ways.reference, calibration)
    options = recorded_when_parted(ways.reference.manifest.options, save, go_on=ways.go_on)
    followed = follow_losses(
        floors, command, ways.output, options, tell, force=ways.force,
        **_own_streams(as_json=ways.as_json),
    )  # fmt: skip
    found = None
    if followed.recorded is not None and _holds(ways.reference, followed.step):
        known = ways.calibration if calibration and _holds(calibration, followed.step) else None
        found = compare_recordings(
            ways.reference, followed.recorded, calibration=known, mapping=ways.mapping,
            steps=[followed.step or 0], allow_crash=ways.allow_crash,
        )  # fmt: skip
    if ways.as_json:
        compared = None if found is None else comparison_json(found)
        values = {**losses_values(followed, floors), "comparison": compared}
        click.echo(json_text(enveloped(values)))
    else:
        for words in losses_text(followed, floors):
            click.echo(words)
        if found is not None:
            click.echo(
                f"step {followed.step} is recorded whole in {ways.output}; compared with the reference's:"
            )
            print_comparison(found)
        elif followed.parted is not None:
            for words in next_commands(followed, ways.reference):
                click.echo(words)
    return losses_code(followed, floors, allow_crash=ways.allow_crash)


def _own_streams(*, as_json: bool) -> dict[str, Any]:
    """Where the command's output goes: not among JSON."""
    return {"stdout": sys.stderr} if as_json else {}


def _holds(recording: Recording, step: int | None) -> bool:
    return any(step in rank.complete_steps for rank in recording.ranks.values())


def _follow_steps(command: Sequence[str], save: str | None, ways: _Ways) -> int:
    recorded = ways.reference

    def told(step: SteppedTo) -> None:
        if step.origins:
            origin = step.origins[0]
            where = f"{origin.module or '(model)'} / {origin.op}"
            say(printable(f"step {step.number}: {where} leaves the reference ({origin.source})"))

    comparison = GrowingComparison(recorded, calibration=ways.calibration, mapping=ways.mapping)
    following = Following(comparison, ways.output.absolute(), told, stops=not ways.go_on)
    how = replace(recorded_as(recorded.manifest.options, save), inputs_of=ways.inputs_of)
    ended = following.run(
        command, how, tell, force=ways.force,
        **_own_streams(as_json=ways.as_json),
    )  # fmt: skip
    if ended.why_nothing:
        say(f"nothing was recorded: {ended.why_nothing}")
        return ExitCode.FAILED
    followed = following.followed
    found = compare_recordings(
        recorded, ways.output, calibration=ways.calibration, mapping=ways.mapping,
        steps=followed.at_the_end, allow_crash=ways.allow_crash,
    ).unless(_cut_short(followed, 0 if ways.allow_crash else ended.code))  # fmt: skip
    if ways.as_json:
        click.echo(render_json(found))
    else:
        click.echo(step_chart(followed.steps))
        print_comparison(found)
        if followed.why_not:
            click.echo(f"steps were not compared as they came: {followed.why_not}")
        if followed.stopped_at is not None:
            click.echo(f"the training was asked to end after step {followed.stopped_at}")
    if followed.stopped_at is not None:
        click.echo(_kept(followed.origin_kept), err=ways.as_json)
    return found.exit_code()


def _kept(origin: Recording | None) -> str:
    """Where the first origin's tensors are."""
    if origin is None:
        return "no further step could be recorded, so the origin's tensors are not kept"
    path = os.path.relpath(origin.path)
    command = shell_line(["lockstep", "replay", path, "--whole"])
    step = origin.manifest.options.steps
    return (
        f"of step {step}, its last, the tensors of the first origin are whole in {path}: {command}"
    )


def _cut_short(followed: Followed, code: int) -> str:
    """Why what was compared is not the whole training, or "": it failed, or was ended for what is noise after all."""
    if followed.stopped_at is not None:
        return (
            f"the training was asked to end after step {followed.stopped_at} for a difference that the whole comparison"
            " explains as noise; what would have come next is not known: follow with --go-on"
        )
    return f"the command ended with exit code {code}" if code else ""
