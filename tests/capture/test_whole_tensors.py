"""`save="tensors"`: every tensor's own bits come back, most of them without bytes of their own."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import Training, check, supervised, trace_of
from torch import Tensor, nn

import lockstep
from lockstep.capture.rows.session import Session
from lockstep.capture.tensors.contents import Contents
from lockstep.core.formulas import Operation, Stored
from lockstep.core.records import Content
from lockstep.kernels.digest import digest_of_bytes
from lockstep.store.derived.derived_tensor import Derived
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.small_tensors import SmallContent
from lockstep.store.tensor_files import TensorFiles
from lockstep.store.writer import RankWriter, Row


class Net(nn.Module):
    """A gelu written out, split and transposed views, and a weight that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.both = nn.Embedding(2000, 48), nn.Linear(48, 96)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        left, right = self.both(x).split(48, dim=-1)
        x = left.transpose(0, 1) * right.transpose(0, 1) + x.transpose(0, 1)
        x = 0.5 * x * (1.0 + torch.tanh(0.797 * (x + 0.044715 * torch.pow(x, 3.0))))
        return nn.functional.linear(x, self.embed.weight)


def tokens() -> tuple[Tensor]:
    return (torch.randint(0, 2000, (8, 16)),)


def contents_of(rank: RankRecording) -> dict[int, Content]:
    """Distinct contents that are saved whole."""
    return {
        record.content.id: record.content
        for step in rank.steps
        for call in rank.calls(step)
        for record in call.records
        if record.content.loader is not None
    }


def derived_share(recording: Recording) -> float:
    """Bytes that no file holds, as a share of all distinct bytes; each tensor is held against its digest."""
    rank = recording.ranks["rank0"]
    distinct = {}
    for content in contents_of(rank).values():
        array = np.ascontiguousarray(content.load())
        assert digest_of_bytes(array.reshape(-1).view(np.uint8)) == content.digest
        distinct[content.digest] = array.nbytes
    files = rank.path.glob("*.safetensors")
    return 1 - sum(file.stat().st_size for file in files) / sum(distinct.values())


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        lambda parameters: torch.optim.Adam(parameters, lr=1e-3, weight_decay=0.1),
        lambda parameters: torch.optim.SGD(
            parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1
        ),
    ],
    ids=["AdamW", "Adam", "SGD"],
)
def test_every_tensor_comes_back_and_many_take_no_room(tmp_path: Path, make: Any) -> None:
    def build() -> Training:
        model = Net()
        return supervised(model, tokens, optimizer=make(model.parameters()))

    recording = check(build, tmp_path / "ref", steps=4, save="tensors")

    assert derived_share(recording) > 0.2


def test_gradients_that_accumulate_are_sums(tmp_path: Path) -> None:
    def build() -> Training:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> list[Tensor]:
            optimizer.zero_grad()
            losses = [model(*tokens()).square().mean() for _ in range(2)]
            for loss in losses:
                loss.backward()
            optimizer.step()
            return [loss.detach() for loss in losses]

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref", steps=1, save="tensors")

    assert derived_share(recording) > 0.2
    rank = recording.ranks["rank0"]
    sums = [
        record
        for call in rank.calls(0)
        if call.site.op == "accumulate_grad"
        for record in call.records
        if record.name == "embed.weight"
    ]
    assert len(sums) == 2
    place = {row["content"]: (row["shard"], row["stored"]) for row in content_rows(rank)}
    files = TensorFiles(rank.path)
    for record in sums:
        assert isinstance(files.find(Stored(*place[record.content.id])), Derived)


def content_rows(rank: RankRecording) -> list[dict[str, Any]]:
    import polars as pl

    frames = [pl.read_parquet(path) for path in sorted(rank.path.glob("contents-*.parquet"))]
    rows: list[dict[str, Any]] = pl.concat(frames).rows(named=True)
    return rows


class Sink:
    """Takes rows, and tensors as the real writer does."""

    def __init__(self, directory: Path) -> None:
        self.rows: list[Row] = []
        self.writer = RankWriter(directory)

    def add_content(self, row: Row) -> None:
        self.rows.append(row)

    def add_small_content(self, content: SmallContent) -> int:
        return self.writer.add_small_content(content)

    def add_tensor(self, tensor: Any) -> int:
        return self.writer.add_tensor(tensor)


def test_what_a_faulty_device_returned_is_kept_as_it_was(tmp_path: Path) -> None:
    # given a sum that is a fiftieth off throughout, said to be the sum of what was seen before
    sink = Sink(tmp_path)
    contents = Contents(sink, "tensors")
    left, right = torch.randn(2, 5000).unbind()
    parts = [contents.stored(contents.of(tensor)) for tensor in (left, right)]
    assert all(parts)
    formula = Operation("add", tuple(part for part in parts if part is not None))
    faulty, sound = (left + right) * 1.02, left + right
    # when both are recorded
    places = [contents.stored(contents.of(tensor, formula)) for tensor in (faulty, sound)]
    sink.writer.close()
    # then both come back, and only the sound one without bytes of its own
    files = TensorFiles(tmp_path)
    for place, tensor, is_derived in zip(places, (faulty, sound), (False, True), strict=True):
        assert place is not None
        assert isinstance(files.find(place), Derived) is is_derived
        assert files.load(place.shard, place.number).tobytes() == tensor.numpy().tobytes()


