"""The commands of precision_tool's prompt, and what to use in place of those that are missing here."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.errors import UsageError
from lockstep_shell import places
from lockstep_shell.comparing import compare, list_pairs
from lockstep_shell.histogram import hist
from lockstep_shell.looking import show_site
from lockstep_shell.overflow import overflow
from lockstep_shell.session import Session

_RECORD = "record it in another terminal: lockstep record -o DIR -- COMMAND"

INSTEAD = {
    "cp": "`list SITE` tells how far apart the tensors of a site are, `hist SITE` draws both",
    "dc": "tensors need no conversion; `export SITE -o FILE` writes them as .npz, .txt, .h5 or .safetensors",
    "run": "this prompt starts no programs; use another terminal",
    "npu_run": _RECORD,
    "tf_run": _RECORD,
    "npu_dump": _RECORD,
    "tf_dump": _RECORD,
    "npu_overflow": "run it in another terminal: lockstep overflow -- COMMAND",
    "train": _RECORD,
    "fusion": "record it again with --compile-eager, and compare both: what then agrees was made by the compiler",
}


@click.command("ac", hidden=True)
@click.option("-c", "whole", is_flag=True, help="Compare the whole network.")
@click.option("-l", "limit", type=click.IntRange(min=1), default=10, show_default=True)
@click.pass_context
def check_automatically(context: click.Context, whole: bool, limit: int) -> int:
    """`overflow`, and with -c `compare`."""
    context.invoke(overflow, limit=limit)
    return int(context.invoke(compare)) if whole else 0


@click.command("vc", hidden=True)
@click.option("-lt", "left", type=click.Path(path_type=Path), help="The reference.")
@click.option("-rt", "right", type=click.Path(path_type=Path), help="The candidate.")
@click.pass_context
def compare_vectors(context: click.Context, left: Path | None, right: Path | None) -> int:
    """`compare`; with -lt and -rt of other recordings, which are opened."""
    if (left is None) != (right is None):
        raise UsageError("give both, -lt REFERENCE -rt CANDIDATE, or neither")
    if left is not None and right is not None:
        context.ensure_object(Session).open(left, right)
    return int(context.invoke(compare))


@click.command("vcs", hidden=True)
@click.option("-c", "cosine", type=click.FloatRange(-1, 1), default=0.98, show_default=True)
@click.option("-l", "limit", type=click.IntRange(min=1), default=10, show_default=True)
@click.pass_context
def list_vectors(context: click.Context, cosine: float, limit: int) -> None:
    """`list --cosine C --limit L`."""
    context.invoke(list_pairs, cosine=cosine, limit=limit)


@click.command("ni", hidden=True)
@click.option("-n", "named", is_flag=True, help="Is left out as well.")
@places.argument()
@click.pass_context
def node_information(context: click.Context, named: bool, site: tuple[str, ...]) -> None:
    """`show SITE`."""
    context.invoke(show_site, site=site)


@click.command("pt", hidden=True)
@click.option("-n", "named", is_flag=True, help="Is left out as well.")
@places.argument()
@click.pass_context
def print_tensor(context: click.Context, named: bool, site: tuple[str, ...]) -> None:
    """`hist SITE`."""
    context.invoke(hist, site=site)


KNOWN = (check_automatically, compare_vectors, list_vectors, node_information, print_tensor)
