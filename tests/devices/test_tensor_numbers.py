"""The numbers of a tensor, against NumPy in double precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.core.sketch import SKETCH_SIZE, distance, plan_of, sketch_of
from lockstep.devices import tensor_numbers as kernels
from lockstep.devices.tensor_numbers import digest_of, dtype_name, numbers_of, raw_bytes

ROW, BLOCK = plan_of(10_000).row, plan_of(300_000).block
SIZES = (
    1,
    SKETCH_SIZE,
    SKETCH_SIZE + 1,
    ROW - 1,
    ROW,
    ROW + 1,
    5 * ROW + 3,
    BLOCK - 1,
    BLOCK,
    BLOCK + 1,
    2 * BLOCK + ROW + 7,
)
FLOATS = (
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)
INTEGERS = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
)


def some(size: int, dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        return torch.randn(size, dtype=wide, generator=generator).to(dtype)
    return torch.randint(0, 100, (size,), generator=generator).to(dtype)


def doubles(tensor: torch.Tensor) -> np.ndarray:
    if tensor.dtype.is_complex:
        return tensor.to(torch.complex128).numpy()
    return tensor.to(torch.float64).numpy()


def agree(left: float, right: float, scale: float) -> bool:
    if math.isnan(left) or math.isnan(right):
        return math.isnan(left) and math.isnan(right)
    return abs(left - right) <= 1e-10 * max(scale, 1e-300)


@pytest.fixture(params=[True, False], ids=["compiled", "general"])
def path(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways of taking numbers: compiled where Numba can be used, and on any device."""
    usable = kernels.available() and request.param
    monkeypatch.setattr(kernels, "available", lambda: usable)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", FLOATS, ids=dtype_name)
def test_sketches_and_statistics_agree_with_the_reference(size: int, dtype: torch.dtype) -> None:
    tensor = some(size, dtype)
    reference = doubles(tensor)

    statistics, sketch = numbers_of(tensor, with_sketch=True)

    norm = float(np.linalg.norm(reference))
    assert sketch is not None
    # The rows of a block are summed in the precision of the tensor.
    roundoff = 1e-12 if dtype is torch.float64 else 1e-5
    assert np.abs(sketch - sketch_of(reference)).max() <= roundoff * max(norm, 1)
    assert statistics.minimum == reference.min()
    assert statistics.maximum == reference.max()
    assert agree(statistics.mean, float(reference.mean()), float(np.abs(reference).mean()))
    assert agree(statistics.norm, norm, norm)
    assert (statistics.nan_count, statistics.inf_count) == (0, 0)
    assert statistics.zero_count == int((reference == 0).sum())


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", [*FLOATS, torch.complex64], ids=dtype_name)
@pytest.mark.parametrize("size", [9, BLOCK + 5])
def test_what_is_smaller_than_a_normal_number_of_its_dtype_is_counted(
    size: int, dtype: torch.dtype
) -> None:
    # given normal numbers, among them the smallest, and two that are smaller, zeros and an infinity beside them
    least = torch.finfo(dtype).smallest_normal
    tensor = torch.ones(size, dtype=torch.float64)
    tensor[:5] = torch.tensor([least, 0.0, -least / 2, least / 4, -0.0], dtype=torch.float64)
    tensor[-1] = math.inf if dtype.is_complex or dtype in NOT_FINITE_TOO else 1.0

    # when they are counted, then it is those two
    statistics, _ = numbers_of(tensor.to(dtype), with_sketch=True)
    assert (statistics.subnormal_count, statistics.zero_count) == (2, 2)


NOT_FINITE_TOO = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.mark.parametrize("dtype", INTEGERS, ids=dtype_name)
def test_integers_have_statistics_and_no_sketch(dtype: torch.dtype) -> None:
    tensor = some(3 * ROW + 5, dtype)
    reference = doubles(tensor)

    statistics, sketch = numbers_of(tensor, with_sketch=True)

    assert sketch is None
    assert (statistics.minimum, statistics.maximum) == (reference.min(), reference.max())
    assert agree(statistics.mean, float(reference.mean()), 100)
    assert agree(statistics.norm, float(np.linalg.norm(reference)), 1e5)
    assert statistics.zero_count == int((reference == 0).sum())


