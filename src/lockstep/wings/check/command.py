"""`lockstep check`: two set-ups beside each other."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli import options
from lockstep.core.exit_codes import code_of
from lockstep.report.json_text import enveloped, json_text
from lockstep.wings.check.setups.checkup import checkup
from lockstep.wings.check.setups.screen import as_values, differs, render


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "--mapping", type=click.Path(path_type=Path), help="YAML file with names that only one run has."
)
@options.as_json
@options.limit("Print at most so many aspects that differ.", default=20)
def check(reference: Path, candidate: Path, mapping: Path | None, as_json: bool, limit: int) -> int:
    """Say in what the set-ups of two recorded trainings differ, and what each difference means for the numbers.

    Before anything is computed again: versions, switches, precision, seeds, initial weights, the first batches, modes,
    settings of modules, optimizers and their groups, clipping, accumulation, ranks and variables are held against each
    other, what matters most first; and the eight questions that come before any dump are answered. What a recording of
    an earlier build did not note is said to be unknown.

    Exit code 1: something differs that counts; 0: nothing does; 2: the two cannot be held against each other.

    \b
    lockstep check ref cand
    """
    answers = checkup(reference, candidate, mapping=mapping)
    if as_json:
        click.echo(json_text(enveloped(as_values(answers))))
    else:
        click.echo(render(answers, limit=limit).plain, nl=False)
    return code_of(differs=differs(answers), looked=True)
