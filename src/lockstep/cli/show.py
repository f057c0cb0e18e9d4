"""Show the contents of a recording."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli import options
from lockstep.core.errors import ExitCode
from lockstep.core.selection import RankSelection, StepSelection
from lockstep.reading.chosen_calls import calls_matching, check_choice
from lockstep.report.json_text import json_text
from lockstep.report.recording import recording_json, render_calls, render_recording
from lockstep.report.stored_recordings_list import render_stored_recordings, stored_recordings_json
from lockstep.store.reader import open_recording
from lockstep.store.storage import NoRecordingThereError
from lockstep.store.stored_recordings import recordings_below
from lockstep.store.urls import url_of


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("pattern", required=False)
@options.as_json
@options.option(
    "--steps", default="", old=["--step"], words="[default: all, and the tree of the first]"
)
@options.ranks
@options.form
def show(
    directory: Path,
    pattern: str | None,
    as_json: bool,
    steps: str,
    ranks: str,
    form: str,
) -> int:
    """Show the contents of a recording: set-up, steps, ranks, sizes, and the things that it could not see.

    Without PATTERN, Lockstep prints the sites as a tree. With one, it prints the tensors of the
    matching sites with statistics, call stack and arguments. PATTERN is a module path, a path above
    it, or an operator, with `*` and `?` as in a shell, or a site as `compare` prints it.

    Of an address in object storage with recordings below it, Lockstep lists them.

    \b
    lockstep show ref
    lockstep show s3://bucket/runs/
    lockstep show ref 'h.3.*' --steps 0
    """
    step = StepSelection.parse(steps) if steps else None
    rank = RankSelection.parse(ranks)
    try:
        recording = open_recording(directory, form=form)
    except NoRecordingThereError:
        below = recordings_below(url_of(directory))
        if not below or pattern is not None:
            raise
        values = stored_recordings_json(below)
        click.echo(json_text(values) if as_json else render_stored_recordings(below))
        return ExitCode.AGREES
    check_choice(recording, step=step, rank=rank)
    calls = None
    if pattern is not None:
        calls = calls_matching(recording, pattern, step=step, rank=rank)
    if as_json:
        click.echo(json_text(recording_json(recording, calls, step=step, rank=rank)))
    elif calls is not None:
        click.echo(render_calls(calls))
    else:
        click.echo(render_recording(recording, step=step, rank=rank))
    return ExitCode.AGREES