@pytest.mark.parametrize("size", [1, ROW, BLOCK + 3])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128], ids=dtype_name)
def test_complex_tensors_count_by_magnitude_and_are_sketched_by_parts(
    size: int, dtype: torch.dtype
) -> None:
    tensor = some(size, dtype)
    reference = doubles(tensor)

    statistics, sketch = numbers_of(tensor, with_sketch=True)

    norm = float(np.linalg.norm(reference))
    assert sketch is not None
    roundoff = 1e-5 if dtype is torch.complex64 else 1e-12
    assert np.abs(sketch - sketch_of(reference)).max() <= roundoff * norm
    magnitude = np.abs(reference)
    roundoff = 1e-6 if dtype is torch.complex64 else 1e-12
    assert math.isclose(statistics.maximum, magnitude.max(), rel_tol=roundoff)
    assert math.isclose(statistics.mean, magnitude.mean(), rel_tol=roundoff)
    assert math.isclose(statistics.norm, norm, rel_tol=roundoff)


NOT_FINITE = (math.nan, math.inf, -math.inf)


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("dtype", FLOATS[:-2], ids=dtype_name)
@pytest.mark.parametrize("size", [7, ROW + 3, BLOCK + 5])
def test_what_is_not_finite_is_counted_and_left_out(size: int, dtype: torch.dtype) -> None:
    tensor = some(size, dtype)
    places = torch.tensor([0, size // 2, size - 1])
    tensor[places] = torch.tensor(NOT_FINITE).to(dtype)
    reference = doubles(tensor)
    finite = reference[np.isfinite(reference)]

    statistics, sketch = numbers_of(tensor, with_sketch=True)

    assert (statistics.nan_count, statistics.inf_count) == (1, 2)
    assert (statistics.minimum, statistics.maximum) == (finite.min(), finite.max())
    assert agree(statistics.mean, float(finite.mean()), float(np.abs(finite).mean()))
    norm = float(np.linalg.norm(finite))
    assert agree(statistics.norm, norm, norm)
    assert sketch is not None
    assert np.abs(sketch - sketch_of(reference)).max() <= 1e-5 * norm
    assert statistics.zero_count == int((reference == 0).sum())


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("value", NOT_FINITE)
def test_a_tensor_without_finite_elements(value: float) -> None:
    statistics, sketch = numbers_of(torch.full((5,), value), with_sketch=True)

    assert math.isnan(statistics.minimum)
    assert math.isnan(statistics.maximum)
    assert math.isnan(statistics.mean)
    assert statistics.norm == 0
    assert statistics.nan_count + statistics.inf_count == 5
    assert sketch is not None
    assert not sketch.any()


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.complex64], ids=dtype_name)
def test_an_empty_tensor(dtype: torch.dtype) -> None:
    empty = torch.empty(0, dtype=dtype)

    statistics, sketch = numbers_of(empty, with_sketch=True)

    assert math.isnan(statistics.mean)
    assert (statistics.norm, statistics.zero_count) == (0, 0)
    assert (sketch is None) == (dtype is torch.int64)
    assert digest_of(empty) == digest_of(torch.empty(0))


def test_complex_numbers_that_are_not_finite() -> None:
    tensor = torch.tensor([complex(1, 2), complex(math.nan, 1), complex(3, math.inf)])

    statistics, sketch = numbers_of(tensor, with_sketch=True)

    assert (statistics.nan_count, statistics.inf_count) == (1, 1)
    assert math.isclose(statistics.norm, math.sqrt(5), rel_tol=1e-6)
    assert sketch is not None
    assert np.isfinite(sketch).all()


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_norms_neither_overflow_nor_vanish(scale: float) -> None:
    tensor = torch.full((BLOCK + 1,), scale)

    statistics, _ = numbers_of(tensor, with_sketch=False)

    expected = float(torch.tensor(scale)) * math.sqrt(BLOCK + 1)
    assert math.isclose(statistics.norm, expected, rel_tol=1e-12)


