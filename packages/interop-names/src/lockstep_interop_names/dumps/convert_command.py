"""`lockstep convert`: what another tool wrote as a recording, a recording as files for other tools."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import ExitCode, NotARecordingError, UsageError
from lockstep.files import fetched, url_of, written
from lockstep.recordings import convert as convert_to_recording
from lockstep.recordings import is_recording, is_recording_at, open_recording
from lockstep_interop_names.dumps.written_files import Written, write_files

_FORMS = ("npy", "npz", "safetensors", "h5", "txt")
_MOST_LINES = 5


@click.command()
@click.argument("source", type=click.Path(path_type=Path))
@options.option("--output", required=True, form=options.PATH, words="A folder.")
@click.option(
    "--as", "to", cls=options.Option, old=["--to"], type=click.Choice(_FORMS),
    help="Write tensors as files of this kind, not as a recording.",
)  # fmt: skip
@options.option("--format", "form", default="")
@options.force
def convert(source: Path, output: Path, to: str | None, form: str, force: bool) -> int:
    """Turn a dump of another tool into a recording, or the tensors of a recording into files.

    SOURCE is a recording, or a dump that `lockstep show` reads. If the dump lacks something, the
    recording says so.

    With --as you get a .npy for each tensor, or a file for each step of a rank, with names
    RANK/stepN/MOMENT/MODULE/OPERATOR#CALL/ROLE.NAME. Every verb reads them again, except .txt. A
    .safetensors file keeps each dtype; other formats hold bfloat16 and float8 as float32, which is
    exact. SOURCE and the folder may lie in object storage.

    \b
    lockstep convert dump -o dump.rec
    lockstep convert dump -o s3://bucket/dump
    lockstep convert ref -o arrays --as npy
    """
    with written(output, force=force and to is None) as place:
        if to is not None:
            told = _write_files(source, place, to, form, output)
        else:
            told = _write_recording(source, place, form, output, force=force)
    click.echo(told)  # all is there now
    return ExitCode.AGREES


def _write_files(source: Path, place: Path, to: str, form: str, output: Path) -> str:
    with _source(source) as here:
        done = write_files(open_recording(here, form=form), place, to)
    if not done.tensors:
        raise UsageError(
            f"{url_of(source) or source}: none of its tensors was saved whole; record with --save tensors"
        )
    return _told(done, output)


def _write_recording(source: Path, place: Path, form: str, output: Path, *, force: bool) -> str:
    with _source(source) as here:
        if here == source and (url_of(source) or is_recording(source)):
            raise UsageError(
                f"{url_of(source) or source}: is a recording already; say with --as what to write"
            )
        if not here.exists():
            raise NotARecordingError(
                here, "no such file or directory", advice="give the dump's path"
            )
        if not convert_to_recording(here, place, form, force=force, named=source):
            raise NotARecordingError(
                here, "is in no form that Lockstep reads", advice="name its form with --format"
            )
    recording = open_recording(place)
    count = sum(rank.record_count for rank in recording.ranks.values())
    return f"{count} tensors of {len(recording.ranks)} ranks in {url_of(output) or output}"


@contextmanager
def _source(source: Path) -> Iterator[Path]:
    """The source on this machine, fetched if it is a dump in object storage; a recording's URL stays one."""
    if url_of(source) and is_recording_at(source):
        yield source
        return
    with fetched(source) as here:
        yield here


def _told(done: Written, output: Path) -> str:
    lines = [f"{done.tensors} tensors in {url_of(output) or output}"]
    lines += [f"not saved whole: {name}" for name in done.missing[:_MOST_LINES]]
    more = len(done.missing) - _MOST_LINES
    return "\n".join(lines + ([f"and {more} more"] if more > 0 else []))
