"""`lockstep report`: a page to open, of a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from lockstep.cli import comparing, options
from lockstep.cli.progress_bar import progress_bar
from lockstep.core.errors import ExitCode, OutputExistsError
from lockstep.report.output import check_output_file
from lockstep.report.page import Page, write_page
from lockstep.store.reader import open_recording
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.comparison_page import comparison_page
from lockstep.wings.report.recording_page import recording_page


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path), required=False)
@options.option("--output", default=Path("report.html"), words="A file.")
@comparing.options
@options.force
def report(
    reference: Path, candidate: Path | None, output: Path, force: bool, **manner: Any
) -> int:
    """Write an HTML page about two recordings compared, or about REFERENCE alone.

    The page is one file that needs no network. Of two recordings it shows the verdict with its
    evidence and the next command, where the runs part, every pair of tensors to sort and filter,
    and the worst ones closely. Of one recording it shows loss and norms over steps, the first
    batch, every module and tensor.

    Exit code as `lockstep compare`.

    \b
    lockstep report ref cand -o report.html
    lockstep report ref -o report.html
    lockstep report ref cand -o report.html --calibration ref.cal --force
    """
    if candidate is None:
        comparing.check_one(**manner)
        return _of_one(reference, output, "".join(manner["forms"][:1]), force=force)
    comparing.check_two(reference, candidate)
    check_output_file(output, force=force)
    found = comparing.compared(reference, candidate, **manner)
    with progress_bar(f"writing {output}"):
        _write(comparison_page(gather(*found)), output)
    click.echo(f"wrote {output}")
    return found.comparison.exit_code()


def _of_one(path: Path, output: Path, form: str, *, force: bool) -> int:
    check_output_file(output, force=force)
    recording = open_recording(path, form=form)
    with progress_bar(f"writing {output}"):
        _write(recording_page(recording), output)
    click.echo(f"wrote {output}")
    return ExitCode.AGREES


def _write(page: Page, output: Path) -> None:
    try:
        write_page(page, output)
    except OSError as error:
        raise OutputExistsError(
            f"{output}: cannot be written ({error.strerror or error}); give another name"
        ) from error