@pytest.mark.usefixtures("path")
def test_a_mean_is_taken_in_double_precision() -> None:
    tensor = torch.full((3 * BLOCK,), 0.1)
    tensor[0] = 1e7

    statistics, _ = numbers_of(tensor, with_sketch=False)

    assert math.isclose(statistics.mean, doubles(tensor).mean(), rel_tol=1e-13)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3 * ROW), st.integers(0, 5), st.floats(-2, 2))
def test_the_sketch_is_linear(size: int, seed: int, factor: float) -> None:
    left, right = some(size, torch.float64, seed), some(size, torch.float64, seed + 1)

    sketches = [
        numbers_of(tensor, with_sketch=True)[1] for tensor in (left, right, left + factor * right)
    ]

    expected = sketches[0] + factor * sketches[1]  # type: ignore[operator]
    assert np.allclose(sketches[2], expected, atol=1e-9)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=dtype_name)
@pytest.mark.parametrize("size", [300, 20_000, BLOCK + 9, 700_000])
@pytest.mark.parametrize("relative", [1e-6, 1e-3, 1.0])
def test_distances_are_estimated_at_every_scale(
    dtype: torch.dtype, size: int, relative: float
) -> None:
    # given two tensors with a common offset, off by a millionth or more
    reference = (3 + some(size, torch.float64)).to(dtype)
    candidate = (reference.double() + 3 * relative * some(size, torch.float64, 1)).to(dtype)
    # when only their sketches are left
    left, right = (numbers_of(tensor, with_sketch=True)[1] for tensor in (reference, candidate))
    # then their distance is known within a fifth
    exact = float(torch.linalg.vector_norm(candidate.double() - reference.double()))
    assert left is not None
    assert right is not None
    assert distance(left, right) == pytest.approx(exact, rel=0.2)


def test_the_layout_does_not_matter() -> None:
    # given the same numbers, row-major and not
    tensor = some(3000, torch.float32).view(50, 60)
    turned = tensor.t().contiguous().t()
    # when each is laid flat, as recording does
    sketches = [
        numbers_of(each.contiguous().view(-1), with_sketch=True)[1] for each in (tensor, turned)
    ]
    # then the sketches are equal
    np.testing.assert_array_equal(sketches[0], sketches[1])  # type: ignore[arg-type]


@pytest.mark.usefixtures("path")
@pytest.mark.parametrize("size", [100, 9000])
def test_numbers_of_a_bad_element_face_the_good_one(size: int) -> None:
    # given an element that is Inf in one tensor and 2.0 in the other
    good, bad = some(size, torch.float32), some(size, torch.float32)
    good[50], bad[50] = 2.0, math.inf
    # when both are sketched
    left, right = (numbers_of(tensor, with_sketch=True)[1] for tensor in (good, bad))
    # then it counts as zero, and the distance is finite
    assert left is not None
    assert right is not None
    assert distance(left, right) == pytest.approx(2.0, rel=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=dtype_name)
def test_sketches_of_different_precisions_can_be_compared(dtype: torch.dtype) -> None:
    tensor = some(BLOCK + 9, torch.float16)

    low = numbers_of(tensor, with_sketch=True)[1]
    high = numbers_of(tensor.to(dtype), with_sketch=True)[1]

    assert low is not None
    assert high is not None
    error = np.linalg.norm(low - high) / np.linalg.norm(low)
    assert error < (1e-2 if dtype is torch.bfloat16 else 1e-6)
    assert high.shape == (SKETCH_SIZE,)


