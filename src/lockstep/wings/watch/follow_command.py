"""`lockstep follow`: train the candidate while comparing each step with a recorded reference."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli import options
from lockstep.cli.notices import say, tell
from lockstep.cli.training_behind import TrainingBehind, training_command
from lockstep.comparison import GrowingComparison, SteppedTo, compare_recordings
from lockstep.core.errors import UsageError
from lockstep.core.exit_codes import ExitCode
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.text import printable
from lockstep.report.comparison.json import render_json
from lockstep.report.comparison.screen import print_comparison
from lockstep.store.reader import open_recording
from lockstep.wings.watch.chart import step_chart
from lockstep.wings.watch.following import Following, recorded_as
from lockstep.wings.watch.places import own_streams


class _Command(TrainingBehind):
    usage = "REFERENCE -- COMMAND..."


@click.command(cls=_Command)
@click.argument("reference", type=click.Path(path_type=Path))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default="followed", show_default=True,
    help="The recording of the candidate.",
)  # fmt: skip
@click.option(
    "--save", type=click.Choice(["stats", "sketch", "tensors"]),
    help="What is kept of each tensor.  [default: sketch, or stats where the reference has no more]",
)  # fmt: skip
@click.option(
    "--calibration", type=click.Path(path_type=Path),
    help="Tolerances from this `lockstep record --calibrate` of the reference.",
)  # fmt: skip
@click.option(
    "--mapping", type=click.Path(path_type=Path),
    help="YAML file with names that the two runs use for the same thing.",
)  # fmt: skip
@click.option("--go-on", is_flag=True, help="Do not end the training at the first origin.")
@options.force
@options.as_json
def follow(
    reference: Path,
    output: Path,
    save: str | None,
    calibration: Path | None,
    mapping: Path | None,
    go_on: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Train a candidate and compare each step with a recorded REFERENCE as it ends; stop at the first origin.

    The training is recorded as the reference was, with sketches: megabytes a step. At the first operator that leaves
    the reference beyond noise it is asked to end, and what is printed is what `compare` says of the steps so far.

    Exit code as of `compare`: 0 if they agree, 1 if they differ, 2 if they cannot be compared or the training failed.

    \b
    lockstep follow ref -- python train.py --device npu
    lockstep follow ref --go-on -o cand -- torchrun --nproc_per_node 2 train.py
    """
    command = training_command()
    if not command:
        raise UsageError("give the training's command behind --")
    recorded = open_recording(reference)

    def told(step: SteppedTo) -> None:
        if step.origins:
            origin = step.origins[0]
            where = f"{origin.module or '(model)'} / {origin.op}"
            say(printable(f"step {step.number}: {where} leaves the reference ({origin.source})"))

    comparison = GrowingComparison(recorded, calibration=calibration, mapping=mapping)
    following = Following(comparison, output.absolute(), told, stops=not go_on)
    ended = following.run(
        command, recorded_as(recorded.manifest.options, save), tell, force=force,
        **own_streams(as_json=as_json),
    )  # fmt: skip
    if ended.why_nothing:
        say(f"nothing was recorded: {ended.why_nothing}")
        return ExitCode.FAILED
    followed = following.followed
    found = compare_recordings(
        recorded, output, calibration=calibration, mapping=mapping,
        steps=followed.at_the_end,
    )  # fmt: skip
    if as_json:
        click.echo(render_json(found))
    else:
        click.echo(step_chart(followed.steps))
        print_comparison(found)
        if followed.why_not:
            click.echo(f"steps were not compared as they came: {followed.why_not}")
        if followed.stopped_at is not None:
            click.echo(
                f"the training was asked to end behind step {followed.stopped_at}{_for_nothing(found)}"
            )
    cut_short = ended.code or followed.stopped_at is not None
    code = found.exit_code()
    return ExitCode.FAILED if cut_short and code == ExitCode.AGREES else code


def _for_nothing(found: Comparison) -> str:
    """What is to be said where the whole comparison does not confirm what a training was ended for."""
    if found.verdict is not Verdict.AGREE:
        return ""
    return (
        " for a difference that the whole comparison explains as noise; what would have come behind is not known:"
        " follow with --go-on"
    )
