"""Reading a recording step by step: the same rows as were written, and no more work than there are rows."""

from __future__ import annotations

import dataclasses
import gc
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.core.errors import CorruptError
from lockstep.core.manifest import Options, RankManifest, RunManifest
from lockstep.core.records import Content, Statistics
from lockstep.core.site import CallKind
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.store import schema
from lockstep.store import stored_contents as stored_contents
from lockstep.store.content_rows import content_row as stored_row
from lockstep.store.reader import RankRecording, open_recording
from lockstep.store.tables import Chunks
from lockstep.store.writer import RankWriter


def sketch_of_number(number: int) -> Any:
    return np.arange(SKETCH_SIZE, dtype="<f8") + number


def call_row(number: int, step: int, kind: str = "operator") -> tuple[Any, ...]:
    return (
        *(number, step, kind, "forward", f"layer.{number % 3}", "Layer", f"op{number % 2}", 0),
        *(-1, 10 * number, 0, json.dumps({"number": number}), False, "", schema.NO_CONTENT),
    )


def record_row(call: int, sequence: int, content: int) -> tuple[Any, ...]:
    phase = "backward" if sequence % 2 else "forward"
    return (call, phase, "output", 0, f"args.{content}", sequence, 0, content, "", "", None)


def content_row(number: int) -> tuple[Any, ...]:
    sketch = sketch_of_number(number).tobytes() if number % 3 else None
    numbers = Statistics(0.0, 1.0, 0.5, float(number), 0, 0, 1)
    return stored_row(number, "float32", [2, number], "cpu", f"digest-{number}", numbers, sketch)


@dataclass
class Written:
    """What was written, in plain Python: calls by step, records by call, contents."""

    calls: dict[int, list[int]] = field(default_factory=dict)
    records: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    contents: set[int] = field(default_factory=set)

    def add_step(self, writer: RankWriter, step: int, uses: list[list[int]]) -> None:
        """One call per list, with one record per content number in it."""
        for numbers in uses:
            call = sum(map(len, self.calls.values()))
            self.calls.setdefault(step, []).append(call)
            writer.add_call(call_row(call, step))
            self.records[call] = []
            for position, number in enumerate(numbers):
                if number not in self.contents:
                    self.contents.add(number)
                    writer.add_content(content_row(number))
                sequence = 100 * call + position
                self.records[call].append((sequence, number))
                writer.add_record(record_row(call, sequence, number))


def write_run(directory: Path) -> RankWriter:
    manifest = RunManifest(2, "0.1", "2024-01-01T00:00:00Z", ["python"], "/", Options())
    (directory / "rank0").mkdir(parents=True)
    (directory / schema.MANIFEST).write_text(json.dumps(dataclasses.asdict(manifest)))
    writer = RankWriter(directory / "rank0")
    rank = RankManifest(2, "rank0", 1, 1, ["train.py"], "3", state="complete")
    writer.write_manifest(dataclasses.asdict(rank))
    return writer


def opened(directory: Path) -> RankRecording:
    return open_recording(directory).ranks["rank0"]


def read_back(rank: RankRecording, written: Written, step: int) -> None:
    """Every call and record of one step, as it was written."""
    calls = rank.calls(step)
    assert [call.id for call in calls] == sorted(written.calls[step])
    for call in calls:
        assert call.arguments == {"number": call.id}
        assert [(one.sequence, one.content.id) for one in call.records] == written.records[call.id]
        for record in call.records:
            number = record.content.id
            assert (record.name, record.shape) == (f"args.{number}", (2, number))
            assert (record.site.phase.value == "backward") == bool(record.sequence % 2)
            if number % 3:
                np.testing.assert_array_equal(record.content.sketch, sketch_of_number(number))
            else:
                assert record.content.sketch is None


