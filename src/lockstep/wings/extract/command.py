"""`lockstep extract`: one site's tensors as .safetensors, .npz, .h5 or .txt."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli import options
from lockstep.core.errors import ExitCode, OutputExistsError
from lockstep.core.replacement import replacing
from lockstep.core.selection import RankSelection, StepSelection
from lockstep.report.output import check_output_file
from lockstep.store.named_files import writer_for
from lockstep.store.reader import open_recording
from lockstep.wings.extract.site_tensors import Chosen, choose

_MOST_LINES = 20


@click.command()
@click.argument("recording", type=click.Path(path_type=Path))
@click.argument("pattern")
@options.option("--output", required=True, words="A file: .safetensors, .npz, .h5 or .txt.")
@options.option("--steps", default="", old=["--step"], words="[default: all]")
@options.ranks
@options.form
@options.force
def extract(
    recording: Path,
    pattern: str,
    output: Path,
    steps: str,
    ranks: str,
    form: str,
    force: bool,
) -> int:
    """Write the tensors of one site to a file: inputs, outputs, gradients, parameters.

    PATTERN is a module path, a path above it, or an operator, with `*` and `?` as in a shell, or a
    site as `compare` prints it. Each tensor is named RANK/stepN/MODULE/OPERATOR#CALL/ROLE.NAME.

    A .safetensors file keeps each dtype; other formats hold bfloat16 and float8 as float32, which
    is exact. The recording must hold whole tensors (`record --save tensors`). An .h5 file needs
    h5py.

    \b
    lockstep extract ref h.3.mlp.act -o act.safetensors
    lockstep extract cand 'h.3.mlp / torch.nn.functional.linear #0' --steps 0 -o linear.npz
    """
    write = writer_for(output)
    check_output_file(output, force=force)
    step = StepSelection.parse(steps) if steps else None
    opened = open_recording(recording, form=form)
    chosen = choose(opened, pattern, step=step, rank=RankSelection.parse(ranks))
    try:
        with replacing(output) as aside:
            write(aside, chosen.tensors)
    except OSError as error:
        raise OutputExistsError(
            f"{output}: cannot be written ({error.strerror or error}); give another place"
        ) from error
    click.echo(_told(chosen, output))
    return ExitCode.AGREES


def _told(chosen: Chosen, output: Path) -> str:
    tensors = chosen.tensors
    lines = [f"{tensor.name}  {tensor.dtype} {list(tensor.shape)}" for tensor in tensors]
    total = len(tensors) + len(chosen.missing)
    kept = f"{len(tensors)} of {total} tensors of {chosen.calls} calls in {output}"
    missing = [f"not saved whole: {name}" for name in chosen.missing]
    return "\n".join([*_first(lines), kept, *_first(missing)])


def _first(lines: list[str]) -> list[str]:
    """The first lines, and how many follow."""
    more = len(lines) - _MOST_LINES
    return [*lines[:_MOST_LINES], f"and {more} more"] if more > 1 else lines
