"""`lockstep msaccucmp compare` and `convert`: the commands of msaccucmp.py, for whatever is read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import numpy as np

from lockstep.compare import Metrics
from lockstep.errors import ExitCode, OutputExistsError
from lockstep.files import replacing
from lockstep.judging import accuracy_reached
from lockstep.recordings import (
    Call,
    Phase,
    Role,
    TensorRecord,
    every_call,
    open_recording,
    paired_records,
)
from lockstep.terminal import Cell
from lockstep_interop_names.faces.pair_table import measured, write_table
from lockstep_interop_names.faces.verdict import said_of

_TITLES = (
    "Index", "NPUDump", "NPUDumpPath", "GroundTruthPath", "DataType", "Shape", "CosineSimilarity", "MaxAbsoluteError",
    "AccumulatedRelativeError", "RelativeEuclideanDistance", "KullbackLeiblerDivergence", "StandardDeviation",
    "MeanAbsoluteError", "RootMeanSquareError", "MaxRelativeError", "MeanRelativeError", "CompareFailReason",
)  # fmt: skip
_NAN = "NaN"
_ENTERING = (Role.INPUT, Role.GRAD_OUTPUT)

Row = tuple[str, str, str, str, str, Metrics, str]
"""Operator, both places, dtype, shape, how far apart, and why they could not be held against each other."""


@click.group()
def msaccucmp() -> None:
    """Compare and convert dumps by the commands of msaccucmp.py."""


@msaccucmp.command()
@click.option(
    "-m",
    "--my_dump_path",
    "mine",
    type=click.Path(path_type=Path),
    required=True,
    help="The dump under test.",
)
@click.option(
    "-g",
    "--golden_dump_path",
    "golden",
    type=click.Path(path_type=Path),
    required=True,
    help="The trusted one.",
)
@click.option(
    "-out", "--output", type=click.Path(path_type=Path), default=Path(), help="Folder of the table."
)
def compare(mine: Path, golden: Path, output: Path) -> int:
    """Write the ten metrics of every pair of tensors into result_TIME.csv, and say the verdict.

    Exit code as `lockstep compare`, whatever the fixed rule says of a pair. Both are .h5 files of torch.utils.dumper,
    or what else `lockstep compare` takes: recordings, dumps of other tools.

    \b
    lockstep msaccucmp compare -m model_npu.h5 -g model_gpu.h5
    """
    rows = list(_rows(mine, golden))
    write_table(output, "result", _TITLES, (_cells(number, row) for number, row in enumerate(rows)))
    click.echo(f"{len(rows)} rows")
    said = said_of(golden, mine)
    click.echo(said.sentence)
    failed = [row for row in rows if accuracy_reached(row[5]) is False]
    for row in failed[:1]:
        click.echo(
            f"the first pair beyond the fixed rule: {row[1]} (cosine {row[5].cosine:.6g}, max abs {row[5].max_abs:.4g})"
        )
    return said.code


@msaccucmp.command()
@click.option(
    "-d",
    "--dump_file",
    "dump",
    type=click.Path(path_type=Path),
    required=True,
    help="A dump or a recording.",
)
@click.option(
    "-out", "--output", type=click.Path(path_type=Path), required=True, help="Folder of the files."
)
@click.option(
    "-v",
    "--version",
    type=click.Choice(["1", "2"]),
    default="2",
    help="Told by what the dump holds.",
)
def convert(dump: Path, output: Path, version: str) -> int:
    """Write every tensor as OPERATOR.NAME.CALL.RANK.MOMENT.input|output.N.npy.

    \b
    lockstep msaccucmp convert -d dump -out dumptonumpy
    """
    recording, count = open_recording(dump), 0
    try:
        output.mkdir(parents=True, exist_ok=True)
        for call in every_call(recording):
            for record in call.records:
                if record.content.loader is None:
                    continue
                with (
                    replacing(output / _file_name(call, record)) as aside,
                    aside.open("wb") as file,
                ):
                    np.save(file, record.load(), allow_pickle=False)
                count += 1
    except OSError as error:
        raise OutputExistsError(
            f"{output}: cannot be written ({error.strerror or error}); give another folder"
        ) from error
    click.echo(f"{output}: {count} tensors")
    return ExitCode.AGREES if count else ExitCode.FAILED


def _file_name(call: Call, record: TensorRecord) -> str:
    backward = record.site.phase is Phase.BACKWARD
    kind = call.site.op.rpartition(".")[2] + ("Backward" if backward else "")
    name = re.sub(r"[./\\\s]", "_", call.site.module or kind)
    what = "input" if record.role in _ENTERING else "output"
    rank = record.rank.removeprefix("rank")
    return f"{kind}.{name}.{call.id}.{rank}.{record.sequence:016}.{what}.{record.index}.npy"


def _rows(mine: Path, golden: Path) -> Iterator[Row]:
    for pair in paired_records(golden, mine):
        one = pair.present
        reference, candidate = (
            None
            if record is None
            else f"{record.rank}/step{record.step}/{record.site}/{record.role.value}.{record.name}"
            for record in (pair.reference, pair.candidate)
        )
        metrics, reason = measured(pair)
        yield (
            one.site.op,
            candidate or _NAN,
            reference or _NAN,
            one.dtype,
            str(one.shape),
            metrics,
            reason,
        )


def _cells(number: int, row: Row) -> list[Cell]:
    *texts, metrics, reason = row
    numbers = (
        metrics.cosine, metrics.max_abs, metrics.accumulated_relative, metrics.rel_l2, metrics.kl_divergence,
        metrics.standard_deviation, metrics.mean_abs, metrics.rmse, metrics.max_relative, metrics.mean_relative,
    )  # fmt: skip
    return [number, *texts, *(_NAN if np.isnan(one) else one for one in numbers), reason]
