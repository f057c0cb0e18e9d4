"""`lockstep weights`: whether two processes, or two checkpoints, hold the same weights."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep import options
from lockstep.errors import UsageError
from lockstep.options import PATH, StepSelection, form_of_each
from lockstep.terminal import json_text
from lockstep_sampling.weights.sentences import json_of, text_of
from lockstep_sampling.weights.sources import open_side
from lockstep_sampling.weights.verdict import judge


@click.command()
@click.argument("reference", type=PATH)
@click.argument("candidate", type=PATH)
@click.option("--note", default="", metavar="NAME", help="Take the notes of this name.")
@options.option("--steps", default="", words="[default: all that both have]")
@options.forms
@options.limit
@options.as_json
def weights(
    reference: Path,
    candidate: Path,
    note: str,
    steps: str,
    forms: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> int:
    """Compare weights tensor by tensor: a trainer's and its sampler's after a sync, or two checkpoints.

    REFERENCE and CANDIDATE are notes of `lockstep.weights(model, name, step=...)` (a folder, or the
    recording that they lie in), a safetensors or torch checkpoint (a file, or a folder with its
    index), or a recording. Names of wrappers do not matter; fused, split and transposed weights are
    told by their contents.

    It says "equal" only where digests prove it; "equal after a cast" where the reference, rounded to
    that dtype, is equal bit by bit. Weights that differ are named, with the older step that they
    are equal to.

    Exit code 0 if all weights are equal, 1 if some differ or are missing, 2 if some were not judged.

    \b
    lockstep weights trainer engine
    lockstep weights checkpoints/step-40 engine --steps 40
    """
    if reference.exists() and candidate.exists() and reference.samefile(candidate):
        raise UsageError(f"{reference}: reference and candidate are the same; give two")
    chosen = StepSelection.parse(steps) if steps else None
    ours, theirs = form_of_each(forms)
    sides = open_side(reference, note, ours), open_side(candidate, note, theirs)
    judgement = judge(*sides, chosen)
    click.echo(json_text(json_of(judgement)) if as_json else text_of(judgement, limit=limit))
    return judgement.exit_code
