"""`lockstep gate`: record a training and hold it against its golden, as a check of CI."""

from __future__ import annotations

import os
import time
from pathlib import Path

import click

from lockstep import options
from lockstep.compare import print_comparison, render_json
from lockstep.errors import OutputExistsError, UsageError
from lockstep.files import check_output_file, replacing
from lockstep.options import StepSelection, TrainingCommand, runs_elsewhere, training_command
from lockstep.terminal import say, tell
from lockstep_gate.gating import Gated, Update, gate_training
from lockstep_gate.github import add_summary, annotation_lines, is_github
from lockstep_gate.golden import open_golden
from lockstep_gate.junit import junit_xml, write_junit
from lockstep_gate.summary import as_markdown, as_text, sentences
from lockstep_gate.trainings import CommandTraining


class _Command(TrainingCommand):
    usage = "GOLDEN -- COMMAND..."


@runs_elsewhere(writes=("--output", "--junit", "--markdown"), stays=("--update",))
@click.command(cls=_Command)
@click.argument("golden", type=click.Path(path_type=Path))
@options.option(
    "--output", default=Path("gated"), words="The recording of this training, which is replaced."
)
@options.option("--steps", default="", words="For a new golden.  [default: 0:2]")
@click.option(
    "--update", is_flag=True, help="Make or replace the golden of this machine; needs --because."
)
@click.option(
    "--because",
    default="",
    metavar="TEXT",
    help="Keep this reason in the golden's history; for --update.",
)
@click.option(
    "--accept-fault", cls=options.Option, old=["--force"], is_flag=True,
    help="Replace the golden although the verdict is a fault.",
)  # fmt: skip
@click.option("--no-calibration", is_flag=True, help="Do not train twice for a new golden.")
@click.option(
    "--to-the-end", is_flag=True,
    help="Train a new golden to its end, and compare the end too. Without it, training stops after the last"
    " recorded step.",
)  # fmt: skip
@click.option("--junit", type=options.PATH_HERE, help="Write JUnit XML to this file.")
@click.option("--markdown", type=options.PATH_HERE, help="Write Markdown to this file.")
@click.option(
    "--github",
    is_flag=True,
    help="Print annotations of GitHub Actions; there, this is on by itself.",
)
@options.allow_crash
@options.as_json
def gate(
    golden: Path,
    output: Path,
    steps: str,
    update: bool,
    because: str,
    accept_fault: bool,
    no_calibration: bool,
    to_the_end: bool,
    junit: Path | None,
    markdown: Path | None,
    github: bool,
    allow_crash: bool,
    as_json: bool,
) -> int:
    """Record a training and compare it with GOLDEN, a small recording that you know is right.

    GOLDEN holds one recording for each kind of machine; Lockstep chooses the nearest. Only --update
    replaces it, and keeps your reason. A plain recording can stand for a golden.

    Exit code as `compare`: 0 if they agree, 1 if they differ, 2 if nothing can be said.

    \b
    lockstep gate golden --update --because "first golden" -- python train.py
    lockstep gate golden --junit numerics.xml -- python train.py
    """
    command = training_command()
    if not command:
        raise UsageError("give the training's command after --")
    if steps:
        StepSelection.parse(steps)
    change = _update(
        update=update, because=because, accept_fault=accept_fault, calibrates=not no_calibration
    )
    for file in (junit, markdown):
        if file is not None:
            check_output_file(file, force=True)
    streams = {"stdout": 2} if as_json else {}
    began = time.monotonic()
    gated = gate_training(
        open_golden(golden), CommandTraining(command, tell, streams), output,
        steps=steps, ends_early=not to_the_end, update=change, allow_crash=allow_crash, say=say,
    )  # fmt: skip
    _show(gated, as_json=as_json)
    _write(gated, time.monotonic() - began, junit, markdown)
    if github or is_github(os.environ):
        for line in annotation_lines(gated):
            click.echo(line, err=as_json)
        add_summary(os.environ, as_markdown(gated))
    return gated.exit_code


def _update(*, update: bool, because: str, accept_fault: bool, calibrates: bool) -> Update | None:
    if not update:
        for given, name in ((because, "--because"), (accept_fault, "--accept-fault")):
            if given:
                raise UsageError(f"{name} goes with --update, which replaces the golden")
        return None
    if not because.strip():
        raise UsageError(
            "--update needs a reason, which is kept with the golden: --because 'new default of eps'"
        )
    return Update(because.strip(), accept_fault, calibrates)


def _show(gated: Gated, *, as_json: bool) -> None:
    if gated.comparison is not None:
        if as_json:
            click.echo(render_json(gated.comparison))
        else:
            print_comparison(gated.comparison)
    for sentence in sentences(gated):
        click.echo(sentence, err=as_json)


def _write(gated: Gated, seconds: float, junit: Path | None, markdown: Path | None) -> None:
    try:
        if junit is not None:
            write_junit(junit, junit_xml(gated, as_text(gated), seconds=seconds))
        if markdown is not None:
            with replacing(markdown) as aside:
                aside.write_text(as_markdown(gated), encoding="utf-8")
    except OSError as error:
        raise OutputExistsError(
            f"{error.filename or junit or markdown}: cannot be written ({error.strerror or error})"
        ) from error
