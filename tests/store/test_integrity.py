"""Files that were changed, cut or taken away after they were written are named; untouched ones are read in silence."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from test_recording import (
    add_step,
    rank_manifest,
    raw,
    read_everything,
    record_row,
    without_digests,
    write_recording,
    write_run_manifest,
)

from lockstep.core.errors import CorruptError
from lockstep.store import schema
from lockstep.store.integrity import with_digest
from lockstep.store.reader import open_recording
from lockstep.store.writer import RankWriter


def closed_recording(directory: Path, steps: int = 2, **options: int) -> Path:
    """A recording that was closed as the recorder closes one, a chunk a step."""
    write_run_manifest(directory)
    rank = directory / "rank0"
    rank.mkdir()
    writer = RankWriter(rank, **options)
    writer.add_stack(0, ())
    writer.add_module(("head.fc", "torch.nn.Linear", 6, True, "{}"))
    for number in range(steps):
        add_step(writer, number, np.full(1 << 16, number, np.uint8))
        writer.flush()
        writer.step_ended(number, partial(manifest_of, writer, number + 1, state="recording"))
    writer.end(partial(manifest_of, writer, steps))
    assert writer.wait()
    return directory


def manifest_of(writer: RankWriter, steps: int, state: str = "complete") -> dict[str, object]:
    done = [{"index": step, "complete": True, "calls": 1} for step in range(steps)]
    return rank_manifest(steps=done, state=state, stopped_because=writer.failure)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound recording, not to be written to."""
    return closed_recording(tmp_path_factory.mktemp("sound") / "ref")


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    """A copy of it to be damaged."""
    for path in sound.rglob("*.*"):
        (tmp_path / "ref" / path.relative_to(sound)).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "ref" / path.relative_to(sound)).write_bytes(path.read_bytes())
    return tmp_path / "ref"


FILES = (
    "rank0/calls-00000.parquet",
    "rank0/records-00000.parquet",
    "rank0/contents-00000.parquet",
    "rank0/tensors-00000.safetensors",
    "rank0/stacks.parquet",
    "rank0/modules.parquet",
    "rank0/manifest.json",
)


def test_what_is_as_it_was_written_is_read_in_silence(sound: Path, copy: Path) -> None:
    read_everything(sound)
    read_everything(copy)
    listed = open_recording(copy).ranks["rank0"].manifest.files
    written = {path.name for path in (copy / "rank0").iterdir()} - {schema.MANIFEST}
    assert set(listed) == written


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_one_byte_that_changed_is_told_of_with_its_file(
    copy: Path, name: str, place: float
) -> None:
    # Given a recording in one file of which one bit is another one
    path = copy / name
    data = bytearray(path.read_bytes())
    data[int(place * len(data))] ^= 1
    path.write_bytes(data)
    # When it is read, then one sentence names the file
    with pytest.raises(CorruptError, match=path.name) as told:
        read_everything(copy)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize("name", FILES[:-1])
def test_a_file_that_is_gone_is_told_of_when_the_recording_is_opened(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(CorruptError, match=rf"{Path(name).name}: was written and is gone"):
        open_recording(copy)


def test_a_file_that_was_cut_is_told_of_when_the_recording_is_opened(copy: Path) -> None:
    path = copy / "rank0" / "tensors-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CorruptError,
        match=r"tensors-00000\.safetensors: was changed: it has \d+ bytes, and \d+ were",
    ):
        open_recording(copy)


def test_a_manifest_of_a_hostile_name_is_refused(copy: Path) -> None:
    path = copy / "rank0" / schema.MANIFEST
    value = json.loads(path.read_text())
    value["files"]["../../secret"] = "5 " + 32 * "0"
    path.write_text(json.dumps(value))
    with pytest.raises(CorruptError, match="its manifest lists the file"):
        open_recording(copy)


def test_a_killed_recording_is_held_against_what_was_listed_until_then(tmp_path: Path) -> None:
    # Given a recording that ends without being closed, after a second chunk that no manifest lists
    write_run_manifest(tmp_path / "ref")
    rank = tmp_path / "ref" / "rank0"
    rank.mkdir()
    writer = RankWriter(rank)
    add_step(writer, 0, np.zeros(8, np.uint8))
    writer.step_ended(0, partial(manifest_of, writer, 1, state="recording"))
    writer.add_module(("late", "torch.nn.Linear", 6, True, "{}"))
    add_step(writer, 1, np.zeros(8, np.uint8))
    writer.close()
    # Then it opens, tables that have grown since included
    read_everything(tmp_path / "ref")
    opened = open_recording(tmp_path / "ref").ranks["rank0"]
    assert (opened.steps, opened.complete_steps) == ((0, 1), (0,))
    # And a chunk that is gone from its middle is told of
    (rank / "records-00000.parquet").unlink()
    with pytest.raises(CorruptError, match=r"records-00000\.parquet: was written and is gone"):
        open_recording(tmp_path / "ref")


def test_records_that_are_gone_from_an_older_recording_are_told_of(tmp_path: Path) -> None:
    # Given a closed recording of an earlier build, which lists no files, and reads in silence
    directory = without_digests(write_recording(tmp_path / "ref"))
    read_everything(directory)
    # When the records of its last chunk are taken away
    (directory / "rank0" / "records-00001.parquet").unlink()
    # Then that is told of
    with pytest.raises(CorruptError, match=r"records-00001\.parquet: was written and is gone"):
        read_everything(directory)


def test_a_step_of_which_rows_were_refused_is_not_complete(tmp_path: Path) -> None:
    # Given a cap on bytes that takes the first of three steps
    directory = closed_recording(tmp_path / "ref", steps=3, max_bytes=100_000)
    # Then the others are not complete, though they had ended before the cap was met
    rank = open_recording(directory).ranks["rank0"]
    assert rank.complete_steps == (0,)
    assert [step.complete for step in rank.manifest.steps] == [True, False, False]
    assert "--max-bytes 100000 reached" in rank.missing[0]
    read_everything(directory)


def test_the_end_of_a_step_may_be_refused_after_its_beginning_was_written(rank: Path) -> None:
    # Given a step whose first rows are written, and whose last ones a cap refuses
    writer = RankWriter(rank, max_bytes=100_000)
    add_step(writer, 0, np.zeros(8, np.uint8))
    writer.flush()
    writer.drain()
    writer.add_record(record_row(0, 0, phase="backward", role="grad_input", sequence=90))
    writer.add_tensor(raw(5, np.arange(1 << 18, dtype=np.float32)))
    writer.step_ended(0, partial(manifest_of, writer, 1, state="recording"))
    writer.end(partial(manifest_of, writer, 1))
    assert writer.wait()
    # Then it is there, and not complete
    opened = open_recording(rank.parent).ranks["rank0"]
    assert (opened.steps, opened.complete_steps) == ((0,), ())


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    """An empty rank directory inside a recording with a manifest."""
    write_run_manifest(tmp_path / "ref")
    path = tmp_path / "ref" / "rank0"
    path.mkdir()
    return path


@pytest.mark.parametrize("text", ['{\n "state": "complete"\n}', '{\n "ü": [\n  1\n ]\n}'])
def test_a_manifest_with_its_digest_is_the_same_json(text: str) -> None:
    value = json.loads(with_digest(text))
    assert len(value.pop("digest")) == 32
    assert value == json.loads(text)
