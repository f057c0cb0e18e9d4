"""Recordings on disk: what is written is read back, and any damage ends in one clear error."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.core.errors import CorruptError, NotARecordingError, RecordingError, VersionError
from lockstep.core.manifest import Options, RankManifest, RunManifest, StepSummary
from lockstep.core.records import HEADINGS, STATISTICS, Frame
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.reading import record_table
from lockstep.store import schema
from lockstep.store.reader import open_recording
from lockstep.store.tensor_files import TensorFiles
from lockstep.store.tensors import RawTensor
from lockstep.store.writer import RankWriter

SKETCH = np.arange(SKETCH_SIZE, dtype="<f8")
WEIGHT = np.arange(6, dtype="<f4").reshape(2, 3)


def call_row(number: int, **changes: Any) -> tuple[Any, ...]:
    row = {
        "call_id": number,
        "step": 0,
        "kind": "operator",
        "phase": "forward",
        "module": "head.fc",
        "module_class": "torch.nn.Linear",
        "op": "torch.nn.functional.linear",
        "call": 0,
        "parent": -1,
        "sequence": 10 * number,
        "stack": 0,
        "arguments": '{"eps": 1e-05}',
        "recomputed": False,
        "conditions": "",
        "random_state": schema.NO_CONTENT,
    }
    return row_of(schema.CALLS, row | changes)


def record_row(call: int, content: int, **changes: Any) -> tuple[Any, ...]:
    row = {
        "call_id": call,
        "phase": "forward",
        "role": "output",
        "index": 0,
        "name": "",
        "sequence": 10 * call + 1,
        "occurrence": 0,
        "content": content,
        "argument": "",
        "layout": "",
        "edge": None,
    }
    return row_of(schema.RECORDS, row | changes)


def content_row(number: int, **changes: Any) -> tuple[Any, ...]:
    row = {
        "content": number,
        "dtype": "float32",
        "shape": [2, 3],
        "device": "cpu",
        "digest": f"digest-{number}",
        "minimum": 0.0,
        "maximum": 5.0,
        "mean": 2.5,
        "norm": math.sqrt(55),
        "nan_count": 0,
        "inf_count": 0,
        "zero_count": 1,
        **{one.name: None for one in STATISTICS if one.added},
        "sketch": SKETCH.tobytes(),
        "stored": None,
        "shard": None,
        "note": None,
    }
    return row_of(schema.CONTENTS, row | changes)


def row_of(table: pl.Schema, row: dict[str, Any]) -> tuple[Any, ...]:
    assert list(row) == list(table)
    return tuple(row.values())


def raw(number: int, values: Any = WEIGHT) -> RawTensor:
    data = np.frombuffer(values.tobytes(), np.uint8)
    return RawTensor(number, str(values.dtype), values.shape, data)


def rank_manifest(name: str = "rank0", **changes: Any) -> dict[str, Any]:
    manifest = RankManifest(
        schema=schema.SCHEMA_VERSION,
        rank=name,
        world_size=1,
        pid=1,
        argv=["train.py"],
        python="3",
        state="complete",
    )
    manifest.steps = [StepSummary(0, complete=True, calls=2), StepSummary(1, complete=True)]
    return dataclasses.asdict(manifest) | changes


def write_run_manifest(directory: Path, **changes: Any) -> None:
    manifest = RunManifest(1, "0.1", "2024-01-01T00:00:00Z", ["python", "train.py"], "/", Options())
    directory.mkdir(parents=True, exist_ok=True)
    text = json.dumps(dataclasses.asdict(manifest) | changes)
    (directory / schema.MANIFEST).write_text(text)


def write_recording(directory: Path, **of_first: Any) -> Path:
    """Two chunks: two calls of step 0, one of step 1; a tensor saved whole; a stack; a module.

    `of_first` is what the first content's row holds otherwise.
    """
    write_run_manifest(directory)
    rank = directory / "rank0"
    rank.mkdir()
    writer = RankWriter(rank)
    writer.add_stack(0, (Frame("net.py", 88, "forward"), Frame("train.py", 3, "main")))
    writer.add_module(("head.fc", "torch.nn.Linear", 6, True, "{}"))
    shard = writer.add_tensor(raw(7))
    writer.add_content(content_row(0, stored=7, shard=shard, **of_first))
    writer.add_record(record_row(0, 0, role="input"))
    writer.add_record(record_row(0, 0, phase="backward", role="grad_input", sequence=90))
    writer.add_call(call_row(0))
    writer.add_call(call_row(1, call=1, recomputed=True))
    writer.flush()
    writer.add_content(content_row(1, shape=[], sketch=None, norm=None, digest=None, note="meta"))
    writer.add_record(record_row(2, 1))
    writer.add_call(call_row(2, step=1, stack=5, arguments="{}"))
    writer.write_manifest(rank_manifest())
    writer.close()
    assert not writer.failure
    return directory


def read_everything(path: Path) -> None:
    """Everything that a recording offers, tensors included."""
    recording = open_recording(path)
    assert isinstance(recording.missing, tuple)
    for rank in recording.ranks.values():
        assert isinstance(rank.module_table, pl.DataFrame)
        for step in rank.steps:
            for call in rank.calls(step):
                for record in call.records:
                    if record.content.loader is not None:
                        record.load()


def without_digests(directory: Path) -> Path:
    """The recording as an earlier build left it, or a hostile one: no digest tells of a changed file."""
    for path in directory.glob("**/manifest.json"):
        manifest = json.loads(path.read_text())
        kept = {key: value for key, value in manifest.items() if key not in ("files", "digest")}
        path.write_text(json.dumps(kept))
    return directory


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """A small whole recording whose files can be damaged without a digest telling of it."""
    return without_digests(write_recording(tmp_path / "ref"))


# --- round trip ------------------------------------------------------------------------------


def test_calls_and_records_are_read_back(recording: Path) -> None:
    rank = open_recording(recording).ranks["rank0"]
    assert (rank.steps, rank.complete_steps, rank.missing) == ((0, 1), (0, 1), ())
    first, second = rank.calls(0)
    assert first.site == Site("head.fc", "torch.nn.functional.linear", 0, Phase.FORWARD)
    assert (first.kind, first.step, first.rank) == (CallKind.OPERATOR, 0, "rank0")
    assert first.arguments == {"eps": 1e-5}
    assert [str(frame) for frame in first.stack] == ["net.py:88", "train.py:3"]
    assert first.source == "net.py:88"
    assert (second.recomputed, second.records) == (True, ())
    assert [record.role for record in first.records] == [Role.INPUT, Role.GRAD_INPUT]
    assert [record.site.phase for record in first.records] == [Phase.FORWARD, Phase.BACKWARD]


def test_arguments_of_one_call_are_no_others(recording: Path) -> None:
    calls = open_recording(recording).ranks["rank0"].calls(0)
    # given calls of which several have the same arguments, then each has its own
    assert len({id(call.arguments) for call in calls}) == len(calls) > 1


def test_contents_are_read_back_and_tensors_load(recording: Path) -> None:
    record = open_recording(recording).ranks["rank0"].calls(0)[0].records[0]
    assert (record.dtype, record.shape, record.digest) == ("float32", (2, 3), "digest-0")
    assert record.statistics is not None
    assert (record.statistics.norm, record.statistics.zero_count) == (math.sqrt(55), 1)
    np.testing.assert_array_equal(record.content.sketch, SKETCH)
    np.testing.assert_array_equal(record.load(), WEIGHT)


def test_every_declared_number_is_kept_bounded_and_shown(tmp_path: Path) -> None:
    # given a recording whose content has each declared number, another one each
    told = {
        one.name: str(place) if one.kind is str else place for place, one in enumerate(STATISTICS)
    }
    path = write_recording(tmp_path / "sound", **told)

    # when it is read, then each comes back, and stands in a table under its name
    statistics = open_recording(path).ranks["rank0"].calls(0)[0].records[0].statistics
    assert statistics is not None
    assert {name: getattr(statistics, name) for name in told} == told
    row = record_table(open_recording(path)).row(0, named=True)
    assert {name: row[name] for name in HEADINGS} == {name: told[name] for name in HEADINGS}

    # and what lies below a declared bound is damage
    for one in STATISTICS:
        if one.least is None:
            continue
        below = write_recording(tmp_path / one.name, **{one.name: one.least - 1})
        with pytest.raises(CorruptError, match=one.name):
            open_recording(below).ranks["rank0"].calls(0)


def test_what_was_not_taken_is_absent(recording: Path) -> None:
    (call,) = open_recording(recording).ranks["rank0"].calls(1)
    content = call.records[0].content
    assert (content.statistics, content.sketch, content.digest) == (None, None, None)
    assert (content.note, content.shape, call.stack) == ("meta", (), ())
    with pytest.raises(LookupError, match="--save tensors"):
        content.load()


def test_records_of_all_ranks_come_in_order(recording: Path) -> None:
    for name in ("rank10", "rank2", "rank0-1"):
        shutil.copytree(recording / "rank0", recording / name)
        (recording / name / schema.MANIFEST).write_text(json.dumps(rank_manifest(name)))
    opened = open_recording(recording)
    assert list(opened.ranks) == ["rank0", "rank0-1", "rank2", "rank10"]
    assert [record.rank for record in opened.records()] == [
        name for name in opened.ranks for _ in range(3)
    ]


def test_a_rank_under_the_name_of_another_is_refused(recording: Path) -> None:
    # given two ranks that somebody has mixed up: each would be compared with the wrong partner
    (recording / "rank0").rename(recording / "rank1")
    with pytest.raises(CorruptError, match="rank1: is the directory of rank0, by its manifest"):
        open_recording(recording)


@pytest.mark.parametrize(
    ("world_size", "words"),
    [
        (1, ()),
        (2, ("rank1: not in this recording, as 1 of the training's 2 processes",)),
        (
            1 << 62,
            (f"rank1: not in this recording, as {2**62 - 1} of the training's {2**62} processes",),
        ),
    ],
)
def test_ranks_that_are_not_here_are_said(
    recording: Path, world_size: int, words: tuple[str, ...]
) -> None:
    # given a recording of one process of so many
    manifest = rank_manifest(world_size=world_size)
    (recording / "rank0" / schema.MANIFEST).write_text(json.dumps(manifest))
    opened = open_recording(recording)
    assert opened.missing == words
    assert opened.unrecorded == ((f"some of {world_size} ranks",) if words else ())


def test_ranks_that_were_not_asked_for_are_not_missed(recording: Path) -> None:
    write_run_manifest(recording, options=dataclasses.asdict(Options(ranks="0")))
    manifest = rank_manifest(world_size=4)
    (recording / "rank0" / schema.MANIFEST).write_text(json.dumps(manifest))
    assert open_recording(recording).missing == ()


def test_a_directory_named_like_a_pattern_opens(recording: Path, tmp_path: Path) -> None:
    moved = recording.rename(tmp_path / "run[1]*step=3")
    read_everything(moved)


def test_an_unfinished_run_says_what_is_missing(recording: Path) -> None:
    steps = [dataclasses.asdict(StepSummary(0, complete=True)), {"index": 1, "complete": False}]
    manifest = rank_manifest(state="recording", steps=steps)
    (recording / "rank0" / schema.MANIFEST).write_text(json.dumps(manifest))
    assert open_recording(recording).missing == (
        "rank0: the run was cut off before the recording was closed",
        "rank0: step 1 is incomplete, it holds what was flushed before the end",
    )


def test_a_chunk_counts_once_its_records_are_there(recording: Path) -> None:
    # given a recording that was killed before the last file of a chunk was there
    (recording / "rank0" / schema.MANIFEST).write_text(json.dumps(rank_manifest(state="recording")))
    (recording / "rank0" / "records-00001.parquet").unlink()
    # then the chunk does not count
    assert open_recording(recording).ranks["rank0"].steps == (0,)


def test_a_run_without_ranks_says_that_nothing_was_recorded(tmp_path: Path) -> None:
    write_run_manifest(tmp_path / "ref")
    (sentence,) = open_recording(tmp_path / "ref").missing
    assert "nothing was recorded" in sentence


# --- bad directories --------------------------------------------------------------------------


def make_nothing(path: Path) -> None:
    """Leave the path missing."""


def make_file(path: Path) -> None:
    path.write_text("x")


def make_foreign(path: Path) -> None:
    path.mkdir()
    (path / "dump.pkl").write_bytes(b"x")


def make_own_tensors(path: Path) -> None:
    path.mkdir()
    (path / "layer1_out.pt").write_bytes(b"x")


def make_foreign_manifest(path: Path) -> None:
    path.mkdir()
    (path / schema.MANIFEST).write_text('{"name": "a web page"}')


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_nothing, "no such directory"),
        (make_file, "is a file"),
        (Path.mkdir, "is empty"),
        (make_foreign, r"holds no manifest\.json, so .*; give the directory"),
        (
            make_own_tensors,
            r"of your own say how names are built: --format 'tensors:\{module\}\.pt'",
        ),
        (make_foreign_manifest, "is not one of Lockstep's"),
    ],
)
def test_what_is_no_recording_is_said_to_be_none(
    make: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    make(tmp_path / "ref")
    with pytest.raises(NotARecordingError, match=message):
        open_recording(tmp_path / "ref")


@pytest.mark.parametrize("where", [".", "rank0"])
def test_a_newer_schema_asks_for_an_upgrade(recording: Path, where: str) -> None:
    path = recording / where / schema.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 99}))
    with pytest.raises(VersionError, match=r"schema version 99.*upgrade"):
        open_recording(recording)


def test_sketches_of_an_older_schema_are_left_out_in_one_sentence(recording: Path) -> None:
    # given a recording whose sketches were taken by another plan
    path = recording / "rank0" / schema.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": 1}))
    # when it is opened
    opened = open_recording(recording)
    # then it says so once, and what else is known of a tensor stays
    sentences = [text for text in opened.missing if "sketches" in text]
    assert len(sentences) == 1
    assert "schema version 1" in sentences[0]
    assert "record again" in sentences[0]
    content = opened.ranks["rank0"].calls(0)[0].records[0].content
    assert content.sketch is None
    assert content.statistics is not None
    np.testing.assert_array_equal(content.load(), WEIGHT)


@pytest.mark.parametrize("version", [2, 3])
def test_digests_of_an_older_schema_are_told_of(recording: Path, version: int) -> None:
    # given a recording whose long tensors were digested in another way
    path = recording / "rank0" / schema.MANIFEST
    path.write_text(json.dumps(json.loads(path.read_text()) | {"schema": version}))
    # when it is opened, then it says so, and its sketches count
    opened = open_recording(recording)
    (sentence,) = opened.missing
    assert f"digests of long tensors are those of schema version {version}" in sentence
    assert opened.ranks["rank0"].calls(0)[0].records[0].content.sketch is not None


def test_sketches_are_left_out_on_request(recording: Path) -> None:
    # when a recording is opened as if it held statistics alone
    opened = open_recording(recording, read_sketches=False)
    # then no sketch is there, and nothing is said to be missing
    content = opened.ranks["rank0"].calls(0)[0].records[0].content
    assert (content.sketch, opened.missing) == (None, ())
    assert content.statistics is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        '{"schema": 1, "command": []',
        '{"schema": 1}',
        '{"schema": 0, "command": []}',
        '{"schema": true, "command": []}',
        '{"schema": "1", "command": []}',
        '{"schema": 1, "command": [1]}',
        '{"schema": 1, "command": 5}',
        '{"schema": 1, "command": []}',
        "[" * 100_000,
        "\udcff",
    ],
)
@pytest.mark.parametrize("where", [".", "rank0"])
def test_a_damaged_manifest_is_named(recording: Path, where: str, text: str) -> None:
    path = recording / where / schema.MANIFEST
    path.write_text(text, errors="surrogateescape")
    with pytest.raises(RecordingError, match=str(recording.name)):
        open_recording(recording)


def test_a_rank_without_its_manifest_is_named(recording: Path) -> None:
    (recording / "rank0" / schema.MANIFEST).unlink()
    with pytest.raises(CorruptError, match=r"rank0.manifest\.json: cannot be read"):
        open_recording(recording)


# --- bad tables -------------------------------------------------------------------------------

TABLES = ("calls-00000", "records-00000", "contents-00000", "stacks", "modules")


def changed(path: Path, change: Callable[[pl.DataFrame], pl.DataFrame]) -> None:
    frame = change(pl.read_parquet(path.read_bytes()))
    frame.write_parquet(path)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: b"PAR1 garbage PAR1", lambda data: data[: len(data) // 2]],
    ids=["empty", "garbage", "truncated"],
)
def test_a_damaged_table_is_named(
    recording: Path, table: str, damage: Callable[[bytes], bytes]
) -> None:
    path = recording / "rank0" / f"{table}.parquet"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(CorruptError, match=rf"{table}\.parquet: cannot be read as Parquet"):
        read_everything(recording)


@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("calls-00000", "arguments"),
        ("records-00000", "role"),
        ("contents-00000", "digest"),
        ("stacks", "line"),
        ("modules", "training"),
    ],
)
def test_a_missing_column_is_named(recording: Path, table: str, column: str) -> None:
    changed(recording / "rank0" / f"{table}.parquet", lambda frame: frame.drop(column))
    with pytest.raises(CorruptError, match=rf"{table}\.parquet: lacks the column '{column}'"):
        read_everything(recording)


@pytest.mark.parametrize(
    ("table", "column", "value", "message"),
    [
        ("calls-00000", "step", "zero", "wrong type"),
        ("calls-00000", "step", None, "'step' has gaps"),
        ("calls-00000", "phase", "sideways", "call 0 is malformed"),
        ("calls-00000", "kind", "sandwich", "call 0 is malformed"),
        ("calls-00000", "arguments", "{", "call 0 is malformed"),
        ("calls-00000", "arguments", "[1]", "not a JSON object"),
        ("calls-00000", "arguments", "[" * 100_000, "call 0 is malformed"),
        ("records-00000", "role", "villain", "call 0 is malformed"),
        ("records-00000", "content", 99, "tensor content 99 is missing"),
        ("contents-00000", "shape", None, "'shape' has gaps"),
        ("contents-00000", "shape", [-2, -3], "impossible shape"),
        ("contents-00000", "shape", [2, None], "impossible shape"),
        ("contents-00000", "shape", [1 << 62], "impossible shape"),
        ("modules", "module", "a" + ".a" * 1200, "a module lies within 1200 others"),
        ("contents-00000", "shape", [2, 4], "6 elements"),
        ("contents-00000", "sketch", b"short", "sketch of tensor 0 has a wrong length"),
        ("contents-00000", "shard", 5, r"tensors-00005\.safetensors"),
        ("contents-00000", "shard", -1, r"contents-00000\.parquet: the column 'shard' holds -1"),
        ("contents-00000", "norm", -2.0, r"the column 'norm' holds -2\.0"),
        ("calls-00000", "step", -1, r"calls-00000\.parquet: the column 'step' holds -1"),
        ("calls-00000", "parent", -2, "the column 'parent' holds -2"),
        ("calls-00000", "parent", 1, "a call lies within one that came after it, or within itself"),
        ("calls-00000", "call_id", 0, "two calls have the number 0"),
        ("records-00000", "content", -1, "the column 'content' holds -1"),
        ("stacks", "function", "f" * (5 << 20), r"stacks\.parquet: holds texts of \d+ bytes"),
        ("contents-00000", "stored", 8, "tensor 8 is not in this file"),
        ("contents-00000", "stored", None, "tensor None is not in this file"),
        ("stacks", "line", None, "'line' has gaps"),
    ],
)
def test_a_wrong_value_is_named(
    recording: Path, table: str, column: str, value: object, message: str
) -> None:
    path = recording / "rank0" / f"{table}.parquet"

    def replace(frame: pl.DataFrame) -> pl.DataFrame:
        kind = None if isinstance(value, str) else frame.schema[column]
        values = pl.Series(column, [value] * len(frame), dtype=kind)
        return frame.with_columns(values)

    changed(path, replace)
    with pytest.raises(CorruptError, match=message):
        read_everything(recording)


def damageable(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file())


@settings(
    deadline=None, max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_no_damage_raises_anything_but_a_recording_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Flip bytes in, or cut, any one file: reading it all succeeds or says what is wrong."""
    recording = write_recording(tmp_path_factory.mktemp("fuzz") / "ref")
    files = damageable(recording)
    file = files[data.draw(st.integers(0, len(files) - 1), label=str([f.name for f in files]))]
    content = bytearray(file.read_bytes())
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    file.write_bytes(content[:cut])
    try:
        read_everything(recording)
    except RecordingError as error:
        assert str(recording) in str(error)  # noqa: PT017 - success is allowed as well
    finally:
        shutil.rmtree(recording)


