"""Memory that others than torch write to, and memory that is gone: what is recorded is what was there, or nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import CallKind, Role, Training, calls, check, one_call, one_record, supervised
from torch import Tensor, nn

from lockstep.capture.tensors.contents import Contents

ROWS, WIDTH = 16, 40
"""More numbers than are digested anew at each meeting in any case."""


# --- loaders ---------------------------------------------------------------------------------------


def _numpy(filled: Callable[[np.ndarray], None]) -> tuple[Tensor, Callable[[], None]]:
    array = np.zeros((ROWS, WIDTH), np.float32)
    return torch.from_numpy(array), lambda: filled(array)


def _given_to_numpy(filled: Callable[[np.ndarray], None]) -> tuple[Tensor, Callable[[], None]]:
    tensor = torch.zeros(ROWS, WIDTH)
    array = tensor.numpy()
    return tensor, lambda: filled(array)


def _dlpack(filled: Callable[[np.ndarray], None]) -> tuple[Tensor, Callable[[], None]]:
    tensor = torch.zeros(ROWS, WIDTH)
    array = np.from_dlpack(tensor)
    address = array.__array_interface__["data"][0]
    writable = np.ctypeslib.as_array((ctypes.c_float * (ROWS * WIDTH)).from_address(address))
    return tensor, lambda: filled(writable.reshape(ROWS, WIDTH))


def _shared(filled: Callable[[np.ndarray], None]) -> tuple[Tensor, Callable[[], None]]:
    tensor = torch.zeros(ROWS, WIDTH).share_memory_()
    numbers = (ctypes.c_float * (ROWS * WIDTH)).from_address(tensor.data_ptr())
    return tensor, lambda: filled(np.ctypeslib.as_array(numbers).reshape(ROWS, WIDTH))


def _extension(filled: Callable[[np.ndarray], None]) -> tuple[Tensor, Callable[[], None]]:
    tensor = torch.zeros(ROWS, WIDTH)
    numbers = (ctypes.c_float * (ROWS * WIDTH)).from_address(tensor.data_ptr())
    return tensor, lambda: filled(np.ctypeslib.as_array(numbers).reshape(ROWS, WIDTH))


LOADERS = {
    "numpy": _numpy,
    "given": _given_to_numpy,
    "dlpack": _dlpack,
    "shared": _shared,
    "extension": _extension,
}


def _accumulating(loader: Callable[..., Any], rows: slice) -> Training:
    """Two micro-batches a step, both in one buffer, of which some rows are filled anew."""
    random = np.random.default_rng(3)

    def fill(array: np.ndarray) -> None:
        array[rows] = random.standard_normal(array[rows].shape, np.float32)

    batch, refill = loader(fill)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(_: int) -> Tensor:
        losses = []
        optimizer.zero_grad()
        for _ in range(2):
            refill()
            loss = model(batch).square().mean()
            loss.backward()
            losses.append(loss.detach())
        optimizer.step()
        return torch.stack(losses)

    return Training(model, step, optimizers=[optimizer])


@pytest.mark.sampled(7)
@pytest.mark.parametrize("level", ["module", "api", "aten"])
@pytest.mark.parametrize("rows", [slice(None), slice(5, 6)], ids=["all", "one row"])
@pytest.mark.parametrize("name", LOADERS)
def test_a_buffer_that_is_filled_again_is_another_batch(
    name: str, rows: slice, level: str, tmp_path: Path
) -> None:
    # given a loader that fills one buffer for all micro-batches, which no version counts
    recording = check(
        lambda: _accumulating(LOADERS[name], rows), tmp_path / "recording", level=level, steps=1
    )

    # when it is recorded, then each micro-batch came from outside, and each layer got its own
    given = [one_record(call, Role.INPUT) for call in calls(recording, "torch.nn.Linear", "0")]
    came = [one_record(call, Role.OUTPUT) for call in calls(recording, kind=CallKind.DATA)]
    assert len({record.digest for record in given}) == 2
    assert [record.content.id for record in given] == [record.content.id for record in came]


def test_a_batch_that_stays_is_one_batch(tmp_path: Path) -> None:
    # given the same loader, which leaves its buffer as it is
    recording = check(lambda: _accumulating(_numpy, slice(0)), tmp_path / "recording", steps=1)

    # when it is recorded, then one batch came
    assert len(calls(recording, kind=CallKind.DATA)) == 1


# --- behind torch's back ----------------------------------------------------------------------------


class Extended(nn.Module):
    """Lets an extension write to what a layer returned."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        numbers = (ctypes.c_float * y.numel()).from_address(y.data_ptr())
        np.ctypeslib.as_array(numbers)[:] *= self.factor
        out: Tensor = self.second(y)
        return out


