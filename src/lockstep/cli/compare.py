"""Compare two recordings and name the operator at fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import click

from lockstep.cli import options
from lockstep.cli.progress_bar import progress_bar
from lockstep.comparison import Rule, compare_recordings, read_indices
from lockstep.core.errors import OutputExistsError, UsageError
from lockstep.core.finding import Comparison
from lockstep.core.selection import StepSelection
from lockstep.kernels.jit import load_without_blas
from lockstep.measure.passes import prepare
from lockstep.plugins import report_writers
from lockstep.report.comparison.json import render_json
from lockstep.report.comparison.screen import print_comparison
from lockstep.report.output import check_output_file
from lockstep.store.reader import Recording, open_recording

_RULES = {"error-model": Rule.ERROR_MODEL, "fixed": Rule.FIXED}


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write every report format into this directory.",
)
@options.as_json
@click.option(
    "--rule",
    type=click.Choice(list(_RULES)),
    default="error-model",
    show_default=True,
    help="How to judge.",
)
@click.option(
    "--calibration",
    type=click.Path(path_type=Path),
    help="Tolerances from this `lockstep record --calibrate` of the reference.",
)
@click.option(
    "--noise",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Another recording of the reference's training, for its noise; may be repeated.",
)
@click.option(
    "--mapping",
    type=click.Path(path_type=Path),
    help="YAML file with names that the two runs use for the same thing.",
)
@click.option("--csv", type=click.Path(path_type=Path), help="Write every pair to this CSV file.")
@click.option("--xlsx", type=click.Path(path_type=Path), help="Write every pair to this XLSX file.")
@click.option("--all", "show_all", is_flag=True, help="Print the table of all pairs.")
@click.option(
    "--cosine", type=click.FloatRange(-1, 1), help="List the pairs below this cosine, lowest first."
)
@options.limit("List at most so many pairs.", default=None)
@click.option("--steps", default="", help="Compare these steps only: 0, 0:3, 10,20.")
@options.memory_bytes(
    "Memory that comparing may take; operators that take more to re-run are judged without."
)
@click.option(
    "--no-rerun", is_flag=True, help="Run no operator again: for recordings from strangers."
)
@click.option(
    "--strict", is_flag=True, help="Exit with 1 where another precision throughout is all, too."
)
@click.option("--force", is_flag=True, help="Replace report files that are there.")
def compare(
    reference: Path,
    candidate: Path,
    output: Path | None,
    as_json: bool,
    rule: str,
    calibration: Path | None,
    noise: tuple[Path, ...],
    mapping: Path | None,
    csv: Path | None,
    xlsx: Path | None,
    show_all: bool,
    cosine: float | None,
    limit: int | None,
    steps: str,
    memory_bytes: int,
    no_rerun: bool,
    strict: bool,
    force: bool,
) -> int:
    """Compare two recordings and name the first operator where CANDIDATE leaves REFERENCE.

    Exit code 0 if they agree, 1 if they differ, 2 if they cannot be compared. Another precision
    throughout, with no operator at fault, is 0, and 1 with --strict. What the two were set up with
    otherwise (`set-up: threads 2 / 1`) and calls that only one of them makes are printed too.

    \b
    lockstep compare ref cand
    lockstep compare ref cand --csv pairs.csv --xlsx pairs.xlsx
    lockstep compare ref cand --cosine 0.98 --limit 10
    lockstep compare ref cand --calibration ref.cal --mapping names.yaml
    """
    if reference.exists() and candidate.exists() and reference.samefile(candidate):
        raise UsageError(
            f"{reference}: reference and candidate are the same recording; give two recordings"
        )
    plans = _plan_reports(output, {"csv": csv, "xlsx": xlsx}, force=force)
    recordings = open_recording(reference), open_recording(candidate)
    with progress_bar("comparing") as progress:
        read_indices(recordings, progress)
        chosen = _chosen_steps(recordings, steps) if steps else None
        _prepare(recordings)
        comparison = compare_recordings(
            *recordings,
            rule=_RULES[rule],
            calibration=_calibration(calibration) if calibration is not None else None,
            noise=[_noise(path, reference) for path in noise],
            mapping=mapping,
            steps=chosen,
            rerun=not no_rerun,
            memory_bytes=memory_bytes,
            progress=progress,
        )
    if as_json:
        click.echo(render_json(comparison))
    else:
        print_comparison(comparison, show_all=show_all, cosine=cosine, limit=limit)
    for path, write in plans:
        with progress_bar(f"writing {path}"):
            _write_report(comparison, path, write)
        click.echo(f"wrote {path}", err=as_json)
    return comparison.exit_code(strict=strict)


def _prepare(recordings: Sequence[Recording]) -> None:
    """Load what measures whole tensors, where both sides have some."""
    if all(any(rank.has_tensors for rank in one.ranks.values()) for one in recordings):
        load_without_blas()
        prepare()


def _chosen_steps(recordings: tuple[Recording, Recording], text: str) -> tuple[int, ...]:
    """The recorded steps among those that `--steps` asks for."""
    known = sorted(
        {
            step
            for recording in recordings
            for rank in recording.ranks.values()
            for step in rank.steps
        }
    )
    chosen = StepSelection.parse(text).numbers_in(known)
    if not chosen:
        raise UsageError(
            f"--steps {text}: not recorded; there are steps {', '.join(map(str, known)) or 'none'}"
        )
    return chosen


def _calibration(path: Path) -> Recording:
    recording = open_recording(path)
    if not recording.manifest.options.calibrate:
        raise UsageError(
            f"{path}: is no calibration; make one with lockstep record --calibrate, or give plain"
            " recordings of the reference with --noise"
        )
    return recording


def _noise(path: Path, reference: Path) -> Recording:
    recording = open_recording(path)
    if reference.exists() and path.samefile(reference):
        raise UsageError(
            f"{path}: --noise is the reference itself, which shows no noise; record the same"
            " training again"
        )
    return recording


Writer = Callable[[Comparison, Path], None]


def _plan_reports(
    output: Path | None, files: dict[str, Path | None], *, force: bool
) -> list[tuple[Path, Writer]]:
    """Decide where reports go, and check it before any work is done."""
    if output is None and not any(files.values()):
        return []
    writers = report_writers()
    plans = [(path, writers[name].write) for name, path in files.items() if path is not None]
    if output is not None:
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OutputExistsError(
                f"{output}: cannot be made ({error.strerror}); give another directory with -o"
            ) from error
        plans += [
            (output / f"comparison{writer.suffix}", writer.write) for writer in writers.values()
        ]
    for path, _ in plans:
        check_output_file(path, force=force)
    return plans


def _write_report(comparison: Comparison, path: Path, write: Writer) -> None:
    try:
        write(comparison, path)
    except OSError as error:
        raise OutputExistsError(
            f"{path}: cannot be written ({error.strerror or error}); give another name"
        ) from error
