"""`lockstep audit`: every operator of one training, without a reference."""

from __future__ import annotations

import json
from pathlib import Path

import click

from lockstep.cli.progress import progress_bar
from lockstep.core.manifest import MEMORY_BYTES
from lockstep.core.selection import StepSelection
from lockstep.wings.audit.auditor import Auditor, SiteChoice
from lockstep.wings.audit.json import as_json
from lockstep.wings.audit.recorded import audit_recording
from lockstep.wings.audit.screen import render
from lockstep.wings.audit.tally import Tally


@click.command()
@click.argument("recording", type=click.Path(path_type=Path))
@click.option("--steps", default="0:", help="Steps to audit: 0, 0:3, 10,20.  [default: all]")
@click.option("--rank", help="This rank only, as in rank0.")
@click.option(
    "--only", multiple=True, metavar="PATTERN", help="Only these module paths or operators."
)
@click.option("--ops", multiple=True, metavar="PATTERN", help="Only these operators.")
@click.option(
    "--limit", type=click.IntRange(min=1), default=10, show_default=True,
    help="Print at most so many results.",
)  # fmt: skip
@click.option("--json", "as_json_", is_flag=True, help="Print as JSON.")
@click.option(
    "--memory-bytes", type=click.IntRange(min=1 << 20), default=MEMORY_BYTES, show_default="1 GB",
    help="Memory that re-runs may take; what takes more is not judged.",
)  # fmt: skip
def audit(
    recording: Path,
    steps: str,
    rank: str | None,
    only: tuple[str, ...],
    ops: tuple[str, ...],
    limit: int,
    as_json_: bool,
    memory_bytes: int,
) -> int:
    """Check every operator of a recording alone, forward, backward and update, without a reference run.

    Each is run again on its own recorded inputs, in double precision and in its own dtype, and what was recorded is
    held against that. Its floor is what a sound kernel may be off. An operator that is sound by itself but was not
    the one to call (another activation, another epsilon) is none that this finds; `compare` does. The recording must
    hold whole tensors (`record --save tensors`).

    Exit code 0 if nothing is beyond its floor, 1 if something is, 2 if nothing could be judged.

    \b
    lockstep audit ref
    lockstep audit ref --only 'h.3.*' --steps 0:3
    """
    auditor = Auditor(SiteChoice(only, ops), memory_bytes=memory_bytes)
    with progress_bar("auditing") as told:
        audit_recording(auditor, recording, StepSelection.parse(steps), rank, told)
    return _conclude(auditor.tally, limit=limit, as_json_=as_json_)


def _conclude(tally: Tally, *, limit: int, as_json_: bool) -> int:
    if as_json_:
        click.echo(json.dumps(as_json(tally), indent=1, allow_nan=False))
    else:
        click.echo(render(tally, limit=limit).plain)
    if not tally.judged:
        return 2
    return int(bool(tally.beyond))
