"""`lockstep plot`: the charts of a page as pictures, and its numbers as TensorBoard event files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from lockstep.cli import comparing, options
from lockstep.cli.progress_bar import progress_bar
from lockstep.core.errors import ExitCode, OutputExistsError, UsageError
from lockstep.reading.recorded_series import (
    GRADIENT,
    PARAMETER,
    Series,
    losses_of,
    scalars_of,
    tensors_of,
)
from lockstep.report.output import check_output_file
from lockstep.report.page import Metric
from lockstep.report.tensorboard import check_run, load_tensorboard
from lockstep.store.reader import Recording, open_recording
from lockstep.wings.report import figures
from lockstep.wings.report.comparison_data import gather
from lockstep.wings.report.comparison_page import METRICS
from lockstep.wings.report.comparison_types import ComparisonData, Detail
from lockstep.wings.report.event_scalars import (
    Scalar,
    comparison_scalars,
    recording_scalars,
    run_folders,
    write_scalars,
)

_SIDES = ("reference", "candidate", "comparison")
"""Folders of event files: the runs that TensorBoard lists."""

Drawn = tuple[str, figures.Figure | None]


@click.command()
@click.argument("reference", type=click.Path(path_type=Path))
@click.argument("candidate", type=click.Path(path_type=Path), required=False)
@options.option("--output", words="A folder: the pictures.")
@click.option(
    "--picture",
    type=click.Choice(["png", "svg"]),
    default="png",
    show_default=True,
    help="Write pictures of this kind.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    type=click.Choice([one.column for one in METRICS]),
    help="Draw only this scatter plot. Repeatable.",
)
@options.option(
    "--tensorboard", "events", words="Losses and norms of each run, and the distance at each step."
)
@comparing.options
@options.force
def plot(
    reference: Path,
    candidate: Path | None,
    output: Path | None,
    picture: str,
    metrics: tuple[str, ...],
    events: Path | None,
    force: bool,
    **manner: Any,
) -> int:
    """Draw the charts of a comparison, or of REFERENCE alone, as PNG or SVG files.

    Of two recordings: each metric of all pairs in order of execution, where the runs part, and both
    histograms of the pair at fault. Of one: its loss and the norms of parameters and gradients over
    steps. Exit code as `lockstep compare`.

    Needs matplotlib; event files need tensorboard.

    \b
    lockstep plot ref cand -o plots
    lockstep plot ref cand -o plots --picture svg --metric margin
    lockstep plot ref -o plots
    lockstep plot ref cand --tensorboard runs
    """
    if output is None and events is None:
        raise UsageError("there is nothing to draw to; give a directory with -o or --tensorboard")
    if candidate is None:
        comparing.check_one(metric=metrics, **manner)
    if output is not None:
        figures.load_matplotlib()
    if events is not None:
        load_tensorboard()
    if candidate is None:
        alone = open_recording(reference, form="".join(manner["forms"][:1]))
        return _plot_one(alone, output, picture, events, force=force)
    comparing.check_two(reference, candidate)
    chosen = [one for one in METRICS if not metrics or one.column in metrics]
    if output is not None:
        for name in (*map(_scatter_name, chosen), "strip", "histogram", "heat-map"):
            _place(output, name, picture, force=force)
    if events is not None and not force:
        _check_events(events)
    found = comparing.compared(reference, candidate, **manner)
    data = gather(*found, details=1)
    if output is not None:
        _draw(_of_two(data, chosen), output, picture, force=force, without=_without(data))
    if events is not None:
        for side, recording in zip(_SIDES, (found.reference, found.candidate), strict=False):
            _write_events(recording_scalars(recording), recording.ranks, events / side, force=force)
        scalars = comparison_scalars(data.pairs)
        _write_events(scalars, data.pairs.rank.names, events / _SIDES[-1], force=force)
    return found.comparison.exit_code()


def _plot_one(
    recording: Recording, output: Path | None, picture: str, events: Path | None, *, force: bool
) -> int:
    if output is not None:
        _draw(_of_one(recording), output, picture, force=force)
    if events is not None:
        _write_events(recording_scalars(recording), recording.ranks, events, force=force)
    return ExitCode.AGREES


def _write_events(
    scalars: Iterable[Scalar], ranks: Iterable[str], folder: Path, *, force: bool
) -> None:
    try:
        for written in write_scalars(scalars, run_folders(folder, ranks), force=force):
            click.echo(f"wrote {written}")
    except OSError as error:
        raise OutputExistsError(
            f"{folder}: cannot be written to ({error.strerror or error}); give another directory"
        ) from error


def _check_events(events: Path) -> None:
    """Check before a comparison that nothing of what will be written is there."""
    for side in _SIDES:
        for folder in (events / side, *(events / side).glob("*")):
            check_run(folder, force=False)


def _of_two(data: ComparisonData, metrics: list[Metric]) -> Iterator[Drawn]:
    pairs = data.pairs
    for metric in metrics:
        yield _scatter_name(metric), figures.scatter_figure(pairs, metric)
    yield "strip", figures.strip_figure(pairs)
    detail = _worst(data)
    if detail is None:
        return
    row = detail.row
    where = f"{pairs.module[row] or '(model)'} / {pairs.operator[row]}, {pairs.role[row]}, step {pairs.step[row]}"
    yield "histogram", figures.histogram_figure(detail, where)
    yield "heat-map", figures.heat_map_figure(detail, where)


def _worst(data: ComparisonData) -> Detail | None:
    """The first origin of which there are pictures, else the pair furthest beyond its floor of which there are."""
    drawn = [one for one in data.details.values() if one.heat_map is not None]
    margin = data.pairs.margin
    others = sorted(drawn, key=lambda one: -np.nan_to_num(margin[one.row], nan=-1.0))
    origins = [one for row in data.origins for one in drawn if one.row == row]
    return next(iter([*origins, *others]), None)


def _without(data: ComparisonData) -> str:
    """What of a comparison cannot be drawn, and why."""
    if not len(data.pairs):
        return f"nothing to draw: {data.headline}"
    if _worst(data) is not None:
        return ""
    why = next((one.without for one in data.details.values() if one.without), "no pair differs")
    return f"no histogram and no heat map: {why}"


def _of_one(recording: Recording) -> Iterator[Drawn]:
    tensors, _ = tensors_of(recording)
    charts: dict[str, list[Series]] = {}
    for one in (*losses_of(recording), *scalars_of(recording, tensors)):
        charts.setdefault(one.quantity, []).append(one)
    files: dict[str, int] = {}
    for name, series in charts.items():
        file = figures.safe_name(name)
        files[file] = files.get(file, 0) + 1
        again = f"-{files[file]}" if files[file] > 1 else ""
        yield f"{file}{again}", figures.series_figure(name, series)
    for what in (PARAMETER, GRADIENT):
        of_it = [one for one in tensors if one.what == what]
        yield f"norm-of-each-{what}", figures.norms_figure(what, of_it) if of_it else None


def _scatter_name(metric: Metric) -> str:
    return f"scatter-{figures.safe_name(metric.column)}"


def _draw(
    drawn: Iterator[Drawn], output: Path, picture: str, *, force: bool, without: str = ""
) -> None:
    """Write every picture that there is, name it, and say what there is `without`."""
    written = 0
    with figures.drawing():
        for name, figure in drawn:
            if figure is None:
                continue
            path = _place(output, name, picture, force=force)
            with progress_bar(f"writing {path}"):
                _save(figure, path, picture)
            written += 1
            click.echo(f"wrote {path}")
    if without or not written:
        click.echo(without or "nothing to draw: no number was recorded")


def _place(output: Path, name: str, picture: str, *, force: bool) -> Path:
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputExistsError(
            f"{output}: cannot be made ({error.strerror}); give another directory with -o"
        ) from error
    path = output / f"{name}.{picture}"
    check_output_file(path, force=force)
    return path


def _save(figure: figures.Figure, path: Path, picture: str) -> None:
    try:
        figures.save(figure, path, picture)
    except OSError as error:
        raise OutputExistsError(
            f"{path}: cannot be written ({error.strerror or error}); give another directory with -o"
        ) from error
