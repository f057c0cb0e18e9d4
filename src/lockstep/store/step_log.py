"""The step log of a rank on disk: `step_log.jsonl`, one line a step.

The first line tells the version and the devices. Each line is JSON in ASCII, a space and the xxh32 of the JSON. A line
is written with one call of the operating system, so a process that is killed leaves whole lines, and at most its last
one is cut. A line holds only those settings and generators that are not as in the line before.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import xxhash

from lockstep.core.errors import CorruptError, VersionError
from lockstep.core.step_rows import STEP_LOG as STEP_LOG
from lockstep.core.step_rows import StepLog, StepRow
from lockstep.store.limits import size_of, values_of
from lockstep.store.permissions import open_private

MOST_ROWS = 1 << 20
"""Steps that are logged of a training: some 200 MB."""
ROW_BYTES = 300
"""Bytes that a row should not exceed."""

_VERSION = 1
_LINE_BYTES = 4096
_FILE_BYTES = MOST_ROWS * 2 * ROW_BYTES
_STOPPED = "stopped"


class StepLogWriter:
    """Appends rows to a rank's step log.

    rank_directory: The rank's directory.
    devices: Types of the devices that train.

    Raises OSError if the file cannot be made.
    """

    def __init__(self, rank_directory: Path, devices: tuple[str, ...]) -> None:
        self._file = open_private(rank_directory / STEP_LOG, "wb")
        self._known: dict[str, dict[str, Any]] = {"settings": {}, "generators": {}}
        self._rows = 0
        self._write({"step_log": _VERSION, "devices": list(devices)})

    def add(self, row: StepRow) -> None:
        """Append a row; after `MOST_ROWS` of them only that no more follow.

        Raises OSError if the disk does not take it.
        """
        if self._rows < MOST_ROWS:
            self._write(self._values(row))
        elif self._rows == MOST_ROWS:
            self.stopped(f"a step log has at most {MOST_ROWS} steps")
        self._rows += 1

    def stopped(self, why: str) -> None:
        """Note why no row follows. Raises OSError if the disk does not take it."""
        self._write({_STOPPED: why})

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _values(self, row: StepRow) -> dict[str, Any]:
        values: dict[str, Any] = {"step": row.step}
        if row.loss is not None:
            values["loss"] = _number(row.loss)
        if row.passes != 1:
            values["passes"] = row.passes
        if row.dtype != "float32":
            values["dtype"] = row.dtype
        for name, now in (("settings", row.settings), ("generators", row.generators)):
            known = self._known[name]
            changed = {key: value for key, value in now.items() if known.get(key) != value}
            known.update(changed)
            if changed:
                values[name] = changed
        if row.skipped:
            values["skipped"] = True
        if row.gradient_norms:
            values["norms"] = [_number(float(f"{one:.7g}")) for one in row.gradient_norms]
        if row.batches:
            values["batches"] = dict(row.batches)
        if row.seconds is not None:
            values["s"] = round(row.seconds, 5)
        return values

    def _write(self, values: Mapping[str, Any]) -> None:
        text = json.dumps(values, separators=(",", ":"), allow_nan=False).encode("ascii")
        os.write(self._file.fileno(), text + f" {xxhash.xxh32_hexdigest(text)}\n".encode("ascii"))


def _number(value: float) -> float | str:
    """A number as JSON has it; of those that it has not, the name."""
    return value if math.isfinite(value) else str(value)


def read_step_log(rank_directory: Path) -> StepLog | None:
    """Return the step log of a rank; None where none was kept.

    Raises
    ------
    CorruptError
        If the file was changed.
    VersionError
        If a newer Lockstep wrote it.
    """
    path = rank_directory / STEP_LOG
    if not path.exists() and not path.is_symlink():
        return None
    if size_of(path) > _FILE_BYTES:
        raise CorruptError(path, f"has more than {_FILE_BYTES} bytes")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptError(path, f"cannot be read ({error.strerror})") from error
    devices: tuple[str, ...] = ()
    rows: list[StepRow] = []
    known: dict[str, dict[str, float | str]] = {"settings": {}, "generators": {}}
    stopped = ""
    # What was being written as the process was killed ends without a line break.
    for number, line in enumerate(data.split(b"\n")[:-1]):
        values = _checked(path, number, line)
        try:
            if number == 0:
                devices = _devices(path, values)
            elif _STOPPED in values:
                stopped = str(values[_STOPPED])
            else:
                rows.append(_row(values, known))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise CorruptError(path, f"line {number + 1} is no row ({error})") from error
    if any(left.step >= right.step for left, right in pairwise(rows)):
        raise CorruptError(path, "its steps are not in order")
    return StepLog(tuple(rows), devices, stopped)


def _checked(path: Path, number: int, line: bytes) -> dict[str, Any]:
    text, _, check = line.rpartition(b" ")
    if len(line) > _LINE_BYTES or xxhash.xxh32_hexdigest(text).encode() != check:
        raise CorruptError(path, f"line {number + 1} was changed after it was written")
    try:
        values = values_of(text)
    except ValueError as error:
        raise CorruptError(path, f"line {number + 1} is no JSON ({error})") from error
    if not isinstance(values, dict):
        raise CorruptError(path, f"line {number + 1} is no JSON object")
    return values


def _devices(path: Path, values: Mapping[str, Any]) -> tuple[str, ...]:
    version = values["step_log"]
    if type(version) is not int or version < 1:
        raise ValueError(f"version {version!r:.20}")
    if version > _VERSION:
        what = f"has version {version}, this Lockstep reads {_VERSION}"
        raise VersionError(path, what, advice="update Lockstep")
    return tuple(map(str, values["devices"]))


def _row(values: Mapping[str, Any], known: dict[str, dict[str, float | str]]) -> StepRow:
    for name, told in known.items():
        changed = {str(key): _plain(value) for key, value in values.get(name, {}).items()}
        if changed:
            known[name] = told | changed
    step, loss, seconds = values["step"], values.get("loss"), values.get("s")
    if type(step) is not int or step < 0:
        raise ValueError(f"step {step!r:.20}")
    return StepRow(
        step,
        None if loss is None else float(loss),
        int(values.get("passes", 1)),
        str(values.get("dtype", "float32")),
        known["settings"],
        bool(values.get("skipped")),
        tuple(_floats(values.get("norms", ()))),
        {str(key): str(value) for key, value in values.get("batches", {}).items()},
        {name: str(value) for name, value in known["generators"].items()},
        None if seconds is None else float(seconds),
    )


def _plain(value: Any) -> float | str:
    return value if isinstance(value, str) else float(value)


def _floats(values: Any) -> Iterator[float]:
    for value in values:
        yield float(value)
