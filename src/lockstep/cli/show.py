"""Show what is in a recording."""

from __future__ import annotations

import json
from pathlib import Path

import click

from lockstep.core.errors import UsageError
from lockstep.core.patterns import nearest_names
from lockstep.report.recording import (
    matching_calls,
    recording_json,
    render_calls,
    render_recording,
    site_names,
)
from lockstep.store.reader import open_recording


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("pattern", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option("--step", type=int, help="This step only.")
@click.option("--rank", help="This rank only, as in rank0.")
def show(
    directory: Path, pattern: str | None, as_json: bool, step: int | None, rank: str | None
) -> int:
    """Show what is in a recording: the set-up, steps, ranks, sizes, and what was not seen.

    Without PATTERN the sites follow as a tree; with one, the matching sites' records with statistics, call stack and
    arguments. PATTERN is a module path, a path above it, or an operator; `*` and `?` match as in a shell.

    \b
    lockstep show ref
    lockstep show ref 'h.3.*' --step 0
    """
    recording = open_recording(directory)
    if rank is not None and rank not in recording.ranks:
        raise UsageError(
            f"{directory}: has no {rank}; it has {', '.join(recording.ranks) or 'no rank at all'}"
        )
    if step is not None and all(step not in item.steps for item in recording.ranks.values()):
        known = sorted({number for item in recording.ranks.values() for number in item.steps})
        raise UsageError(
            f"{directory}: has no step {step}; it has {', '.join(map(str, known)) or 'none'}"
        )
    calls = None
    if pattern is not None:
        calls = matching_calls(recording, pattern, step=step, rank=rank)
        if not calls:
            near = nearest_names(pattern, site_names(recording))
            hint = f"; nearest: {', '.join(near)}" if near else ""
            raise UsageError(
                f"{directory}: pattern {pattern!r} matches no module and no operator{hint}"
            )
    if as_json:
        click.echo(
            json.dumps(
                recording_json(recording, calls, step=step, rank=rank), indent=1, allow_nan=False
            )
        )
    elif calls is not None:
        click.echo(render_calls(calls))
    else:
        click.echo(render_recording(recording, step=step, rank=rank))
    return 0
