"""Options that several verbs of this wing take, each with one meaning."""

from __future__ import annotations

import click

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
threads = click.option(
    "--threads", type=click.IntRange(min=1), default=1, show_default=True, help="Of an operator."
)
