"""`lockstep logprobs`: whether a trainer and its sampler give tokens the same probabilities."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep import options
from lockstep.errors import UsageError
from lockstep.options import PATH, opened_in
from lockstep.terminal import json_text
from lockstep_sampling.distributions.judging import judge
from lockstep_sampling.distributions.recordings import recorded_sequences
from lockstep_sampling.distributions.sentences import json_of, text_of
from lockstep_sampling.distributions.sequences import read_sequences


@click.command()
@click.argument("reference", type=PATH)
@click.argument("candidate", type=PATH)
@click.option(
    "--rounding", default="", metavar="DTYPE",
    help="Allow the rounding of scores in this dtype, as in bfloat16.  [default: as told, else float32]",
)  # fmt: skip
@click.option(
    "--layers", type=click.IntRange(min=0), default=None, metavar="N",
    help="Allow the rounding inside of a model of N layers.  [default: as recorded or told, else not judged]",
)  # fmt: skip
@options.forms
@options.limit
@options.as_json
def logprobs(
    reference: Path,
    candidate: Path,
    rounding: str,
    layers: int | None,
    forms: tuple[str, ...],
    limit: int,
    as_json: bool,
) -> int:
    """Compare the log-probabilities of tokens: a trainer's and its sampler's.

    REFERENCE and CANDIDATE are JSON lines, one sequence a line: "tokens", and "logprobs" with an
    entry for each token. An entry is the token's log-probability, a list of those of the whole
    vocabulary, an object of some by token id, or null for none. "id", "dtype" and "layers" are
    optional. Both may also be recordings with whole scores.

    Where they differ, Lockstep tries rules by computing them: a shift by one position, masked
    tokens, top-k and top-p, one temperature. It says a rule only if that leaves nothing but rounding.

    Exit code 0 if all agree, 1 if some differ, 2 if some could not be compared.

    \b
    lockstep logprobs trainer.jsonl engine.jsonl
    lockstep logprobs trainer.jsonl engine.jsonl --rounding bfloat16 --layers 28
    """
    if reference.exists() and candidate.exists() and reference.samefile(candidate):
        raise UsageError(f"{reference}: reference and candidate are the same; give two")
    if reference.is_file() and candidate.is_file() and not forms:
        sides = read_sequences(reference), read_sequences(candidate)
    else:
        one, other = opened_in(forms, reference, candidate)
        sides = recorded_sequences(one, other)
    judged = judge(*sides, rounding, layers)
    click.echo(json_text(json_of(judged)) if as_json else text_of(judged, limit=limit))
    return judged.exit_code
