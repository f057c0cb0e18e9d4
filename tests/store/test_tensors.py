"""Whole tensors on disk: both directions against the safetensors library, and hostile files."""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.errors import CorruptError
from lockstep.store.tensor_files import Shard
from lockstep.store.tensors import RawTensor, can_store, write_shard

LIBRARY_DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32",
    "int16", "int8", "uint64", "uint32", "uint16", "uint8", "bool", "complex64",
)  # fmt: skip
SHAPES = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@st.composite
def torch_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Any bit pattern of any dtype, NaN payloads and subnormals included."""
    dtype = getattr(torch, draw(st.sampled_from(LIBRARY_DTYPES)))
    shape = draw(SHAPES)
    size_bytes = math.prod(shape) * dtype.itemsize
    raw = draw(st.binary(min_size=size_bytes, max_size=size_bytes))
    if dtype is torch.bool:
        raw = bytes(byte & 1 for byte in raw)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape)


def raw_of(tensor: torch.Tensor, content: int) -> RawTensor:
    data = tensor.reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return RawTensor(content, dtype, tuple(tensor.shape), data)


def shard_bytes(*tensors: RawTensor) -> bytes:
    file = io.BytesIO()
    write_shard(file, tensors)
    return file.getvalue()


def opened(path: Path, data: bytes) -> Shard:
    path.write_bytes(data)
    return Shard(path)


def bits(tensor: torch.Tensor) -> bytes:
    return raw_of(tensor.contiguous(), 0).data.tobytes()


@settings(deadline=None)
@given(tensors=st.lists(torch_tensors(), max_size=4))
def test_the_library_reads_what_is_written(tensors: list[torch.Tensor]) -> None:
    data = shard_bytes(*(raw_of(tensor, number) for number, tensor in enumerate(tensors)))
    read = safetensors.torch.load(data)
    assert len(read) == len(tensors)
    for number, tensor in enumerate(tensors):
        assert (read[str(number)].dtype, read[str(number)].shape) == (tensor.dtype, tensor.shape)
        assert bits(read[str(number)]) == bits(tensor)


@settings(deadline=None)
@given(tensors=st.lists(torch_tensors(), min_size=1, max_size=4))
def test_what_the_library_writes_is_read(
    tensors: list[torch.Tensor], tmp_path_factory: pytest.TempPathFactory
) -> None:
    data = safetensors.torch.save({str(n): t.clone() for n, t in enumerate(tensors)})
    shard = opened(tmp_path_factory.mktemp("shard") / "one.safetensors", data)
    for number, tensor in enumerate(tensors):
        assert_reads(shard.load(number), tensor)


@settings(deadline=None)
@given(tensor=torch_tensors())
def test_what_is_written_is_read_back(
    tensor: torch.Tensor, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("shard") / "one.safetensors"
    assert_reads(opened(path, shard_bytes(raw_of(tensor, 3))).load(3), tensor)


def assert_reads(array: Any, tensor: torch.Tensor) -> None:
    """Narrow floats arrive widened, exactly; everything else bit by bit."""
    assert array.shape == tuple(tensor.shape)
    if tensor.dtype.is_floating_point and tensor.dtype.itemsize < 4 and tensor.dtype != torch.half:
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, tensor.to(torch.float32).numpy())
    else:
        assert array.dtype == tensor.numpy().dtype
        assert array.tobytes() == tensor.numpy().tobytes()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_narrow_number_is_widened_exactly(dtype: str, tmp_path: Path) -> None:
    kind = getattr(torch, dtype)
    codes = np.arange(2 ** (8 * kind.itemsize), dtype=f"<u{kind.itemsize}")
    tensor = torch.from_numpy(codes.view(np.uint8).copy()).view(kind)
    array = opened(tmp_path / "all.safetensors", shard_bytes(raw_of(tensor, 0))).load(0)
    expected = tensor.to(torch.float32).numpy()
    np.testing.assert_array_equal(array, expected)
    known = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(array[known]), np.signbit(expected[known]))


def test_double_complex_numbers_round_trip(tmp_path: Path) -> None:
    values = np.array([[1 + 2j, complex(math.nan, -math.inf)]])
    raw = RawTensor(0, "complex128", (1, 2), values.view(np.uint8).ravel())
    read = opened(tmp_path / "one.safetensors", shard_bytes(raw)).load(0)
    assert read.tobytes() == values.tobytes()
    assert read.shape == (1, 2)


def test_tensors_after_an_odd_number_of_bytes_are_read(tmp_path: Path) -> None:
    odd = RawTensor(0, "uint8", (3,), np.array([1, 2, 3], np.uint8))
    wide = RawTensor(1, "float64", (2,), np.array([0.5, -2.0]).view(np.uint8))
    shard = opened(tmp_path / "one.safetensors", shard_bytes(odd, wide))
    assert shard.load(0).tolist() == [1, 2, 3]
    assert shard.load(1).tolist() == [0.5, -2.0]


def test_only_known_dtypes_can_be_stored() -> None:
    assert all(can_store(dtype) for dtype in (*LIBRARY_DTYPES, "complex128"))
    assert not any(can_store(dtype) for dtype in ("complex32", "qint8", "float8_e4m3fnuz", ""))


# --- hostile and damaged files -----------------------------------------------------------------


def hostile_bytes(header: object, data: bytes = bytes(8), *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(**changes: object) -> dict[str, object]:
    return {"0": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes}


HOSTILE = {
    "empty file": b"",
    "shorter than its length field": b"\x10\0\0",
    "header length beyond the file": hostile_bytes(entry(), length=10_000),
    "header length of zero": hostile_bytes(entry(), length=0),
    "header length of 2**64 - 1": hostile_bytes(entry(), length=2**64 - 1),
    "header length into the middle": hostile_bytes(entry(), length=20),
    "not JSON": hostile_bytes(b"{not json}"),
    "not UTF-8": hostile_bytes(b'{"\xff\xfe": 1}'),
    "nested without end": hostile_bytes(b'{"0":' + b"[" * 200_000),
    "a number of many digits": hostile_bytes(b'{"0": ' + b"9" * 10_000 + b"}"),
    "a list": hostile_bytes([1, 2]),
    "an entry that is a number": hostile_bytes({"0": 5}),
    "an entry without a shape": hostile_bytes({"0": {"dtype": "F32", "data_offsets": [0, 8]}}),
    "an unknown dtype": hostile_bytes(entry(dtype="F7")),
    "a dtype that is no name": hostile_bytes(entry(dtype=["F32"])),
    "an end beyond the file": hostile_bytes(entry(shape=[4], data_offsets=[0, 16])),
    "a start far beyond the file": hostile_bytes(entry(data_offsets=[2**62, 2**62 + 8])),
    "a negative start": hostile_bytes(entry(data_offsets=[-8, 0])),
    "an end before the start": hostile_bytes(entry(data_offsets=[8, 0])),
    "offsets that are fractions": hostile_bytes(entry(data_offsets=[0.0, 8.0])),
    "three offsets": hostile_bytes(entry(data_offsets=[0, 4, 8])),
    "a shape larger than its bytes": hostile_bytes(entry(shape=[3])),
    "a shape smaller than its bytes": hostile_bytes(entry(shape=[])),
    "a shape that overflows": hostile_bytes(entry(shape=[2**32, 2**32, 2])),
    "a shape that wraps to its bytes": hostile_bytes(entry(shape=[2**63 + 1, 2])),
    "a shape that overflows to nothing": hostile_bytes(
        entry(shape=[2**62, 2**62, 0], data_offsets=[0, 0])
    ),
    "a shape of too many extents": hostile_bytes(entry(shape=[1] * 200 + [2])),
    "a negative extent": hostile_bytes(entry(shape=[-2])),
    "two negative extents": hostile_bytes(entry(shape=[-2, -1])),
    "an extent that is a truth value": hostile_bytes(entry(shape=[True, 2])),
    "data cut short": shard_bytes(RawTensor(0, "float32", (2,), np.zeros(8, np.uint8)))[:-3],
}


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_hostile_file_is_refused_by_name(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"bad\.safetensors"):
        opened(tmp_path / "bad.safetensors", data).load(0)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match=r"gone\.safetensors"):
        Shard(tmp_path / "gone.safetensors")


def test_a_tensor_that_is_not_in_the_file_is_named(tmp_path: Path) -> None:
    shard = opened(tmp_path / "one.safetensors", hostile_bytes(entry()))
    with pytest.raises(CorruptError, match=r"one\.safetensors: tensor 5 is not in this file"):
        shard.load(5)


def test_overlapping_tensors_only_read_what_lies_there(tmp_path: Path) -> None:
    header = {"0": entry()["0"], "1": entry()["0"]}
    shard = opened(tmp_path / "one.safetensors", hostile_bytes(header))
    assert shard.load(0).tolist() == shard.load(1).tolist() == [0, 0]


@settings(deadline=None, max_examples=300)
@given(data=st.data())
def test_any_damage_ends_in_values_or_one_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = bytearray(
        shard_bytes(
            RawTensor(0, "float32", (2, 3), np.arange(24, dtype=np.uint8)),
            RawTensor(1, "bfloat16", (), np.zeros(2, np.uint8)),
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    with suppress(CorruptError):
        shard = opened(tmp_path_factory.mktemp("fuzz") / "bad.safetensors", bytes(whole[:cut]))
        for number in (0, 1):
            shard.load(number)