# --- writing ----------------------------------------------------------------------------------


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    """An empty rank directory inside a recording with a manifest."""
    write_run_manifest(tmp_path / "ref")
    path = tmp_path / "ref" / "rank0"
    path.mkdir()
    (path / schema.MANIFEST).write_text(json.dumps(rank_manifest(state="recording")))
    return path


def test_very_short_steps_are_written_together(rank: Path) -> None:
    # given two steps that end one right after the other
    told: list[int] = []

    def manifest(step: int) -> dict[str, Any]:
        told.append(step)
        return rank_manifest()

    writer = RankWriter(rank)
    for step in (0, 1):
        writer.add_record(record_row(step, step))
        writer.step_ended(step, partial(manifest, step))
    # when what was handed over is written
    writer.drain()
    # then the first step is there, the second one still waits, and comes with the end
    assert told == [0]
    assert not (rank / schema.chunk_name("records", 1)).exists()
    writer.end(partial(manifest, 2))
    assert writer.wait()
    assert told == [0, 2]
    assert (rank / schema.chunk_name("records", 1)).exists()


def test_a_short_step_before_a_long_wait_is_written_in_the_meantime(
    rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a training that stops in the middle of nowhere after two short steps
    monkeypatch.setattr("lockstep.store.writer.REST_S", 0.01)
    written = threading.Event()

    def manifest() -> dict[str, Any]:
        written.set()
        return rank_manifest()

    writer = RankWriter(rank)
    writer.step_ended(0, rank_manifest)
    writer.add_record(record_row(1, 1))
    writer.step_ended(1, manifest)
    # when nothing more comes, then the second step is written by itself, rows first
    assert written.wait(60)
    assert (rank / schema.chunk_name("records", 0)).exists()
    writer.close()


def test_full_memory_makes_the_training_wait_and_says_so_once(
    rank: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk that takes nothing yet, and memory for two tensors
    gate, waiting = threading.Event(), threading.Event()
    write_files, say_full = RankWriter._write_files, RankWriter._say_full

    def held_up(self: RankWriter, *arguments: Any) -> None:
        gate.wait()
        write_files(self, *arguments)

    def say_full_and_tell(self: RankWriter) -> None:
        say_full(self)
        waiting.set()

    monkeypatch.setattr(RankWriter, "_write_files", held_up)
    monkeypatch.setattr(RankWriter, "_say_full", say_full_and_tell)
    monkeypatch.setattr("lockstep.store.writer._SHARD_BYTES", WEIGHT.nbytes)
    writer = RankWriter(rank, memory_bytes=4 * WEIGHT.nbytes)
    added: list[int] = []

    def train() -> None:
        for number in range(6):
            writer.add_tensor(raw(number))
            added.append(number)

    # when six are given
    training = threading.Thread(target=train)
    training.start()
    assert waiting.wait(60)
    # then the third waits until the disk takes some, and all of them arrive
    assert added == [0, 1]
    gate.set()
    training.join()
    writer.close()
    assert added == [0, 1, 2, 3, 4, 5]
    assert capsys.readouterr().err.count("the disk is slower than the training") == 1
    assert not writer.failure


def test_many_waiting_chunks_make_the_training_wait_too(
    rank: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk that takes nothing yet
    gate, waiting = threading.Event(), threading.Event()
    monkeypatch.setattr(RankWriter, "_write_files", lambda *_: gate.wait())
    monkeypatch.setattr(RankWriter, "_say_full", lambda _: waiting.set())
    writer = RankWriter(rank)
    ended: list[int] = []

    def train() -> None:
        for number in range(100):
            writer.add_call(call_row(number))
            writer.flush()
            ended.append(number)

    # when a training ends step after step
    training = threading.Thread(target=train)
    training.start()
    assert waiting.wait(60)
    # then it waits, and ends once the disk takes what there is
    assert len(ended) == writer.waiting_chunks < 100
    gate.set()
    training.join()
    writer.close()
    assert len(ended) == 100


def test_a_tensor_larger_than_all_memory_is_written_without_a_copy(rank: Path) -> None:
    writer = RankWriter(rank, memory_bytes=1)
    shards = [writer.add_tensor(raw(number, WEIGHT + number)) for number in range(3)]
    writer.close()
    assert not writer.failure
    files = TensorFiles(rank)
    for number, shard in enumerate(shards):
        assert files.load(shard, number).tolist() == (WEIGHT + number).tolist()


def test_the_end_is_written_while_others_work(rank: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a disk that takes nothing yet
    gate = threading.Event()
    write_files = RankWriter._write_files

    def held_up(self: RankWriter, *arguments: Any) -> None:
        gate.wait()
        write_files(self, *arguments)

    monkeypatch.setattr(RankWriter, "_write_files", held_up)
    writer = RankWriter(rank)
    add_step(writer, 0, WEIGHT)
    asked: list[str] = []

    def manifest() -> dict[str, Any]:
        asked.append(writer.failure)
        return rank_manifest()

    # when the recording ends
    writer.end(manifest)
    # then it returns at once, and the manifest is made when all else is written
    assert not writer.wait(0)
    assert asked == []
    gate.set()
    assert writer.wait()
    assert asked == [""]
    assert open_recording(rank.parent).ranks["rank0"].missing == ()


def test_the_cap_on_bytes_stops_writing_with_a_reason(rank: Path) -> None:
    writer = RankWriter(rank, max_bytes=100_000)
    for number in range(2):
        add_step(writer, number, np.zeros(2000, np.uint8))
        writer.flush()
        writer.drain()
    add_step(writer, 2, np.zeros(200_000, np.uint8))
    writer.close()
    assert writer.failure == "--max-bytes 100000 reached"
    assert open_recording(rank.parent).ranks["rank0"].steps == (0, 1)


def add_step(writer: RankWriter, number: int, values: Any) -> None:
    shard = writer.add_tensor(raw(number, values))
    shape = list(values.shape)
    writer.add_content(content_row(number, dtype="uint8", shape=shape, stored=number, shard=shard))
    writer.add_record(record_row(number, number))
    writer.add_call(call_row(number, step=number))


@pytest.mark.parametrize(("whole_bytes", "kept"), [(50_000, (0, 1)), (500, (0, 1, 2))])
def test_of_steps_that_do_not_fit_together_those_that_fit_are_kept(
    rank: Path, whole_bytes: int, kept: tuple[int, ...]
) -> None:
    # given three steps that end one right after the other, and a cap that two or three of them fit into
    writer = RankWriter(rank, max_bytes=110_000)
    summaries: list[StepSummary] = []

    def manifest() -> dict[str, Any]:
        told = {
            "stopped_because": writer.failure,
            "steps": list(map(dataclasses.asdict, summaries)),
        }
        return rank_manifest(state="complete", **told)

    for number in range(3):
        add_step(writer, number, random_bytes(whole_bytes if number else 8))
        summaries.append(StepSummary(number, complete=True, calls=1))
        writer.step_ended(number, manifest)
    # when what waits for the disk is written
    writer.end(manifest)
    assert writer.wait()
    # then those of which everything is there count, and can be read, and it is said why there are no more
    assert bool(writer.failure) is (kept != (0, 1, 2))
    read_everything(rank.parent)
    opened = open_recording(rank.parent).ranks["rank0"]
    assert opened.complete_steps == kept
    assert opened.manifest.stopped_because == writer.failure
    assert opened.calls(1)[0].records[0].load().nbytes == whole_bytes


def random_bytes(count: int) -> Any:
    return np.random.default_rng(0).integers(0, 255, count, np.uint8)


def test_a_row_that_cannot_be_written_is_a_failure_and_not_a_hang(rank: Path) -> None:
    writer = RankWriter(rank)
    add_step(writer, 0, np.zeros(8, np.uint8))
    writer.flush()
    writer.add_call(call_row(1, module=["no", "text"]))
    writer.close()
    assert str(rank) in writer.failure
    assert open_recording(rank.parent).ranks["rank0"].steps == (0,)
    assert not list(rank.glob(".*"))


FILL_THE_DISK = """
import resource, sys
from pathlib import Path
import numpy as np
sys.path.insert(0, sys.argv[2])
import test_recording as made

resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
writer = made.RankWriter(Path(sys.argv[1]))
made.add_step(writer, 0, np.zeros(50_000, np.uint8))
writer.flush()
made.add_step(writer, 1, np.zeros(200_000, np.uint8))
writer.flush()
made.add_step(writer, 2, np.zeros(8, np.uint8))
writer.close()
print(writer.failure)
"""


def test_a_disk_that_refuses_keeps_what_was_flushed(rank: Path) -> None:
    """A file may not grow beyond 100 kB, as on a disk that is full."""
    ended = subprocess.run(
        [sys.executable, "-c", FILL_THE_DISK, str(rank), str(Path(__file__).parent)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.startswith("File too large")
    assert not list(rank.glob(".*"))
    opened = open_recording(rank.parent).ranks["rank0"]
    assert opened.steps == (0,)
    assert opened.calls(0)[0].records[0].load().shape == (50_000,)


def test_a_writer_killed_in_the_middle_of_a_file_leaves_readable_chunks(rank: Path) -> None:
    writer = RankWriter(rank)
    add_step(writer, 0, np.zeros(8, np.uint8))
    writer.close()
    for name in ("contents-00001", "calls-00001"):  # written before its records file
        shutil.copy(rank / "calls-00000.parquet", rank / f"{name}.parquet")
    (rank / ".records-00001.parquet.part").write_bytes(b"PAR1 half of")
    read_everything(rank.parent)
    assert open_recording(rank.parent).ranks["rank0"].steps == (0,)


def test_nothing_to_write_leaves_no_chunk(rank: Path) -> None:
    writer = RankWriter(rank)
    writer.flush()
    writer.close()
    assert [path.name for path in rank.iterdir()] == [schema.MANIFEST]


def test_a_recording_of_an_earlier_build_lacks_only_what_was_added(tmp_path: Path) -> None:
    # Given a recording made before it was noted which argument a parameter is
    directory = without_digests(write_recording(tmp_path / "run"))
    for chunk in (directory / "rank0").glob("records-*.parquet"):
        pl.read_parquet(chunk).drop("argument", "edge").write_parquet(chunk)
    # When it is opened, then everything else is there
    first = open_recording(directory).ranks["rank0"].calls(step=0)[0]
    assert {(record.argument, record.edge) for record in first.records} == {("", None)}
    assert first.with_role(Role.INPUT)[0].content.id == 0


def test_an_edge_that_is_no_number_of_one_is_damage(tmp_path: Path) -> None:
    directory = without_digests(write_recording(tmp_path / "run"))
    for chunk in (directory / "rank0").glob("records-*.parquet"):
        pl.read_parquet(chunk).with_columns(edge=pl.lit(-3, pl.Int64())).write_parquet(chunk)
    with pytest.raises(CorruptError, match="-3 is no edge"):
        open_recording(directory).ranks["rank0"].calls(step=0)


def test_edges_are_read_as_they_were_written(tmp_path: Path) -> None:
    directory = without_digests(write_recording(tmp_path / "run"))
    for chunk in (directory / "rank0").glob("records-*.parquet"):
        pl.read_parquet(chunk).with_columns(edge=pl.lit(1 << 40, pl.Int64())).write_parquet(chunk)
    first = open_recording(directory).ranks["rank0"].calls(step=0)[0]
    assert {record.edge for record in first.records} == {1 << 40}
