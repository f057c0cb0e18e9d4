"""Tensors of every datatype in the protocol's forms and back."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep_serve.failures import RequestError
from lockstep_serve.protocol.tensors import (
    datatype_of,
    json_from_tensor,
    raw_from_tensor,
    shape_of,
    tensor_from_json,
    tensor_from_raw,
)

DTYPES = [
    "bool",
    *(f"<{kind}{size}" for kind in "iu" for size in (1, 2, 4, 8)),
    "<f2",
    "<f4",
    "<f8",
]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3)
TENSORS = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(np.dtype(dtype), SHAPES))


@st.composite
def blobs(draw: st.DrawFn, elements: st.SearchStrategy[bytes]) -> Any:
    shape = draw(SHAPES)
    count = math.prod(shape)
    made = np.empty(count, object)
    made[:] = draw(st.lists(elements, min_size=count, max_size=count))
    return made.reshape(shape)


def same(one: Any, other: Any) -> bool:
    if one.dtype == object:
        return bool(one.shape == other.shape and one.ravel().tolist() == other.ravel().tolist())
    return bool(
        (one.dtype, one.shape) == (other.dtype, other.shape) and one.tobytes() == other.tobytes()
    )


@given(TENSORS | blobs(st.binary(max_size=9)))
def test_raw_bytes_come_back_bit_by_bit(tensor: Any) -> None:
    back = tensor_from_raw("x", datatype_of(tensor.dtype), tensor.shape, raw_from_tensor(tensor))
    assert same(back, tensor)


@given(TENSORS | blobs(st.text("aé入\U0001f600", max_size=4).map(str.encode)))
def test_json_gives_the_same_numbers(tensor: Any) -> None:
    # Given any numbers, written as JSON text and read again, then they are the same; a NaN stays one
    data = json.loads(json.dumps(json_from_tensor(tensor), allow_nan=False))
    back = tensor_from_json("x", datatype_of(tensor.dtype), tensor.shape, data)
    if tensor.dtype.kind == "f":
        assert np.array_equal(back, tensor, equal_nan=True)
    else:
        assert same(back, tensor)


@given(TENSORS, st.integers(-9, 9).filter(bool))
def test_bytes_of_another_length_are_refused(tensor: Any, more: int) -> None:
    raw = raw_from_tensor(tensor)
    wrong = raw[:more] if more < 0 else raw + bytes(more)
    if len(wrong) == len(raw):
        return
    with pytest.raises(RequestError, match=r"^x: has"):
        tensor_from_raw("x", datatype_of(tensor.dtype), tensor.shape, wrong)


@given(st.binary(max_size=40), SHAPES)
def test_any_bytes_as_texts_are_read_or_refused(raw: bytes, shape: tuple[int, ...]) -> None:
    try:
        tensor = tensor_from_raw("x", "BYTES", shape, raw)
    except RequestError:
        return
    assert raw_from_tensor(tensor) == raw


@pytest.mark.parametrize(
    ("datatype", "data", "words"),
    [
        ("FP16", [70000], "an element is beyond FP16"),
        ("FP32", [1e39], "an element is beyond FP32"),
        ("UINT8", [-1], "an element is beyond UINT8"),
        ("INT64", [2**63], "an element is beyond INT64"),
        ("INT64", [1.0], "'1.0' is no INT64"),
        ("INT8", [True], "'True' is no INT8"),
        ("BOOL", [1], "'1' is no BOOL"),
        ("BYTES", ["\udfff"], "an element is half a character"),
        ("BYTES", [1], "an element is not a text"),
        ("FP32", [[1], [2]], "has 2 elements, where [1] takes 1"),
    ],
)
def test_json_that_does_not_fit_is_refused(datatype: str, data: Any, words: str) -> None:
    with pytest.raises(RequestError) as raised:
        tensor_from_json("x", datatype, (1,), data)
    assert words in str(raised.value)


def test_lists_of_any_depth_are_read() -> None:
    data: Any = 1.0
    for _ in range(100_000):
        data = [data]
    assert tensor_from_json("x", "FP32", (1,), data).tolist() == [1.0]


@pytest.mark.parametrize("shape", [None, [1.0], [-1], [True], [1] * 33, [2**63, 0], [2**30] * 3])
def test_what_is_no_shape_is_refused(shape: Any) -> None:
    with pytest.raises(RequestError):
        shape_of(shape, "x")
