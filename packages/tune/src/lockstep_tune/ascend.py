"""Reading what Ascend's profiler writes as tables: op_summary*.csv, kernel_details.csv and operator_details.csv."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

from lockstep.errors import NotARecordingError, RecordingError, reason_of
from lockstep_tune.profile import Operator, Phase, Profile

_NAME = ("Op Name", "Name")
_KIND = ("OP Type", "Op Type", "Type")
_DEVICE = ("Task Duration(us)", "Duration(us)", "Device Self Duration(us)")
_HOST = ("Host Self Duration(us)",)
_SHAPES, _DTYPES = ("Input Shapes",), ("Input Data Types",)


def read_summary(file: Path) -> Profile:
    """Read a table of operators with their times on the device, a row for each call.

    Raises RecordingError if it cannot be read, or has none of the columns.
    """
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            rows = list(csv.DictReader(opened))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordingError(file, f"cannot be read ({reason_of(error)})") from error
    columns = set(rows[0]) if rows else set()
    if not columns & set(_NAME) or not columns & {*_DEVICE, *_HOST}:
        raise NotARecordingError(
            file, "no summary of operators: it has no column of names, or none of durations"
        )
    groups: dict[tuple[str, str, str], list[Mapping[str, str]]] = defaultdict(list)
    for row in rows:
        key = _of(row, _KIND) or _of(row, _NAME), _of(row, _SHAPES), _of(row, _DTYPES)
        groups[key].append(row)
    operators = [
        Operator(
            name, "", Phase.FORWARD, calls=len(found), shapes=shapes, dtypes=dtypes, order=at,
            self_host_us=_sum(found, _HOST), host_us=_sum(found, _HOST), self_device_us=_sum(found, _DEVICE),
            device_us=_sum(found, _DEVICE), steps_us=(_sum(found, _DEVICE) or _sum(found, _HOST),),
        )
        for at, ((name, shapes, dtypes), found) in enumerate(groups.items())
    ]  # fmt: skip
    return Profile(
        str(file), tuple(operators), device="npu",
        missing=("a summary of operators tells no steps, lines or modules",),
    )  # fmt: skip


def _of(row: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((row[one].strip('"') for one in names if row.get(one)), "")


def _sum(rows: list[Mapping[str, str]], names: tuple[str, ...]) -> float:
    return sum(_number(_of(row, names)) for row in rows)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:  # N/A, where a task has none
        return 0.0
