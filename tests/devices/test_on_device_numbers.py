"""Numbers taken by torch's operators where a tensor lies are those of the CPU's kernels."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from lockstep.devices.on_device import choice
from lockstep.devices.on_device.choice import Pending, are_equal, pending, why_copied
from lockstep.devices.on_device.taken import SHORTEST, SMALL_BYTES
from lockstep.devices.on_device.torch_numbers import found_by_torch
from lockstep.devices.tensor_numbers import measured
from lockstep.kernels.xxh3 import CHUNK

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.bool,
    torch.complex64, torch.complex128,
)  # fmt: skip
SIZES_BYTES = (
    SMALL_BYTES + 16, 3 * 1024, 3 * 1024 + 16, CHUNK - 16, CHUNK, CHUNK + 16, CHUNK + 240, CHUNK + 256,
    3 * CHUNK + 1040,
)  # fmt: skip


def some(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    numbers = 30 * torch.randn(
        count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return (numbers if dtype.is_signed else numbers.abs()).to(dtype)


def there(tensor: torch.Tensor) -> choice.Numbers:
    return Pending(tensor, found_by_torch, with_sketch=True).numbers()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_digest_statistics_and_sketch_are_those_of_the_cpu(dtype: torch.dtype) -> None:
    for size in SIZES_BYTES:
        # given a tensor whose last chunk is long, or short, or whole
        tensor = some(dtype, size // dtype.itemsize)
        # then torch's operators give what the CPU's kernels give
        assert are_equal(there(tensor), measured(tensor, with_sketch=True)), size


@pytest.mark.parametrize("dtype", DTYPES[:4], ids=str)
def test_what_is_not_finite_or_subnormal_is_counted_and_placed(dtype: torch.dtype) -> None:
    # given NaN, inf, -inf, zeros and a subnormal number
    tensor = some(dtype, 70_000)
    for place, value in enumerate(
        (math.nan, math.inf, -math.inf, 0.0, torch.finfo(dtype).tiny / 2)
    ):
        tensor[1000 * place + 7] = value
    digest, statistics, sketch = there(tensor)
    # then they are counted, with their places
    assert are_equal((digest, statistics, sketch), measured(tensor, with_sketch=True))
    counts = statistics.nan_count, statistics.inf_count, statistics.subnormal_count
    assert counts == (1, 2, measured(tensor, with_sketch=False)[1].subnormal_count)
    # and another place is another digest of places
    moved = tensor.roll(1)
    assert there(moved)[1].not_finite != statistics.not_finite


def test_a_view_that_begins_between_words_has_the_same_numbers() -> None:
    base = some(torch.bfloat16, 80_000)
    for start in (1, 2, 3):
        assert are_equal(there(base[start:]), measured(base[start:].clone(), with_sketch=True))


def test_one_other_bit_is_another_digest() -> None:
    tensor = some(torch.float32, 50_000)
    before = there(tensor)
    for place in (0, 12_345, 49_999):
        other = tensor.clone()
        other.view(torch.int32)[place] ^= 1
        assert there(other)[0] != before[0], place


def test_the_shortest_long_digest_is_that_of_the_library() -> None:
    for size in (SHORTEST - 1, SHORTEST, SHORTEST + 1):
        tensor = some(torch.uint8, CHUNK + size)
        assert there(tensor)[0] == measured(tensor, with_sketch=False)[0]


@pytest.fixture
def forgotten() -> Iterator[None]:
    """No device has proved anything, before and after."""
    choice._finder.cache_clear()
    yield
    choice._finder.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_a_device_whose_operators_are_wrong_has_its_tensors_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given operators whose sums lack something
    def wrong(flat: torch.Tensor, *, with_sketch: bool) -> object:
        found, sketch, places = found_by_torch(flat, with_sketch=with_sketch)
        found[0, 4] += 1
        return found, sketch, places

    monkeypatch.setattr(choice, "_candidates", lambda device, dtype: [wrong])
    # then they are not used, and the reason is told
    reason = why_copied(torch.device("cpu"), torch.float32)
    assert reason == "wrong gives other numbers than the CPU for float32"


@pytest.mark.usefixtures("forgotten")
def test_a_device_that_lacks_an_operator_has_its_tensors_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def lacking(flat: torch.Tensor, *, with_sketch: bool) -> object:
        raise NotImplementedError("aten::bitwise_xor is not there\nand more")

    monkeypatch.setattr(choice, "_candidates", lambda device, dtype: [lacking])
    reason = why_copied(torch.device("cpu"), torch.float32)
    assert reason == "lacking: NotImplementedError: aten::bitwise_xor is not there"


@pytest.mark.usefixtures("forgotten")
def test_a_sound_device_proves_itself_for_every_dtype() -> None:
    for dtype in DTYPES:
        assert why_copied(torch.device("cpu"), dtype) == "", dtype


def test_tensors_on_the_host_are_not_taken_elsewhere() -> None:
    assert pending(torch.zeros(100_000), with_sketch=True) is None
