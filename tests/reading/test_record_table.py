"""Records as a table and one number over steps, held against the records themselves."""

from __future__ import annotations

import math
from pathlib import Path

import polars as pl
import pytest
import torch

import lockstep
from lockstep.core.errors import CorruptError, UsageError
from lockstep.core.records import TensorRecord
from lockstep.reading import record_table, series
from lockstep.reading.record_tables import COLUMNS, NUMBERS
from lockstep.store.tables import Chunks


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three steps, of which the last is NaN throughout."""
    path = tmp_path_factory.mktemp("table") / "recording"
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.GELU(), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model, steps="0:3"):
        for step in range(3):
            optimizer.zero_grad()
            loss = model(torch.full((5, 4), math.nan if step == 2 else step + 1.0)).mean()
            loss.backward()
            optimizer.step()
    return path


def as_row(record: TensorRecord) -> tuple[object, ...]:
    found = record.statistics
    numbers = [None if found is None else getattr(found, name) for name in NUMBERS]
    return (
        record.rank, record.step, record.site.phase.value, record.site.module, record.site.op,
        record.site.call, record.role.value, record.index, record.name, record.occurrence,
        record.dtype, list(record.shape), record.content.device, record.digest,
        *(None if number is not None and math.isnan(number) else number for number in numbers),
        record.content.loader is not None, record.content.note,
    )  # fmt: skip


def test_the_table_holds_what_the_records_hold(path: Path) -> None:
    # given every record of a recording
    recording = lockstep.open(path)
    records = list(recording.records())
    # when they are read as a table
    table = record_table(recording)
    # then each has its row
    assert tuple(table.columns) == COLUMNS
    rows = table.select(COLUMNS[: COLUMNS.index("note") + 1]).rows()
    expected = [as_row(record) for record in sorted(records, key=lambda one: one.sequence)]
    assert [(*row[:-1], row[-1] or "") for row in rows] == expected
    assert table["sequence"].is_sorted()


def test_columns_are_those_asked_for_and_no_other_is_read(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a recording whose index is read, and somebody who notes what is read of its files
    recording = lockstep.open(path)
    assert recording.ranks["rank0"].steps == (0, 1, 2)
    read: list[tuple[str, frozenset[str]]] = []
    many = Chunks.many

    def noted(
        self: Chunks, table: str, numbers: list[int], columns: pl.Schema
    ) -> list[pl.DataFrame]:
        read.append((table, frozenset(columns)))
        return many(self, table, numbers, columns)

    monkeypatch.setattr(Chunks, "many", noted)

    # then names alone leave the contents closed, and a number opens its column only
    assert record_table(recording, columns=["op", "name"]).columns == ["op", "name"]
    assert read == [("records", frozenset({"call_id", "sequence", "role", "name"}))]
    read.clear()
    record_table(recording, columns=["norm", "role"])
    assert read[1:] == [("contents", frozenset({"content", "norm"}))]
    read.clear()
    record_table(recording)
    assert not any(columns & {"sketch", "stored"} for _, columns in read)


def test_a_pattern_a_step_and_a_rank_choose_rows(path: Path) -> None:
    recording = lockstep.open(path)
    table = record_table(recording, pattern="gelu", step=2, rank="rank0", columns=["op", "step"])
    assert set(table.rows()) == {("torch.nn.functional.gelu", 2)}
    assert record_table(recording, pattern="0", columns=["module"])["module"].unique().item() == "0"


def test_what_is_not_there_is_refused(path: Path) -> None:
    recording = lockstep.open(path)
    for wrong in ({"columns": ["weight"]}, {"step": 9}, {"rank": "rank3"}, {"pattern": "gelo"}):
        with pytest.raises(UsageError):
            record_table(recording, **wrong)  # type: ignore[arg-type]
    for wrong in ({"role": "outputs"}, {"number": "median"}, {"pattern": "gelo"}):
        with pytest.raises(UsageError):
            series(recording, **{"pattern": "gelu", **wrong})


def test_one_number_over_steps_has_a_gap_where_there_is_none(path: Path) -> None:
    # given three steps, of which the last is NaN throughout
    recording = lockstep.open(path)
    # then its mean is null there
    means = series(recording, "gelu", number="mean")
    assert means["step"].to_list() == [0, 1, 2]
    assert [value is None for value in means["mean"]] == [False, False, True]
    assert series(recording, "gelu", number="nan_count")["nan_count"].to_list() == [0, 0, 15]
    # and the gradients of a parameter are found by their role
    found = series(recording, "0", role="param_grad")
    assert {"0.weight", "0.bias"} <= set(found["name"])


def test_a_record_of_a_content_that_is_gone_is_damage(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recording = lockstep.open(path)
    index = recording.ranks["rank0"].index()
    monkeypatch.setattr(index, "places", lambda numbers: {})
    assert record_table(recording, columns=["name"]).height > 0
    with pytest.raises(CorruptError, match="tensor content 0 is missing"):
        record_table(recording, columns=["norm"])
