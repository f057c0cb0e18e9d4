"""`lockstep audit`: every operator of one training, without a reference."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep import options
from lockstep.errors import UsageError, code_of
from lockstep.launch import Ended
from lockstep.options import (
    RankSelection,
    StepSelection,
    TrainingCommand,
    parse_ranks,
    runs_elsewhere,
    training_command,
)
from lockstep.recordings import AT_BOUNDARY, Options, open_recording
from lockstep.terminal import json_text, no_progress, progress_bar
from lockstep_audit.auditor import Auditor, SiteChoice
from lockstep_audit.json import audit_json
from lockstep_audit.live import audit_command, own_streams
from lockstep_audit.recorded import audit_recording
from lockstep_audit.screen import render
from lockstep_audit.tally import Tally


class _Command(TrainingCommand):
    usage = "{RECORDING | -- COMMAND...}"


@runs_elsewhere()
@click.command(cls=_Command)
@click.argument("recording", type=click.Path(path_type=Path), required=False)
@options.option("--steps", default="0:", show_default=False, words="[default: all]")
@options.option("--every")
@options.option(
    "--budget", form=options.Share(),
    words="with a COMMAND, a share of the training's, as in 20%; steps beyond it are left out.",
)  # fmt: skip
@options.ranks
@options.option(
    "--only", multiple=True, old=["--ops"], words="A site as compare prints it works too."
)
@options.limit
@options.option("--format", "form", default="")
@options.as_json
@options.memory("Re-runs that need more are not judged.")
def audit(
    recording: Path | None,
    steps: str,
    every: int,
    budget: float | None,
    ranks: str,
    only: tuple[str, ...],
    limit: int,
    form: str,
    as_json: bool,
    memory_bytes: int,
) -> int:
    """Check every operator of a training alone, forward, backward and update, without a reference.

    Lockstep runs each operator again on its recorded inputs, in double precision and in its own
    dtype, and compares the recorded result. The floor of a result is the largest error of a correct
    kernel. An audit cannot find an operator that computes correctly but is the wrong one (another
    activation, another epsilon); `compare` can. The recording must hold whole tensors (`record
    --save tensors`).

    With a COMMAND, Lockstep runs that training and audits one step at a time; it keeps nothing. It
    counts the steps that pass while it looks at one.

    Exit code 0 if every result is within its floor, 1 if one is not, 2 if less than half of the
    results could be judged or the training failed.

    \b
    lockstep audit ref
    lockstep audit ref --only 'h.3.*' --steps 0:3
    lockstep audit --every 50 --budget 20% -- torchrun --nproc_per_node 2 train.py
    """
    chosen = StepSelection.parse(steps)
    parse_ranks(ranks) if training_command() else RankSelection.parse(ranks)
    command = training_command()
    if bool(command) == (recording is not None):
        raise UsageError("give either a recording, or a training's command after --")
    auditor = Auditor(SiteChoice(only), memory_bytes=memory_bytes)
    if recording is not None and budget is not None:
        raise UsageError(
            "--budget is a share of a training's time, and a recording takes none; give --steps, --every or --only to"
            " look at less of it"
        )
    if recording is not None:
        chosen = StepSelection.parse(options.thinned(steps, every))
        with progress_bar("auditing") as told:
            opened = open_recording(recording, form=form)
            audit_recording(auditor, opened, chosen, RankSelection.parse(ranks), told)
        return _conclude(auditor.tally, limit=limit, as_json=as_json)
    settings = Options(
        steps=options.thinned(steps, every), ranks=ranks, save="tensors", only=list(only),
        memory_bytes=memory_bytes,
    )  # fmt: skip
    ended = audit_command(
        auditor, command, settings, budget=budget, told=no_progress, **own_streams(as_json=as_json)
    )
    return _conclude(auditor.tally, limit=limit, as_json=as_json, ended=ended)


_INSIDE = "`lockstep record --compile-eager --save tensors` records the inside of compiled code; audit that recording"


def _conclude(tally: Tally, *, limit: int, as_json: bool, ended: Ended | None = None) -> int:
    failed = ended is not None and ended.code != 0
    if as_json:
        code = None if ended is None else ended.code
        click.echo(json_text(audit_json(tally, code)))
    else:
        click.echo(render(tally, limit=limit).plain)
        if any(reason == AT_BOUNDARY for _, reason in tally.not_judged):
            click.echo(_INSIDE)
        if ended is not None and ended.why_nothing:
            click.echo(f"nothing was recorded: {ended.why_nothing}")
        if ended is not None and failed:
            click.echo(f"the training ended with exit code {ended.code}")
    return code_of(differs=bool(tally.beyond), looked=not (tally.too_little or failed))
