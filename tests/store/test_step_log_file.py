"""The step log on disk: what is written is read, and what was cut or changed is told apart."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.core.errors import CorruptError, VersionError
from lockstep.core.step_rows import StepRow
from lockstep.store import step_log
from lockstep.store.step_log import ROW_BYTES, STEP_LOG, StepLogWriter, read_step_log

_NUMBERS = st.floats(width=64)
_FINITE = st.floats(allow_nan=False, allow_infinity=False)
_SETTINGS = st.dictionaries(st.sampled_from(["0.lr", "1.lr", "scale"]), _FINITE)
_TEXTS = st.dictionaries(st.sampled_from(["torch", "numpy"]), st.sampled_from(["0a", "ff"]))


def written(directory: Path, rows: list[StepRow]) -> Path:
    writer = StepLogWriter(directory, ("cpu",))
    for row in rows:
        writer.add(row)
    writer.close()
    return directory / STEP_LOG


def rows_of(count: int) -> list[StepRow]:
    return [
        StepRow(
            step, 2.5 / (step + 3), 1, "float32",
            {"0.lr": 1e-3 * math.cos(step / 7), "0.weight_decay": 0.1, "trained": "148 of 148, 0a1b2c3d"},
            gradient_norms=(1.234567, 0.1234567), batches={"0": "4:0a1b2c3d"},
            generators={"python": "0a1b2c3d", "numpy": "0a1b2c3d", "torch": f"{step:08x}"},
            seconds=0.12345,
        )
        for step in range(count)
    ]  # fmt: skip


def test_rows_come_back_as_they_were_written(tmp_path: Path) -> None:
    rows = rows_of(20)
    written(tmp_path, rows)

    log = read_step_log(tmp_path)

    assert log is not None
    assert list(log.rows) == rows
    assert (log.devices, log.stopped_because) == (("cpu",), "")


@given(loss=_NUMBERS, settings=_SETTINGS, generators=_TEXTS)
def test_every_number_comes_back_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory,
    loss: float,
    settings: dict[str, float],
    generators: dict[str, str],
) -> None:
    row = StepRow(0, loss, 1, settings=settings, generators=generators)
    directory = tmp_path_factory.mktemp("log")
    written(directory, [row])

    log = read_step_log(directory)

    assert log is not None
    [found] = log.rows
    assert repr(found.loss) == repr(loss)
    assert dataclasses.replace(found, loss=None) == dataclasses.replace(row, loss=None)


def test_a_row_takes_no_more_than_it_may(tmp_path: Path) -> None:
    lines = written(tmp_path, rows_of(50)).read_bytes().split(b"\n")

    assert max(len(line) + 1 for line in lines[2:]) <= ROW_BYTES


def test_a_recording_without_a_log_has_none(tmp_path: Path) -> None:
    assert read_step_log(tmp_path) is None


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_row_that_was_being_written_is_left_out(tmp_path: Path, cut: int) -> None:
    # given a process that was killed while it wrote
    path = written(tmp_path, rows_of(5))
    path.write_bytes(path.read_bytes()[:-cut])

    log = read_step_log(tmp_path)

    assert log is not None
    assert [row.step for row in log.rows] == [0, 1, 2, 3]


def test_a_changed_row_is_named(tmp_path: Path) -> None:
    path = written(tmp_path, rows_of(5))
    path.write_bytes(path.read_bytes().replace(b'"step":2', b'"step":3'))

    with pytest.raises(CorruptError, match="line 4 was changed"):
        read_step_log(tmp_path)


def test_rows_out_of_order_are_refused(tmp_path: Path) -> None:
    path = written(tmp_path, rows_of(5))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], lines[3], lines[2], *lines[4:]]))

    with pytest.raises(CorruptError, match="not in order"):
        read_step_log(tmp_path)


def test_a_link_is_no_log(tmp_path: Path) -> None:
    (tmp_path / STEP_LOG).symlink_to("/etc/hostname")

    with pytest.raises(CorruptError, match="not a regular file"):
        read_step_log(tmp_path)


def test_a_newer_log_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_log, "_VERSION", 2)
    written(tmp_path, rows_of(1))
    monkeypatch.undo()

    with pytest.raises(VersionError, match="version 2"):
        read_step_log(tmp_path)


def test_a_log_ends_at_its_limit_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_log, "MOST_ROWS", 3)
    written(tmp_path, rows_of(6))

    log = read_step_log(tmp_path)

    assert log is not None
    assert [row.step for row in log.rows] == [0, 1, 2]
    assert "at most 3 steps" in log.stopped_because