def test_views_of_what_is_stored_take_no_room(tmp_path: Path) -> None:
    # given views of a stored tensor, and one of a storage that was changed since
    sink = Sink(tmp_path)
    contents = Contents(sink, "tensors")
    base = torch.randn(60, 80)
    contents.of(base)
    seen = [base.t(), base[::2, 1::3], base[7:], base.view(30, 160), base.expand(3, 60, 80)]
    before = [(contents.stored(contents.of(view)), view.clone()) for view in seen]
    base.mul_(2)
    after = [(contents.stored(contents.of(view)), view.clone()) for view in (base.t(), base)]
    sink.writer.close()
    # then the first are formulas (those of the same elements share them), and each has its own bits
    files = TensorFiles(tmp_path)
    kinds = Counter(isinstance(files.find(place), Derived) for place, _ in before if place)
    assert kinds == {True: 3, False: 2}  # 30 x 27 elements are too few for a formula
    for place, tensor in before + after:
        assert place is not None
        assert files.load(place.shard, place.number).tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("value", [torch.ones(()).expand(1), torch.ones(0), torch.tensor(2.5)])
def test_scalars_and_nothing_are_saved_too(tmp_path: Path, value: Tensor) -> None:
    sink = Sink(tmp_path)
    contents = Contents(sink, "tensors")
    place = contents.stored(contents.of(value))
    sink.writer.close()
    assert place is not None
    assert (
        TensorFiles(tmp_path).load(place.shard, place.number).tolist() == value.flatten().tolist()
    )


def test_without_whole_tensors_nothing_is_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.capture.rows.derivations._elementwise", None)
    recording = check(lambda: supervised(Net(), tokens), tmp_path / "ref", save="sketch")
    assert contents_of(recording.ranks["rank0"]) == {}


# --- the training thread ---------------------------------------------------------------------------------------------


@pytest.fixture
def held_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that takes nothing until the event is set."""
    gate = threading.Event()
    write_files = RankWriter._write_files

    def wait_then_write(self: RankWriter, *arguments: Any) -> None:
        gate.wait()
        write_files(self, *arguments)

    monkeypatch.setattr(RankWriter, "_write_files", wait_then_write)
    return gate


def test_the_training_goes_on_while_the_disk_is_at_work(
    tmp_path: Path, held_up: threading.Event
) -> None:
    # given a disk that takes nothing yet
    training = supervised(nn.Linear(4, 4), lambda: (torch.randn(5, 4),))
    recording = lockstep.record(tmp_path / "ref", steps="0:2", save="tensors")
    recording.start()
    # when four steps are trained, two of them recorded
    trace_of(training, 4)
    # then the training got to here although nothing of them is written; `stop` waits until all is
    assert not list((tmp_path / "ref").glob("rank0/*.parquet"))
    held_up.set()
    recording.stop()
    opened = lockstep.open(tmp_path / "ref")
    assert opened.missing == ()
    assert opened.ranks["rank0"].complete_steps == (0, 1)


def test_a_second_recording_may_begin_while_the_first_is_written(
    tmp_path: Path, held_up: threading.Event
) -> None:
    training = supervised(nn.Linear(4, 4), lambda: (torch.randn(5, 4),))
    first = lockstep.record(tmp_path / "first", steps="0:1")
    first.start()
    trace_of(training, 1)
    held_up.set()
    first.stop()
    with lockstep.record(tmp_path / "second", steps="0:1"):
        trace_of(training, 1)
    for name in ("first", "second"):
        assert lockstep.open(tmp_path / name).missing == ()


def test_a_recording_that_failed_late_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a disk that refuses everything after the training's last recorded step has begun
    def refuse(self: RankWriter, *_: Any) -> None:
        raise OSError(28, "No space left on device")

    training = supervised(nn.Linear(4, 4), lambda: (torch.randn(5, 4),))
    end_step = Session.end_step

    def end_then_refuse(self: Session) -> None:
        monkeypatch.setattr(RankWriter, "_write_files", refuse)
        end_step(self)

    monkeypatch.setattr(Session, "end_step", end_then_refuse)
    with lockstep.record(tmp_path / "ref", steps="0:1"):
        trace_of(training, 3)
    assert capsys.readouterr().err.count("recording stopped: No space left on device") == 1
    (sentence, *_) = lockstep.open(tmp_path / "ref").missing
    assert "No space left on device" in sentence