@pytest.mark.parametrize("factor", [3.0, 1.0])
def test_what_an_extension_writes_is_seen_at_the_next_call(factor: float, tmp_path: Path) -> None:
    # given an extension that writes to an activation of torch's own memory, which no version counts
    recording = check(
        lambda: supervised(Extended(factor), lambda: (torch.randn(ROWS, WIDTH),)),
        tmp_path / "recording",
        steps=1,
    )

    # when it is recorded, then the next layer has what it got, which is new where it is
    before = one_record(one_call(recording, "torch.nn.Linear", "first"), Role.OUTPUT)
    after = one_record(one_call(recording, "torch.nn.Linear", "second"), Role.INPUT)
    assert (after.content.id == before.content.id) == (factor == 1.0)
    assert np.array_equal(after.load(), before.load() * np.float32(factor))


# --- memory that is gone ----------------------------------------------------------------------------


class Sink:
    """Keeps notes by content number."""

    def __init__(self) -> None:
        self.notes: dict[int, str] = {}

    def add_content(self, row: Any) -> None:
        self.notes[row[0]] = row[-1]

    def add_small_content(self, content: Any) -> int:
        self.notes[content[0]] = ""
        return 0

    def add_tensor(self, tensor: Any) -> int:
        return 0


def _views(size: int) -> Iterator[tuple[str, Tensor]]:
    base = torch.randn(size, 6)
    yield "whole", base
    yield "part", torch.randn(3 * size, 6)[size : 2 * size]
    yield "turned", torch.randn(size, 6).t()
    yield "strided", torch.randn(size, 12)[:, ::2]
    yield "parameter", nn.Parameter(torch.randn(size, 6))


