"""`lockstep guide`: what to check, in order, when a training is not what it should be."""

from __future__ import annotations

import dataclasses

import click

from lockstep.cli import options
from lockstep.report.json_text import enveloped, json_text
from lockstep.wings.watch.symptoms import overview, symptom_called, symptoms, told

_WIDTH = 100


@click.command
@click.argument("symptom", required=False)
@options.as_json
def guide(symptom: str | None, as_json: bool) -> int:
    """Say what to check, in order and by which command, when a training is not what it should be.

    Without a SYMPTOM those are listed that there are: the loss runs away, does not fall, differs after an upgrade, and
    so on. A SYMPTOM is given by its name, or by words of it.

    \b
    lockstep guide
    lockstep guide runs-away
    lockstep guide frozen
    """
    chosen = symptoms() if symptom is None else [symptom_called(symptom)]
    if as_json:
        values = {"symptoms": [dataclasses.asdict(one) for one in chosen]}
        click.echo(json_text(enveloped(values)))
    elif symptom is None:
        click.echo(overview(chosen))
    else:
        click.echo(told(chosen[0], width=_WIDTH))
    return 0
