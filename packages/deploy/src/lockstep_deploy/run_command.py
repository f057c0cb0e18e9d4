"""`lockstep run`: an exported model on the CPU, with what it returns and what it costs."""

from __future__ import annotations

import itertools
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from lockstep import options as shared
from lockstep.errors import ExitCode, OutputExistsError, UsageError
from lockstep.files import check_output_file, replacing
from lockstep.recordings import statistics_of
from lockstep.terminal import Column, enveloped, json_text, table_text
from lockstep_deploy import options
from lockstep_deploy.free_axes import check_extents, extents_to_draw
from lockstep_deploy.inputs import read_inputs
from lockstep_deploy.model_file import MOST_BYTES, ModelFile, open_model
from lockstep_deploy.runtime import Level, Measured, Session, Settings, checked_sizes, measure
from lockstep_deploy.training_run import Training, batches_of, training_of


@click.command()
@click.argument("model", type=click.Path(path_type=Path))
@options.inputs
@shared.option("--output", words="A file .npz: the outputs.")
@shared.option("--optimize", "level", old=["--level"])
@click.option(
    "--disable",
    multiple=True,
    metavar="OPTIMIZER",
    help="Leave this optimizer of the runtime out. Repeatable.",
)
@click.option(
    "--runs", type=click.IntRange(min=1), default=10, show_default=True, help="Time this many runs."
)
@click.option(
    "--train", is_flag=True, help="Train: the file is a step that `export --train-step` wrote."
)
@shared.option("--max-steps", "steps", default=20, old=["--steps"], words="With --train.")
@click.option(
    "--checkpoint",
    type=click.Path(path_type=Path),
    help="With --train: keep the state in this .npz.",
)
@click.option(
    "--resume", type=click.Path(path_type=Path), help="With --train: continue from this .npz."
)
@options.threads
@options.entries
@options.seed
@shared.limit
@shared.as_json
@shared.force
def run(
    model: Path, inputs: tuple[str, ...], output: Path | None, level: str, disable: tuple[str, ...], runs: int,
    train: bool, steps: int, checkpoint: Path | None, resume: Path | None, threads: int,
    entries: tuple[tuple[str, str], ...], seed: int, limit: int, as_json: bool, force: bool,
) -> int:  # fmt: skip
    """Run an ONNX model on the CPU: statistics of its outputs, latency, memory, and the time of each node.

    Without --inputs, Lockstep draws them by the model's signature, with an extent of one for a free
    axis. The same seed and settings give the same numbers.

    \b
    lockstep run model.onnx
    lockstep run model.onnx --inputs batch.npz -o out.npz
    lockstep run model.onnx --inputs 'ids:int64[2,16]<1000' --optimize none
    lockstep run step.onnx --train --inputs samples.npz --max-steps 100 --checkpoint state.npz
    """
    for path in (output, checkpoint):
        if path is not None:
            check_output_file(path, force=force or path == resume)
    file = open_model(model)
    if train:
        training = training_of(file, Settings(Level(level), disable, threads, entries))
        return _train(file, training, inputs, seed, Course(steps, checkpoint, resume, as_json))
    arrays = read_inputs(inputs, file.inputs, seed=seed, free=extents_to_draw(file.facts))
    check_extents(file.facts, file.inputs, arrays)
    checked_sizes(file, arrays, MOST_BYTES)
    settings = Settings(Level(level), disable, threads, entries)
    returned = Session(file.proto, settings, name=str(model)).run(arrays)
    measured = measure(file.proto, arrays, settings, runs=runs)
    if output is not None:
        _write(output, returned)
    if as_json:
        click.echo(json_text(_as_json(file, arrays, returned, measured)))
    else:
        click.echo("\n".join(_lines(file, bool(inputs), arrays, returned, measured, limit)))
        if output is not None:
            click.echo(f"wrote {output}")
    return ExitCode.AGREES


@dataclass(frozen=True, slots=True)
class Course:
    """How a training goes: how many steps, from and into which checkpoint, and whether its losses are told as JSON."""

    steps: int
    checkpoint: Path | None
    resume: Path | None
    as_json: bool


