"""A sample laid out and read again is bitwise itself, and what lies there is never executed."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep_cache.sample_layout import (
    HEAD,
    CannotLayOutError,
    DamagedSampleError,
    check,
    head_of,
    lay_out,
    made,
    plan_of,
)

_arrays = hnp.arrays(
    st.sampled_from([np.dtype(one) for one in ("f4", ">f8", "i2", "u1", "?", "c8", "M8[s]", "S3", "U2", "f2")]),
    hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
)  # fmt: skip
_leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), _arrays
)
_trees = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=4), st.integers(0, 9)), inner, max_size=4),
    ),
    max_leaves=12,
)


def again(sample: object, row: int = 7) -> Any:
    """Written as a writer does, and read as a reader does."""
    laid = lay_out(sample)
    entry = np.frombuffer(bytearray(b"".join(bytes(one) for one in laid.parts(row))), np.uint8)
    entry = np.concatenate([entry, np.zeros(laid.size - entry.size, np.uint8)])
    description_bytes, size, found, _ = head_of(entry[: HEAD.size].tobytes())
    assert (size, found) == (laid.size, row)
    check(entry)
    return made(plan_of(entry[HEAD.size : HEAD.size + description_bytes].tobytes()), entry)


def same(left: Any, right: Any) -> bool:
    if type(left) is not type(right):
        return False
    if isinstance(left, torch.Tensor):
        if (left.dtype, left.shape) != (right.dtype, right.shape):
            return False
        return left.numel() == 0 or (
            left.stride() == right.stride()
            and torch.equal(
                *(one.contiguous().reshape(-1).view(torch.uint8) for one in (left, right))
            )
        )
    if isinstance(left, (np.ndarray, np.generic)):
        return (left.dtype, left.shape, left.tobytes()) == (
            right.dtype,
            right.shape,
            right.tobytes(),
        )
    if isinstance(left, float):
        return struct.pack("<d", left) == struct.pack("<d", right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[one], right[one]) for one in left)
    if isinstance(left, (list, tuple)):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


@given(_trees)
def test_any_tree_comes_back_bitwise(sample: object) -> None:
    assert same(again(sample), sample)


@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]
)
def test_tensors_come_back_with_their_strides(dtype: torch.dtype) -> None:
    plain = torch.arange(2 * 3 * 4 * 5).reshape(2, 3, 4, 5).to(dtype)
    samples = [
        plain,
        plain.to(memory_format=torch.channels_last),
        plain.permute(3, 1, 0, 2),
        plain[0, 0, 0, 0],
        torch.empty(0, 3, dtype=dtype),
    ]
    for sample in samples:
        assert same(again(sample), sample), sample.stride()


def test_a_tensor_that_is_a_part_of_another_brings_only_itself() -> None:
    whole = torch.arange(1000.0).reshape(10, 100)
    laid = lay_out(whole[:, 3])
    assert laid.size < 400
    assert torch.equal(again(whole[:, ::7]), whole[:, ::7])
    assert torch.equal(again(torch.ones(1).expand(5)), torch.ones(5))


def with_an_attribute() -> torch.Tensor:
    made = torch.ones(2)
    made.label = 3  # type: ignore[attr-defined]
    return made


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (object(), "builtins.object"),
        ({"a": [{1, 2}]}, "builtins.set"),
        ({(1, 2): 3}, "keys"),
        (np.array([object()], dtype=object), "array of object"),
        (torch.ones(2, requires_grad=True), "no plain memory"),
        (torch.ones(2).to_sparse(), "no plain memory"),
        (torch.ones(2, device="meta"), "no plain memory"),
        (torch.nn.Parameter(torch.ones(2)), "Parameter"),
        (with_an_attribute(), "attributes of its own"),
    ],
)
def test_what_cannot_be_laid_out_is_named(sample: object, words: str) -> None:
    with pytest.raises(CannotLayOutError, match=words):
        lay_out(sample)


def strided() -> dict[str, Any]:
    whole = torch.arange(60.0).reshape(3, 4, 5)
    array = np.arange(24).reshape(4, 6)
    return {
        "part": whole[:, 1:3, ::2],
        "one of many": whole[1, 1, 1:2],
        "column of a large one": torch.arange(10_000.0).reshape(100, 100)[:, 3],
        "expanded": torch.ones(3, 1).expand(3, 4),
        "bfloat16": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3).t(),
        "size of one": torch.ones(4, 1, 3).as_strided((4, 1, 3), (3, 99, 1)),
        "backwards": array[::-1, ::-2],
        "part of an array": array[1:, 2:4],
        "column-major": np.asfortranarray(array),
        "broadcast": np.broadcast_to(np.float32(3), (2, 3)),
    }


@pytest.mark.parametrize("name", strided())
def test_what_is_strided_comes_back_strided(name: str) -> None:
    # an operation that goes through its elements in their order would otherwise round otherwise
    sample = strided()[name]
    found = again(sample)
    assert same(found, sample)
    if isinstance(sample, torch.Tensor):
        assert found.stride() == sample.stride()
    else:
        assert found.strides == sample.strides


def test_what_shares_memory_in_a_sample_does_so_afterwards() -> None:
    # given an input and its target, one element further, and the same array under two names
    chunk, array = torch.arange(9), np.arange(4.0)
    sample = {"x": chunk[:-1], "y": chunk[1:], "a": array, "b": array, "apart": torch.zeros(8)}
    for one in (sample, again(sample)):
        # when one of them is written to
        one["x"].mul_(2)
        one["a"] += 1
        # then the other one is, too
        assert one["y"].tolist() == [2, 4, 6, 8, 10, 12, 14, 8]
        assert one["b"].tolist() == [1, 2, 3, 4]
        assert not one["apart"].any()


def test_where_arrays_happen_to_lie_does_not_matter() -> None:
    # given equal samples whose arrays lie in memory the one way and the other
    whole = np.zeros(200)
    first, second = whole[:90], whole[100:190]
    # then they are laid out the same
    assert lay_out([first, second]).checksum == lay_out([second, first]).checksum


def test_parts_that_share_a_large_array_are_not_kept() -> None:
    whole = torch.zeros(100_000)
    with pytest.raises(CannotLayOutError, match="give it copies"):
        lay_out([whole[::50_000], whole[10:90_000:40_000]])


@given(st.binary(max_size=200), st.integers(0, 300))
def test_damaged_bytes_are_refused(garbage: bytes, cut: int) -> None:
    # given a sample with bytes overwritten somewhere
    laid = lay_out({"x": torch.arange(6.0), "y": 3, "s": "text"})
    written = bytearray(b"".join(bytes(one) for one in laid.parts(1)).ljust(laid.size, b"\0"))
    at = cut % len(written)
    damaged = bytearray((written[:at] + garbage + written[at + len(garbage) :])[: len(written)])
    entry = np.frombuffer(damaged, np.uint8)
    # then reading it gives a sample or says that it is damaged
    try:
        description_bytes, size, _, _ = head_of(entry[: HEAD.size].tobytes())
        assert size <= 1 << 64
        made(plan_of(entry[HEAD.size : HEAD.size + description_bytes].tobytes()), entry)
        check(entry)
    except DamagedSampleError:
        pass