SIGNED = st.floats(width=32)


@settings(max_examples=200, deadline=None)
@given(st.lists(SIGNED, min_size=1, max_size=40), st.sampled_from([torch.float32, torch.float64]))
def test_any_numbers_are_counted_as_numpy_counts_them(
    values: list[float], dtype: torch.dtype
) -> None:
    # given any numbers of a width, negative zeros, tiny and huge ones, NaN and infinities
    tensor = torch.tensor(values, dtype=dtype)
    reference = doubles(tensor)
    finite = reference[np.isfinite(reference)]
    # when their statistics are taken
    statistics, sketch = numbers_of(tensor, with_sketch=True)
    # then they are NumPy's
    assert statistics.nan_count == int(np.isnan(reference).sum())
    assert statistics.inf_count == int(np.isinf(reference).sum())
    assert statistics.zero_count == int((reference == 0).sum())
    if finite.size:
        assert (statistics.minimum, statistics.maximum) == (finite.min(), finite.max())
        scale = float(np.abs(finite).max())
        assert math.isclose(statistics.mean, finite.mean(), rel_tol=1e-12, abs_tol=1e-12 * scale)
        assert math.isclose(statistics.norm, np.linalg.norm(finite), rel_tol=1e-12, abs_tol=1e-160)
    np.testing.assert_array_equal(sketch, sketch_of(reference))  # type: ignore[arg-type]


# --- digests ----------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 7), st.integers(1, 7), st.sampled_from([*FLOATS, *INTEGERS]))
def test_a_digest_does_not_depend_on_the_layout(
    rows: int, columns: int, dtype: torch.dtype
) -> None:
    tensor = some(rows * columns, dtype).view(rows, columns)
    twin = tensor.t().contiguous().t()

    assert digest_of(tensor.contiguous().view(-1)) == digest_of(twin.contiguous().view(-1))


def test_a_digest_tells_signed_zeros_and_order_apart() -> None:
    zero = torch.zeros(3)

    assert digest_of(zero) != digest_of(-zero)
    assert digest_of(torch.tensor([1.0, 2.0])) != digest_of(torch.tensor([2.0, 1.0]))
    assert digest_of(torch.tensor([1.0])) != digest_of(torch.tensor([-1.0]))
    nan = torch.tensor([math.nan])
    assert digest_of(nan) == digest_of(nan.clone())


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, torch.complex64], ids=dtype_name)
def test_a_digest_changes_with_any_element(dtype: torch.dtype) -> None:
    tensor = some(100, dtype)
    before = digest_of(tensor)
    changed = tensor.clone()
    changed[57] = changed[57] == 0 if dtype is torch.bool else torch.tensor(101).to(dtype)

    assert digest_of(tensor) == before
    assert digest_of(changed) != before


def test_bytes_are_those_of_the_tensor() -> None:
    tensor = torch.tensor([1.5, -2.0])

    assert raw_bytes(tensor).tobytes() == np.array([1.5, -2.0], "<f4").tobytes()
    assert raw_bytes(torch.empty(0)).size == 0


def test_taking_numbers_draws_no_random_ones_and_changes_nothing() -> None:
    tensor = some(BLOCK + 1, torch.float32)
    copy, state = tensor.clone(), torch.get_rng_state()

    numbers_of(tensor, with_sketch=True)
    digest_of(tensor)

    assert torch.equal(tensor, copy)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.usefixtures("path")
def test_masks_at_the_largest_finite_number_do_not_overflow_the_sketch() -> None:
    # given a float mask as attention uses it, over more than one block
    mask = torch.zeros(300_000)
    mask[::3] = torch.finfo(torch.float32).min
    # when it is sketched
    _, sketch = numbers_of(mask, with_sketch=True)
    # then the sketch is the double-precision one
    assert sketch is not None
    assert np.allclose(sketch, sketch_of(mask.numpy()), rtol=1e-6, atol=1e32)