@pytest.mark.parametrize("trust_versions", [True, False])
@pytest.mark.parametrize("size", [2, 300])
def test_freed_memory_is_not_read(size: int, trust_versions: bool) -> None:
    # given tensors of all kinds, some met before
    sink = Sink()
    contents = Contents(sink, "sketch", trust_versions=trust_versions)
    for met in (True, False):
        for name, tensor in _views(size):
            if met:
                assert sink.notes[contents.of(tensor)] == "", name
            # when their storages are freed, or cut before their end
            storage = tensor.untyped_storage()
            for left in (storage.nbytes() // 4, 0):
                storage.resize_(left)
                # then they have no numbers, and the reason is said
                assert sink.notes[contents.of(tensor)] == "its memory was freed", (name, left)


def test_memory_that_was_freed_and_filled_again_is_read_again() -> None:
    # given a tensor that was met, whose storage is freed and filled with other numbers, without a version
    contents = Contents(Sink(), "sketch")
    tensor = torch.randn(ROWS, WIDTH)
    first, bytes_of_all = contents.of(tensor), tensor.untyped_storage().nbytes()

    def filled(factor: float) -> int:
        values = kept * factor
        tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(bytes_of_all)
        with torch.autograd._unsafe_preserve_version_counter(tensor):
            tensor.copy_(values)
        return contents.of(tensor)

    # when it is met again, then it is another content, and the same where the numbers are
    kept = tensor.clone()
    assert filled(2.0) != first
    assert filled(1.0) == first


def test_an_empty_tensor_is_there_wherever_it_begins() -> None:
    # given views without elements, one behind the end of its storage
    contents, sink = Contents(Sink(), "sketch"), Sink()
    contents._sink = sink
    # when they are met, then nothing was freed
    for tensor in (torch.empty(0), torch.randn(300)[300:], torch.randn(300, 0)):
        assert sink.notes[contents.of(tensor)] == ""


@pytest.mark.parametrize("size", [(4, 6), (30, 40)])
def test_memory_as_it_was_found_counts_once_others_filled_it(size: tuple[int, int]) -> None:
    # given memory that was given out as it was found
    sink, contents = Sink(), Contents(Sink(), "sketch")
    contents._sink = sink
    tensor = torch.empty(size)
    contents.found(tensor)
    assert "as it was found" in sink.notes[contents.of(tensor)]

    # when a part of it is written by a recorded operator, it still has no meaning as a whole
    tensor[:1] = 7.5
    contents.changed(tensor)
    contents.written(tensor, slice(1))
    assert "as it was found" in sink.notes[contents.of(tensor)]

    # when somebody whom nobody sees fills it, then it is read
    numbers = (ctypes.c_float * tensor.numel()).from_address(tensor.data_ptr())
    np.ctypeslib.as_array(numbers)[:] = 3.0
    assert sink.notes[contents.of(tensor)] == ""


# --- elements that share their memory ------------------------------------------------------------------


def _expanded(value: float) -> Iterator[tuple[str, Tensor]]:
    one = torch.full((1, 1), value)
    yield "scalar", one.expand(2**17, 2**16)
    yield "turned", one.expand(2**17, 2**16).t()
    yield "mask", (torch.arange(1 << 20) % 3 > value).view(1024, 1024).expand(4096, 1024, 1024)
    yield "windows", torch.full((3000,), value).unfold(0, 1 << 10, 1).expand(1 << 6, -1, -1)
    yield "behind", torch.full((4, 6), value)[1:2, 2:3].expand(2**14, 2**13)


def test_expanded_tensors_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    # given tensors of up to 32 GiB whose elements are a few numbers
    sink, contents = Sink(), Contents(Sink(), "tensors")
    contents._sink = sink
    asked: list[int] = []
    whole = Tensor.contiguous

    def contiguous(tensor: Tensor, *given: Any, **named: Any) -> Tensor:
        asked.append(tensor.nbytes)
        return whole(tensor, *given, **named)

    monkeypatch.setattr(Tensor, "contiguous", contiguous)

    # when they are met, again, and with other numbers
    first = {name: contents.of(tensor) for name, tensor in _expanded(1.0)}
    contents.forget_identities()
    again = {name: contents.of(tensor) for name, tensor in _expanded(1.0)}
    other = {name: contents.of(tensor) for name, tensor in _expanded(0.0)}

    # then the same is known again, what differs is told apart, and none was written out
    assert first == again
    assert not set(first.values()) & set(other.values())
    assert len(set(first.values())) == len(first)
    assert all("expanded from" in sink.notes[number] for number in first.values())
    assert max(asked, default=0) < 1 << 26


def test_a_model_with_expanded_tensors_is_recorded(tmp_path: Path) -> None:
    # given a model that expands one number to 2**33 elements, and a mask of 1 MB to 1 GB
    class Expanding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.layer(x)
            y.detach()[:1, :1].expand(2**17, 2**16).t().unsqueeze(0)
            torch.ones(1024, 1024, dtype=torch.bool).expand(1024, 1024, 1024)[1:]
            return y

    # when it is recorded, then it trains as it does without, and the reason stands beside them
    recording = check(
        lambda: supervised(Expanding(), lambda: (torch.randn(ROWS, WIDTH),)),
        tmp_path / "recording",
        steps=1,
    )
    assert recording.ranks["rank0"].manifest.stopped_because == ""
    for call in calls(recording, "expand"):
        assert "expanded from" in one_record(call, Role.OUTPUT).content.note
