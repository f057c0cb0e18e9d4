"""Options that several verbs of this wing take, each with one meaning."""

from __future__ import annotations

from collections.abc import Sequence

import click

from lockstep.core.errors import UsageError


def entries_of(given: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Entries of the runtime's configuration, of texts such as `session.set_denormal_as_zero=1`.

    Raises
    ------
    UsageError
        If one is no such text.
    """
    for one in given:
        if "=" not in one:
            raise UsageError(f"--set {one}: give KEY=VALUE, as in session.set_denormal_as_zero=1")
    parted = (one.partition("=") for one in given)
    return tuple((key, value) for key, _, value in parted)


inputs = click.option(
    "--inputs",
    multiple=True,
    metavar="FILE|SPEC",
    help="What the model is given: .npz, .npy, .safetensors, or a text such as x:float32[1,3,32,32] or"
    " ids:int64[2,16]<1000; may be repeated.",
)
seed = click.option(
    "--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Of drawn inputs."
)
entries = click.option(
    "--set",
    "entries",
    multiple=True,
    metavar="KEY=VALUE",
    callback=lambda context, parameter, given: entries_of(given),
    help="An entry of the runtime's session configuration; may be repeated.",
)
threads = click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of an operator."
)
