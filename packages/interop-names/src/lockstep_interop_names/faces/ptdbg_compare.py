"""`compare` of ptdbg_ascend: two dumps in, its table and Lockstep's verdict out."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from lockstep.compare import Evidence, Metrics
from lockstep.errors import UsageError
from lockstep.judging import accuracy_reached, measure_tensors
from lockstep.options import path_of, truth_of
from lockstep.recordings import Array
from lockstep.terminal import Cell
from lockstep_interop_names.faces.pair_table import write_table
from lockstep_interop_names.faces.ptdbg_files import noted_recording
from lockstep_interop_names.faces.ptdbg_lines import Key, PassLines, TensorLine, passes_in
from lockstep_interop_names.faces.verdict import said_of

_PATHS = ("npu_pkl_path", "bench_pkl_path", "npu_dump_data_dir", "bench_dump_data_dir")
_TITLES = (
    "NPU Name", "Bench Name", "NPU Tensor Dtype", "Bench Tensor Dtype", "NPU Tensor Shape", "Bench Tensor Shape",
    "Cosine", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio",
    "NPU max", "NPU min", "NPU mean", "Bench max", "Bench min", "Bench mean", "Accuracy Reached or Not", "Err_message",
)  # fmt: skip
_STACK = "NPU_Stack_Info"
_UNKNOWN = "N/A"
_NONE = "None"
_NO_FILE = "its .npy is not there"
_REACHED = {True: "Yes", False: "No", None: _UNKNOWN}


def compare_dumps(
    input_param: Mapping[str, Any],
    output_path: str | os.PathLike[str],
    *,
    stack_mode: bool,
    auto_analyze: bool,
    suffix: str,
    fuzzy_match: bool,
) -> None:
    """Compare two dumps; see `lockstep_interop_names.ptdbg_ascend.compare`."""
    npu, bench, *folders = _paths(input_param)
    truth_of("stack_mode", stack_mode)
    by_order = truth_of("fuzzy_match", fuzzy_match)
    passes = passes_in(npu, by_order=by_order), passes_in(bench, by_order=by_order)
    titles = (*_TITLES, _STACK) if stack_mode else _TITLES
    rows = _rows(passes, folders, stack_mode=stack_mode)
    if input_param.get("is_print_compare_log"):
        rows = _printed(rows)
    folder, moment = path_of("output_path", output_path), time.strftime("%Y%m%d%H%M%S")
    write_table(folder, f"compare_result{suffix}", titles, rows, moment=moment)
    if truth_of("auto_analyze", auto_analyze):
        said = said_of(_place(bench, npu), _place(npu, bench))
        click.echo(said.sentence)
        (folder / f"advisor{suffix}_{moment}.txt").write_text(
            said.whole + "\n", encoding="utf-8", errors="backslashreplace"
        )


def compare_ranks(
    npu_dump_dir: Any, bench_dump_dir: Any, output_path: Any, options: Mapping[str, Any]
) -> None:
    """Compare each rank of two dumps; see `lockstep_interop_names.ptdbg_ascend.compare_distributed`."""
    npu, bench = path_of("npu_dump_dir", npu_dump_dir), path_of("bench_dump_dir", bench_dump_dir)
    ranks = [
        sorted(one.name for one in folder.glob("rank*") if one.is_dir()) for folder in (npu, bench)
    ]
    if ranks[0] != ranks[1] or not ranks[0]:
        raise UsageError(
            f"{npu} holds {', '.join(ranks[0]) or 'no ranks'}, {bench} {', '.join(ranks[1]) or 'no ranks'}; compare"
            " each rank with the one that it belongs to, by compare()"
        )
    settings = {"stack_mode": False, "auto_analyze": True, "fuzzy_match": False, **options}
    for number, rank in enumerate(ranks[0]):
        given: dict[str, Any] = {"is_print_compare_log": True}
        for side, folder in (("npu", npu), ("bench", bench)):
            pkl = _pkl_in(folder / rank)
            given |= {
                f"{side}_pkl_path": str(pkl),
                f"{side}_dump_data_dir": str(pkl.with_suffix("")),
            }
        # One verdict is of all ranks.
        settings["auto_analyze"] = settings["auto_analyze"] and not number
        compare_dumps(given, output_path, **{**settings, "suffix": f"_{rank}-{rank}"})


def _pkl_in(folder: Path) -> Path:
    found = sorted(folder.glob("*.pkl"))
    if len(found) != 1:
        raise UsageError(f"{folder} holds {len(found)} dumps; give one by compare()")
    return found[0]


def _paths(given: Mapping[str, Any]) -> list[Path]:
    missing = [name for name in _PATHS if name not in given]
    if missing:
        raise UsageError(
            f"the first argument lacks {', '.join(missing)}; give a dict with {', '.join(_PATHS)}"
        )
    return [path_of(name, given[name]) for name in _PATHS]


def _place(pkl: Path, other: Path) -> Path:
    """What a verdict is of: the recordings that both dumps were written from, else the dumps themselves."""
    recordings = noted_recording(pkl), noted_recording(other)
    return recordings[0] if recordings[0] and recordings[1] else pkl


def _rows(
    passes: tuple[Mapping[Key, PassLines], Mapping[Key, PassLines]],
    folders: Sequence[Path],
    *,
    stack_mode: bool,
) -> Iterator[list[Cell]]:
    """A row for each tensor of either dump, those without partner last."""
    (npu, bench), nothing = passes, PassLines()
    for key in [*npu, *(key for key in bench if key not in npu)]:
        left, right = npu.get(key, nothing), bench.get(key, nothing)
        places = [*left.tensors, *(place for place in right.tensors if place not in left.tensors)]
        for number, place in enumerate(places):
            row = _row(left.tensors.get(place), right.tensors.get(place), *folders)
            yield [
                *row,
                *([str(left.stack) if left.stack and not number else _NONE] if stack_mode else []),
            ]


def _row(
    npu: TensorLine | None, bench: TensorLine | None, npu_data: Path, bench_data: Path
) -> list[Cell]:
    names = [_NONE if one is None else one.name for one in (npu, bench)]
    dtypes = [_NONE if one is None else one.dtype for one in (npu, bench)]
    shapes = [_NONE if one is None else str(one.shape) for one in (npu, bench)]
    numbers: list[Cell] = []
    for one in (npu, bench):
        cells = [] if one is None else one.numbers[:3]
        numbers += [_cell(cell) for cell in (*cells, *[_UNKNOWN] * (3 - len(cells)))]
    if npu is None or bench is None:
        side = "NPU" if npu is None else "bench"
        measured: Measured = (
            Metrics(Evidence.NONE),
            _UNKNOWN,
            f"the {side} dump has no such tensor",
        )
    else:
        measured = _measured(npu, bench, npu_data, bench_data)
    metrics, reached, note = measured
    found = (
        metrics.cosine,
        metrics.max_abs,
        metrics.max_relative,
        metrics.within_1e_3,
        metrics.within_5e_3,
    )
    return [*names, *dtypes, *shapes, *map(_cell, found), *numbers, reached, note]


Measured = tuple[Metrics, str, str]
"""How far apart two tensors are, whether the fixed rule is met, and what is to be said of it."""


def _measured(npu: TensorLine, bench: TensorLine, npu_data: Path, bench_data: Path) -> Measured:
    if npu.shape != bench.shape:
        return Metrics(Evidence.NONE), "No", "the shapes are not the same"
    if npu.dtype.startswith("<class"):
        equal = npu.numbers == bench.numbers
        return (
            Metrics(Evidence.NONE),
            _REACHED[equal],
            "a plain number" + ("" if equal else ", another one"),
        )
    candidate, reference = _tensor(npu_data, npu), _tensor(bench_data, bench)
    if candidate is None or reference is None or candidate.size != reference.size:
        return Metrics(Evidence.NONE), _UNKNOWN, _NO_FILE
    if not candidate.size:
        return Metrics(Evidence.NONE), "Yes", "no elements"
    metrics = measure_tensors(reference, candidate, dtype=bench.dtype.rpartition(".")[2])
    note = "" if npu.dtype == bench.dtype else "the dtypes are not the same"
    return metrics, _REACHED[accuracy_reached(metrics)], note


def _tensor(folder: Path, line: TensorLine) -> Array | None:
    """A tensor's elements, mapped from its file; None where there is none that can be read."""
    name = Path(line.name).name
    try:
        array: Array = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array


def _cell(value: Any) -> Cell:
    """A number as the table has it."""
    if isinstance(value, (bool, list)):
        return str(value)
    return _UNKNOWN if isinstance(value, float) and np.isnan(value) else value


def _printed(rows: Iterator[list[Cell]]) -> Iterator[list[Cell]]:
    for row in rows:
        click.echo(
            f"[{row[0]}] cosine {row[6]}, max_abs_err {row[7]}, {row[17]} {row[18]}".rstrip()
        )
        yield row