def _train(
    file: ModelFile, training: Training, inputs: tuple[str, ...], seed: int, course: Course
) -> int:
    """Train, and print each step's loss; what is not finite ends it, and the checkpoint before it stays."""
    if course.resume is not None:
        training.resume(course.resume)
    arrays = read_inputs(inputs, () if inputs else file.inputs, seed=seed)
    losses: list[float] = []
    first = training.done
    for batch in itertools.islice(batches_of(arrays, file, first), course.steps):
        losses.append(training.step(batch))
        if not course.as_json:
            click.echo(f"step {training.done - 1}  loss {losses[-1]:.9g}")
        if not math.isfinite(losses[-1]):
            raise UsageError(
                f"the loss of step {training.done - 1} is {losses[-1]}; nothing was kept of it"
            )
    if course.checkpoint is not None:
        training.save(course.checkpoint)
    if course.as_json:
        click.echo(
            json_text(enveloped({"model": str(file.path), "first_step": first, "losses": losses}))
        )
    elif course.checkpoint is not None:
        click.echo(f"wrote {course.checkpoint}")
    return ExitCode.AGREES


def _write(path: Path, returned: dict[str, Any]) -> None:
    try:
        with replacing(path) as aside, zipfile.ZipFile(aside, "x") as archive:
            for name, value in _arrays(returned).items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, value, allow_pickle=False)
    except OSError as error:
        raise OutputExistsError(
            f"{path}: cannot be written ({error.strerror or error}); give another place"
        ) from error


def _arrays(returned: dict[str, Any]) -> dict[str, Any]:
    """What was returned, the parts of a sequence by number."""
    found = {}
    for name, value in returned.items():
        parts = enumerate(value) if isinstance(value, list) else [("", value)]
        found.update(
            {f"{name}.{key}" if key != "" else name: np.asarray(part) for key, part in parts}
        )
    return found


def _lines(
    file: ModelFile,
    given: bool,
    inputs: dict[str, Any],
    returned: dict[str, Any],
    measured: Measured,
    limit: int,
) -> list[str]:
    drawn = "" if given else " (drawn: give --inputs)"
    lines = [
        f"{file.path}: opset {file.opset}, {len(file.proto.graph.node)} nodes, {file.weight_bytes:,} bytes of weights",
        *(
            ["its contents are not what its digest says: changed since it was exported"]
            if file.was_changed
            else []
        ),
        *(
            f"in   {name}: {array.dtype}{list(array.shape)}{drawn}"
            for name, array in inputs.items()
        ),
    ]
    rows = [
        (name, f"{one.dtype}{list(one.shape)}", *_numbers(one))
        for name, one in _arrays(returned).items()
    ]
    titles = [
        Column("output"),
        Column("type"),
        *(Column(one, right=True) for one in ("min", "mean", "max", "nan", "inf")),
    ]
    lines += ["", table_text(titles, rows)]
    lines += ["", _latency(measured), ""]
    total = sum(one.time_s for one in measured.nodes) or 1.0
    nodes = [
        (f"{1e6 * one.time_s:.1f}", f"{100 * one.time_s / total:.1f}", one.op, one.name)
        for one in measured.nodes
    ]
    titles = [Column("us", right=True), Column("%", right=True), Column("operator"), Column("node")]
    return [*lines, table_text(titles, nodes, limit=limit)]


def _latency(measured: Measured) -> str:
    times = [1e3 * one for one in sorted(measured.latencies_s)]
    spread = f"median of {len(times)}; {times[0]:.3f} to {times[-1]:.3f}"
    held = f"at most {measured.peak_bytes:,} bytes held by the runtime"
    return f"latency {1e3 * measured.median_s:.3f} ms ({spread}), {held}"


def _numbers(array: Any) -> tuple[str, ...]:
    if array.dtype.kind not in "fiub" or not array.size:
        return ("-", "-", "-", "-", "-")
    found = statistics_of(array)
    numbers = (found.minimum, found.mean, found.maximum)
    return (*(f"{one:.6g}" for one in numbers), str(found.nan_count), str(found.inf_count))


def _as_json(
    file: ModelFile, inputs: dict[str, Any], returned: dict[str, Any], measured: Measured
) -> dict[str, Any]:
    def told(arrays: dict[str, Any]) -> dict[str, Any]:
        return {
            name: {"dtype": str(one.dtype), "shape": list(one.shape)}
            | dict(
                zip(("min", "mean", "max", "nan", "inf"), map(_plain, _numbers(one)), strict=True)
            )
            for name, one in arrays.items()
        }

    return enveloped(
        {
            "model": str(file.path), "opset": file.opset, "digest": file.digest, "was_changed": file.was_changed,
            "facts": file.facts, "inputs": told(inputs), "outputs": told(_arrays(returned)),
            "latencies_s": list(measured.latencies_s), "peak_bytes": measured.peak_bytes,
            "nodes": [{"name": one.name, "op": one.op, "time_s": one.time_s} for one in measured.nodes],
        }
    )  # fmt: skip


def _plain(text: str) -> float | None:
    return None if text == "-" else float(text)