_steps = st.lists(
    st.lists(st.lists(st.integers(0, 30), max_size=4), min_size=1, max_size=6),
    min_size=1,
    max_size=6,
)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(steps=_steps, flushes=st.sets(st.integers(0, 5)), data=st.data())
def test_steps_are_read_as_they_were_written(
    steps: list[list[list[int]]],
    flushes: set[int],
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    # given a recording whose chunks are cut anywhere, whose contents are shared by any steps
    directory, written = tmp_path_factory.mktemp("steps") / "ref", Written()
    writer = write_run(directory)
    for step, uses in enumerate(steps):
        half = len(uses) // 2
        written.add_step(writer, step, uses[:half])
        if step in flushes:
            writer.flush()
        written.add_step(writer, step, uses[half:])
    writer.close()
    # when its steps are read, in any order and more than once
    rank = opened(directory)
    order = data.draw(st.lists(st.sampled_from(range(len(steps))), max_size=8))
    for step in (*order, *range(len(steps))):
        # then each is what was written
        read_back(rank, written, step)
    assert rank.steps == tuple(range(len(steps)))
    assert rank.record_count == sum(map(len, written.records.values()))
    assert rank.content_count == len(written.contents)


@pytest.fixture
def long_run(tmp_path: Path) -> tuple[Path, Written]:
    """Forty steps, a chunk each: ten contents of their own, two that every step uses."""
    written, writer = Written(), write_run(tmp_path / "ref")
    for step in range(40):
        own = list(range(100 * step + 100, 100 * step + 110))
        written.add_step(writer, step, [[1, 2], own[:5], [1, *own[5:]]])
        writer.flush()
    writer.close()
    return tmp_path / "ref", written


def test_every_chunk_is_read_once_however_many_steps_there_are(
    long_run: tuple[Path, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a long recording, and a count of the files that are read whole
    directory, written = long_run
    reads: Counter[tuple[str, int]] = Counter()
    read = Chunks.many

    def counted(
        self: Chunks, table: str, numbers: Sequence[int], columns: pl.Schema
    ) -> list[pl.DataFrame]:
        if columns in (schema.RECORDS, schema.CONTENTS):
            reads.update((table, number) for number in numbers)
        return read(self, table, numbers, columns)

    monkeypatch.setattr(Chunks, "many", counted)
    # when all steps are read, one after the other
    rank = opened(directory)
    for step in rank.steps:
        read_back(rank, written, step)
    # then each of them was read once: steps do not go over the whole recording again
    assert len(reads) == 2 * 40
    assert set(reads.values()) == {1}


def live_contents() -> int:
    return sum(type(one) is Content for one in gc.get_objects())


def test_what_nobody_holds_is_let_go_from_step_to_step(long_run: tuple[Path, Written]) -> None:
    # given a long recording
    directory, _ = long_run
    gc.collect()
    before, most = live_contents(), 0
    # when its steps are read and nothing of them is kept
    rank = opened(directory)
    for step in rank.steps:
        rank.calls(step)
        most = max(most, live_contents() - before)
    # then no more than two steps' contents are alive at any time
    assert most <= 2 * 12


def test_a_step_shares_its_contents_with_the_step_before(long_run: tuple[Path, Written]) -> None:
    rank = opened(long_run[0])
    first, second = (rank.calls(step)[0].records[0].content for step in (3, 4))
    assert first is second


def test_a_sketch_that_was_let_go_is_read_again(
    long_run: tuple[Path, Written], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given that one chunk at a time stays in memory
    monkeypatch.setattr(stored_contents, "_MOST_ROWS", 1)
    rank = opened(long_run[0])
    contents = [rank.calls(step)[1].records[0].content for step in (5, 30)]
    # when sketches of two chunks are looked at in turn, then each is its own
    for content in (*contents, *contents):
        if content.id % 3:
            np.testing.assert_array_equal(content.sketch, sketch_of_number(content.id))
    assert any(content.id % 3 for content in contents)


def test_calls_of_one_kind_are_read_without_the_others(tmp_path: Path) -> None:
    # given a step with an initial parameter and an operator
    writer = write_run(tmp_path / "ref")
    writer.add_call(call_row(0, 0, kind="init"))
    writer.add_call(call_row(1, 0))
    for number in (0, 1):
        writer.add_content(content_row(number))
        writer.add_record(record_row(number, number, number))
    writer.close()
    # when the initial parameters alone are asked for
    (call,) = opened(tmp_path / "ref").calls(0, kind=CallKind.INIT)
    # then they come with their records
    assert (call.id, [record.content.id for record in call.records]) == (0, [0])


def test_progress_over_the_files_is_told(long_run: tuple[Path, Written]) -> None:
    told: list[tuple[int, int]] = []
    opened(long_run[0]).index(lambda done, total: told.append((done, total)))
    assert told == [(0, 120), (40, 120), (80, 120)]


# --- damage in one of many chunks ---------------------------------------------------------------


@pytest.mark.parametrize("table", ["calls", "records", "contents"])
def test_the_damaged_one_of_many_chunks_is_named(
    long_run: tuple[Path, Written], table: str
) -> None:
    path = long_run[0] / "rank0" / schema.chunk_name(table, 17)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptError, match=rf"{table}-00017\.parquet: cannot be read as Parquet"):
        opened(long_run[0]).index()


@pytest.mark.parametrize(
    ("table", "column"), [("calls", "step"), ("records", "call_id"), ("contents", "content")]
)
def test_a_gap_in_one_of_many_chunks_is_named(
    long_run: tuple[Path, Written], table: str, column: str
) -> None:
    path = long_run[0] / "rank0" / schema.chunk_name(table, 17)
    frame = pl.read_parquet(path.read_bytes())
    frame.with_columns(pl.lit(None, frame.schema[column]).alias(column)).write_parquet(path)
    with pytest.raises(CorruptError, match=rf"{table}-00017\.parquet: the column '{column}'"):
        opened(long_run[0]).index()


def test_contents_that_occur_twice_and_records_of_no_call_are_no_crash(tmp_path: Path) -> None:
    # given a hostile recording: one content twice, a record of no call
    writer = write_run(tmp_path / "ref")
    for step in (0, 1):
        writer.add_call(call_row(step, step))
        writer.add_content(content_row(4))
    writer.add_record(record_row(0, 0, 4))
    writer.add_record(record_row(99, 1, 4))
    writer.close()
    # when it is read, then there are two calls and nobody falls over
    rank = opened(tmp_path / "ref")
    assert [[call.id for call in rank.calls(step)] for step in rank.steps] == [[0], [1]]


def test_calls_of_one_number_are_refused(tmp_path: Path) -> None:
    # given a hostile recording: one call number in two steps
    writer = write_run(tmp_path / "ref")
    for step in (0, 1):
        writer.add_call(call_row(0, step))
    writer.close()
    with pytest.raises(CorruptError, match="two calls have the number 0"):
        opened(tmp_path / "ref").index()
