"""`lockstep convert`: what another tool wrote as a recording, a recording as files for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from lockstep.cli import options
from lockstep.core.errors import NotARecordingError, UsageError
from lockstep.core.exit_codes import ExitCode
from lockstep.store.directory import is_recording
from lockstep.store.other_tools import convert as convert_to_recording
from lockstep.store.reader import open_recording
from lockstep.wings.interop.written_files import Written, write_files

_FORMS = ("npy", "npz", "safetensors", "h5", "txt")
_MOST_LINES = 5


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@options.option("--output", required=True, words="A folder.")
@click.option(
    "--as", "to", cls=options.Option, old=["--to"], type=click.Choice(_FORMS),
    help="Write tensors as files of this kind, not as a recording.",
)  # fmt: skip
@options.form
@options.force
def convert(source: Path, output: Path, to: str | None, form: str, force: bool) -> int:
    """Turn a dump of another tool into a recording, or the tensors of a recording into files.

    SOURCE is a recording, or a dump that `lockstep show` reads. If the dump lacks something, the
    recording says so.

    With --as you get a .npy for each tensor, or a file for each step of a rank, with names
    RANK/stepN/MOMENT/MODULE/OPERATOR#CALL/ROLE.NAME. Every verb reads them again, except .txt. A
    .safetensors file keeps each dtype; other formats hold bfloat16 and float8 as float32, which is
    exact.

    \b
    lockstep convert dump -o dump.rec
    lockstep convert ref -o arrays --as npy
    """
    if to is not None:
        written = write_files(open_recording(source, form=form), output, to)
        if not written.tensors:
            raise UsageError(
                f"{source}: none of its tensors was saved whole; record with --save tensors"
            )
        click.echo(_told(written, output))
        return ExitCode.AGREES
    if is_recording(source):
        raise UsageError(f"{source}: is a recording already; say with --as what to write")
    if not source.exists():
        raise NotARecordingError(source, "no such file or directory", advice="give the dump's path")
    if not convert_to_recording(source, output, form, force=force):
        raise NotARecordingError(
            source, "is in no form that Lockstep reads", advice="name its form with --format"
        )
    recording = open_recording(output)
    count = sum(rank.record_count for rank in recording.ranks.values())
    click.echo(f"{count} tensors of {len(recording.ranks)} ranks in {output}")
    return ExitCode.AGREES


def _told(written: Written, output: Path) -> str:
    lines = [f"{written.tensors} tensors in {output}"]
    lines += [f"not saved whole: {name}" for name in written.missing[:_MOST_LINES]]
    more = len(written.missing) - _MOST_LINES
    return "\n".join(lines + ([f"and {more} more"] if more > 0 else []))
