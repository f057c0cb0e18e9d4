"""Digests: the compiled function against the library, whoever runs it."""

from __future__ import annotations

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from teams import threads

from lockstep.kernels.digest import digest_of_bytes
from lockstep.kernels.jit import available
from lockstep.kernels.numbers import measured_array
from lockstep.kernels.team import alone
from lockstep.kernels.xxh3 import CHUNK

needs_compiler = pytest.mark.skipif(not available(), reason="Numba cannot be used here")


def some_bytes(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


def by_the_library(data: np.ndarray) -> str:
    """The law, as it is written down."""
    chunks = [data[start : start + CHUNK].tobytes() for start in range(0, data.size, CHUNK)]
    if len(chunks) < 2:
        return xxhash.xxh3_128_hexdigest(b"".join(chunks))
    return xxhash.xxh3_128_hexdigest(b"".join(map(xxhash.xxh3_128_digest, chunks)))


@pytest.mark.parametrize("count", [0, 1, 240, 241, CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK])
@pytest.mark.parametrize("run", [alone, threads])
def test_a_digest_is_that_of_the_law(count: int, run: object) -> None:
    data = some_bytes(count)
    assert digest_of_bytes(data, run) == by_the_library(data)  # type: ignore[arg-type]


@needs_compiler
@settings(max_examples=25, deadline=None)
@given(
    chunks=st.integers(2, 5),
    rest=st.integers(0, 5000),
    offset=st.integers(0, 9),
    filling=st.sampled_from([None, 0, 255]),
)
def test_compiled_chunks_have_the_digests_of_the_library(
    chunks: int, rest: int, offset: int, filling: int | None
) -> None:
    # given bytes that begin anywhere in memory, random or all the same
    data = some_bytes(offset + chunks * CHUNK + rest)[offset:]
    if filling is not None:
        data[:] = filling
    # when threads digest the chunks, then the digest is the library's
    assert digest_of_bytes(data, threads) == by_the_library(data)


@needs_compiler
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
@pytest.mark.parametrize("with_sketch", [False, True])
@pytest.mark.parametrize("count", [1, 256, 257, 40_000, 700_001])
def test_a_digest_taken_with_the_numbers_is_the_same(
    dtype: type, with_sketch: bool, count: int
) -> None:
    # given an array of any kind that is measured in one pass
    values = np.arange(count).astype(dtype)
    # when its digest is taken on the way, by one thread or by several
    found = {
        measured_array(values, with_sketch=with_sketch, run=run)[0] for run in (alone, threads)
    }
    # then it is the digest of its bytes
    assert found == {by_the_library(values.view(np.uint8))}


def test_one_bit_anywhere_changes_the_digest() -> None:
    # given some chunks and a rest
    data = some_bytes(2 * CHUNK + 100)
    before = digest_of_bytes(data, threads)
    for place in (0, CHUNK - 1, CHUNK, 2 * CHUNK - 1, 2 * CHUNK, data.size - 1):
        # when one bit is another, then so is the digest
        data[place] ^= 1
        assert digest_of_bytes(data, threads) != before
        data[place] ^= 1


def test_chunks_in_another_order_have_another_digest() -> None:
    data = some_bytes(3 * CHUNK)
    turned = np.concatenate([data[CHUNK : 2 * CHUNK], data[:CHUNK], data[2 * CHUNK :]])
    assert digest_of_bytes(data, threads) != digest_of_bytes(turned, threads)
