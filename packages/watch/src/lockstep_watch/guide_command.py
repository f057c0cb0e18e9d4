"""`lockstep guide`: list what to check, in order, if a training goes wrong."""

from __future__ import annotations

import dataclasses

import click

from lockstep import options
from lockstep.terminal import enveloped, json_text
from lockstep_watch.symptoms import overview, symptom_called, symptoms, told

_WIDTH = 100


@click.command
@click.argument("symptom", nargs=-1)
@options.as_json
def guide(symptom: tuple[str, ...], as_json: bool) -> int:
    """List what to check, in order and by which command, if a training goes wrong.

    Without a SYMPTOM, Lockstep lists the symptoms: the loss runs away, does not fall, differs after
    an upgrade, and so on. You give a SYMPTOM by its name, or in words of your own.

    \b
    lockstep guide
    lockstep guide runs-away
    lockstep guide loss is stuck
    """
    chosen = [symptom_called(" ".join(symptom))] if symptom else symptoms()
    if as_json:
        values = {"symptoms": [dataclasses.asdict(one) for one in chosen]}
        click.echo(json_text(enveloped(values)))
    elif not symptom:
        click.echo(overview(chosen))
    else:
        click.echo(told(chosen[0], width=_WIDTH))
    return 0
