"""`export`: the tensors of a site in a file, by the verb that does so."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep import options
from lockstep.errors import UsageError
from lockstep.plugin import verbs
from lockstep_shell import places
from lockstep_shell.session import Session


@click.command("export")
@places.argument()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), required=True,
    help="The file to write: .safetensors, .npz, .h5 or .txt.",
)  # fmt: skip
@options.force
@click.pass_context
def export(context: click.Context, site: tuple[str, ...], output: Path, force: bool) -> None:
    """Write the tensors of SITE to a file.

    Of two recordings it is the candidate's, or those of the side that `use` chose.
    """
    session = context.ensure_object(Session)
    one = session.chosen()[-1]
    if len(session.opened) > 1:
        click.echo(f"of the {one.name}")
    place, verb = places.place_of(site, session), verbs().get("extract")
    if verb is None:
        raise UsageError("the verb extract is not installed")
    context.invoke(
        verb.load(),
        recording=one.recording.path,
        pattern=place.pattern,
        output=output,
        steps="" if session.step is None else str(session.step),
        ranks=place.rank or session.rank or "",
        force=force,
    )
