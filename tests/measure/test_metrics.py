"""Metrics: every number against a plain double-precision NumPy formula, and the corner cases."""

from __future__ import annotations

import dataclasses
import math
import tracemalloc
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lockstep.core.finding import Evidence, Metrics
from lockstep.core.records import Content, Statistics
from lockstep.core.sketch import sketch_of
from lockstep.measure.metrics import (
    IDENTICAL,
    measure,
    measure_sketches,
    measure_statistics,
    measure_tensors,
    symmetric_difference,
)
from lockstep.measure.sums import BLOCK_ELEMENTS

NUMBERS = [field.name for field in dataclasses.fields(Metrics) if field.name != "evidence"]


def content_of(values: Any, number: int = 0, **changes: Any) -> Content:
    """What a recorder keeps of an array."""
    values = np.asarray(values)
    wide = np.complex128 if values.dtype.kind == "c" else np.float64
    sizes = np.abs(values.astype(wide)) if values.dtype.kind == "c" else values.astype(wide)
    finite = sizes[np.isfinite(sizes)]
    content = Content(
        id=number,
        dtype=str(values.dtype),
        shape=values.shape,
        device="cpu",
        digest=str(hash((values.dtype.str, values.shape, values.tobytes()))),
        statistics=Statistics(
            minimum=float(finite.min()) if finite.size else math.nan,
            maximum=float(finite.max()) if finite.size else math.nan,
            mean=float(finite.mean()) if finite.size else math.nan,
            norm=float(np.sqrt((finite**2).sum())) if finite.size else math.nan,
            nan_count=int(np.isnan(values).sum()),
            inf_count=int(np.isinf(values).sum()),
            zero_count=int((values == 0).sum()),
        ),
        sketch_loader=partial(sketch_of, values) if values.dtype.kind == "f" else None,
        loader=lambda: values,
    )
    return dataclasses.replace(content, **changes)


def plain_metrics(reference: Any, candidate: Any) -> dict[str, float]:
    """The formulae written out in NumPy over all elements at once."""
    wide = np.complex128 if np.iscomplexobj(reference) else np.float64
    r, c = reference.ravel().astype(wide), candidate.ravel().astype(wide)
    total = r.size
    both_nan = np.isnan(r) & np.isnan(c)
    nan = np.isnan(r) ^ np.isnan(c)
    inf = (np.isinf(r) | np.isinf(c)) & (r != c) & ~nan & ~both_nan
    counts = {"nan_mismatch": nan.sum(), "inf_mismatch": inf.sum()}
    unequal = nan | inf
    special = ~np.isfinite(r)
    r, c = np.where(special, 0, r)[~unequal], np.where(special, 0, c)[~unequal]
    if total and not r.size:
        return {**counts, "within_1e_3": 0.0, "within_5e_3": 0.0}
    n = max(1, r.size)
    d = c - r
    ar, ac, ad = np.abs(r), np.abs(c), np.abs(d)
    norm_r, norm_c, norm_d = (math.hypot(*v) for v in (ar, ac, ad))
    defined = (ar > 0) | (ad == 0)
    relative = ad[defined] / np.where(ar[defined] > 0, ar[defined], 1)
    alone = bool(total) and not defined.any()
    cosine = ((r / norm_r).conj() * (c / norm_c)).real.sum() if norm_r and norm_c else None
    return {
        **counts,
        "cosine": float(cosine) if cosine is not None else float(norm_r == norm_c),
        "max_abs": ad.max(initial=0),
        "accumulated_relative": quotient(ad.sum(), ar.sum()),
        "rel_l2": quotient(norm_d, norm_r),
        "kl_divergence": plain_divergence(ar, ac),
        "standard_deviation": float(np.std(d)) if d.size else 0.0,
        "mean_abs": ad.sum() / n,
        "rmse": norm_d / math.sqrt(n),
        "max_relative": math.inf if alone else relative.max(initial=0),
        "mean_relative": math.inf if alone else relative.sum() / max(1, relative.size),
        "within_1e_3": (ad <= 1e-3 * ar).sum() / total if total else 1.0,
        "within_5e_3": (ad <= 5e-3 * ar).sum() / total if total else 1.0,
    }


def plain_divergence(reference: Any, candidate: Any) -> float:
    if not reference.sum() or not candidate.sum():
        return 0.0 if reference.sum() == candidate.sum() else math.inf
    p, q = reference / reference.sum(), candidate / candidate.sum()
    q = np.where((candidate == 0) & (reference > 0), 2.0**-24 / reference.size, q)
    seen = p > 0
    return max(0.0, float((p[seen] * np.log(p[seen] / q[seen])).sum()))


def quotient(numerator: float, denominator: float) -> float:
    if denominator == 0:
        return 0.0 if numerator == 0 else math.inf
    return numerator / denominator


def assert_as_plain(measured: Metrics, reference: Any, candidate: Any) -> None:
    expected = plain_metrics(reference, candidate)
    for name in set(NUMBERS) - {"max_ulp"}:
        tolerance = 1e-9 if name in ("cosine", "kl_divergence") else 1e-200
        if name == "standard_deviation":  # of an almost constant difference: cancellation
            tolerance += 1e-12 * float(expected.get("max_abs", 0))
        want = float(expected.get(name, math.nan))
        assert getattr(measured, name) == pytest.approx(want, 1e-9, tolerance, nan_ok=True), name


@st.composite
def tensor_pairs(draw: st.DrawFn, dtypes: tuple[str, ...]) -> tuple[Any, Any]:
    """Two arrays of one dtype and shape with many equal, zero and special elements."""
    dtype = np.dtype(draw(st.sampled_from(dtypes)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=6))
    if dtype.kind == "f":
        # Squares must stay within the range of a double; beyond it stand tests of their own.
        limit = {2: 60000.0, 4: 2.0**120, 8: 2.0**400}[dtype.itemsize]
        width: Any = 8 * dtype.itemsize
        plain = st.floats(-limit, limit, width=width).filter(lambda x: x == 0 or abs(x) > 1e-100)
        special = st.sampled_from([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0])
        elements: Any = st.one_of(plain, special)
    elif dtype.kind == "c":
        part = st.one_of(st.floats(-100, 100, width=32), st.sampled_from([0.0, math.nan, math.inf]))
        elements = st.builds(complex, part, part)
    else:
        elements = hnp.from_dtype(dtype)
    reference = draw(hnp.arrays(dtype, shape, elements=elements))
    candidate = draw(hnp.arrays(dtype, shape, elements=elements))
    equal = draw(hnp.arrays(np.bool_, shape))
    return reference, np.where(equal, reference, candidate)


@settings(deadline=None, max_examples=400)
@given(
    tensor_pairs(dtypes=("float32", "float16", "float64", "bool", "int32", "uint8", "complex64"))
)
def test_every_metric_equals_its_plain_formula(pair: tuple[Any, Any]) -> None:
    reference, candidate = pair
    with np.errstate(all="ignore"):
        measured = measure_tensors(reference, candidate, dtype=str(reference.dtype))
        assert measured.evidence is Evidence.TENSORS
        assert_as_plain(measured, reference, candidate)


@pytest.mark.parametrize("extra", [-1, 0, 1, BLOCK_ELEMENTS + 77])
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_block_boundaries_do_not_show(extra: int, dtype: str) -> None:
    generator = np.random.default_rng(extra + 1)
    reference = generator.normal(2, 1, BLOCK_ELEMENTS + extra).astype(dtype)
    candidate = (reference * (1 + 1e-2 * generator.normal(size=reference.size))).astype(dtype)
    candidate[-1] += 5
    reference[[5, -1]] = candidate[5] = np.nan
    reference[7] = np.inf
    assert_as_plain(measure_tensors(reference, candidate, dtype=dtype), reference, candidate)


def test_a_constant_offset_far_from_zero_has_no_scatter_across_blocks() -> None:
    reference = np.zeros(3 * BLOCK_ELEMENTS + 5)
    reference[::2] = 1.0
    measured = measure_tensors(reference, reference + 1e6, dtype="float64")
    assert measured.standard_deviation == pytest.approx(0, abs=1e-9)
    assert measured.mean_abs == pytest.approx(1e6)


@given(tensor_pairs(dtypes=("float32",)))
def test_strides_do_not_matter(pair: tuple[Any, Any]) -> None:
    reference, candidate = (np.atleast_2d(side) for side in pair)
    straight = measure_tensors(reference, candidate, dtype="float32")
    for view in (lambda a: np.asfortranarray(a), lambda a: np.repeat(a, 2, axis=-1)[..., ::2]):
        strided = measure_tensors(view(reference), view(candidate), dtype="float32")
        assert [getattr(strided, name) for name in NUMBERS] == pytest.approx(
            [getattr(straight, name) for name in NUMBERS], rel=1e-12, nan_ok=True
        )


def test_memory_does_not_grow_with_a_mapped_or_strided_tensor(tmp_path: Path) -> None:
    values = np.memmap(tmp_path / "tensor", dtype=np.float32, mode="w+", shape=(4096, 4096))
    values[0] = 1
    tracemalloc.start()
    try:
        measured = measure_tensors(values, values.T, dtype="float32")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert measured.max_abs == 1
    assert peak_bytes < values.nbytes / 2


@pytest.mark.parametrize("scale", [1e300, 1e-300, 5e-324, 2.0**-1074, 1.7e308])
def test_huge_and_tiny_doubles_neither_overflow_nor_vanish(scale: float) -> None:
    reference = np.array([1.0, -1.0, 1.0, 0.0]) * scale
    candidate = np.array([1.0, -1.0, 0.0, 0.0]) * scale
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error")
        measured = measure_tensors(reference, candidate, dtype="float64")
    assert measured.rel_l2 == pytest.approx(math.sqrt(1 / 3))
    assert measured.cosine == pytest.approx(math.sqrt(2 / 3))
    assert measured.max_abs == scale
    assert measured.accumulated_relative == pytest.approx(1 / 3)


def test_opposite_largest_doubles_differ_by_infinity_but_keep_their_ratio() -> None:
    largest = np.full(3, np.finfo(np.float64).max)
    measured = measure_tensors(largest, -largest, dtype="float64")
    assert (measured.max_abs, measured.rel_l2) == (math.inf, pytest.approx(2))
    assert measured.cosine == pytest.approx(-1)


def test_subnormal_numbers_count_in_full() -> None:
    tiny = np.float32(1e-45)
    measured = measure_tensors(
        np.array([tiny, 0], np.float32), np.array([2 * tiny, 0], np.float32), dtype="float32"
    )
    assert (measured.rel_l2, measured.max_ulp, measured.max_relative) == (1, 1, 1)


def test_integers_beyond_doubles_still_differ() -> None:
    reference = np.array([2**62, -(2**63), 5])
    candidate = np.array([2**62 + 1, 2**63 - 1, 5])
    measured = measure_tensors(reference, candidate, dtype="int64")
    assert measured.max_abs == 2.0**64
    assert measure_tensors(reference[:1], candidate[:1], dtype="int64").max_abs == 1
    assert measure_tensors(reference[:1], candidate[:1], dtype="int64").rel_l2 == 2.0**-62
    assert math.isnan(measured.max_ulp)


def test_integers_of_different_width_are_compared_by_value() -> None:
    reference, candidate = np.array([1, 2], np.int32), np.array([1, 2], np.int64)
    assert measure_tensors(reference, candidate, dtype="int64").max_abs == 0
    measured = measure_tensors(np.array([True, False]), np.array([1, 1], np.int8), dtype="int8")
    assert measured.max_abs == 1


def test_empty_and_scalar_tensors() -> None:
    empty = measure_tensors(np.empty((0, 3)), np.empty((0, 3)), dtype="float64")
    assert (empty.cosine, empty.rel_l2, empty.max_abs, empty.within_1e_3) == (1, 0, 0, 1)
    scalar = measure_tensors(np.float32(2), np.float32(3), dtype="float32")
    assert (scalar.cosine, scalar.rel_l2, scalar.rmse) == (1, 0.5, 1)


@pytest.mark.parametrize(
    ("reference", "candidate", "cosine", "rel_l2", "divergence"),
    [
        ([0, 0], [0, 0], 1, 0, 0),
        ([0, 0], [0, 2], 0, math.inf, math.inf),
        ([1, 0], [0, 0], 0, 1, math.inf),
    ],
)
def test_all_zero_sides(
    reference: list[float], candidate: list[float], cosine: float, rel_l2: float, divergence: float
) -> None:
    measured = measure_tensors(
        np.array(reference, float), np.array(candidate, float), dtype="float64"
    )
    assert (measured.cosine, measured.rel_l2) == (cosine, rel_l2)
    assert measured.kl_divergence == divergence


def test_non_finite_elements_are_equal_only_to_their_like() -> None:
    nan, inf = math.nan, math.inf
    reference = np.array([nan, inf, -inf, inf, nan, 1.0, inf, 3.0])
    candidate = np.array([nan, inf, inf, 2.0, 1.0, nan, nan, 3.0])
    measured = measure_tensors(reference, candidate, dtype="float64")
    assert (measured.nan_mismatch, measured.inf_mismatch) == (3, 2)
    assert (measured.max_abs, measured.rel_l2, measured.cosine) == (0, 0, 1)
    assert measured.within_1e_3 == 3 / 8


def test_nothing_left_to_compare_is_unknown_and_not_equal() -> None:
    measured = measure_tensors(np.array([math.nan]), np.array([1.0]), dtype="float64")
    assert measured.nan_mismatch == 1
    assert math.isnan(measured.cosine)
    assert math.isnan(measured.rel_l2)
    assert measured.within_1e_3 == 0


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("steps", [1, 3])
def test_ulp_distance_counts_the_numbers_between(dtype: str, steps: int) -> None:
    reference = np.array([1.0, -2.0, 0.0, 1e-7, 65504.0], dtype)
    candidate = reference.copy()
    for _ in range(steps):
        candidate = np.nextafter(candidate, np.array(0, dtype) - reference, dtype=dtype)
    assert measure_tensors(reference, candidate, dtype=dtype).max_ulp == steps


def test_ulp_distance_of_signed_zeros_and_opposite_signs() -> None:
    zeros = measure_tensors(np.array([0.0]), np.array([-0.0]), dtype="float64")
    assert zeros.max_ulp == 0
    least = np.array([5e-324])
    assert measure_tensors(least, -least, dtype="float64").max_ulp == 2
    large = np.array([1.7e308])
    assert measure_tensors(large, -large, dtype="float64").max_ulp > 2.0**63


def test_ulp_distance_of_widened_bfloat16_is_on_its_own_grid() -> None:
    one, next_one = np.array([1.0], np.float32), np.array([1.0 + 2.0**-7], np.float32)
    assert measure_tensors(one, next_one, dtype="bfloat16").max_ulp == 1
    rounded_away = np.array([1.0 + 2.0**-10], np.float32)
    assert measure_tensors(one, rounded_away, dtype="bfloat16").max_ulp == 0


def test_sizes_must_be_equal() -> None:
    with pytest.raises(ValueError, match="2 reference elements cannot face 3"):
        measure_tensors(np.zeros(2), np.zeros(3), dtype="float64")


@given(tensor_pairs(dtypes=("float32", "float64")))
def test_identical_tensors_agree_in_every_number(pair: tuple[Any, Any]) -> None:
    measured = measure_tensors(pair[0], pair[0].copy(), dtype=str(pair[0].dtype))
    expected = dataclasses.replace(IDENTICAL, evidence=Evidence.TENSORS)
    relaxed = dataclasses.replace(measured, cosine=1.0, kl_divergence=0.0)
    finite_values = pair[0][np.isfinite(pair[0])]
    assert measured.cosine == pytest.approx(1, abs=1e-12)
    assert measured.kl_divergence == pytest.approx(0, abs=1e-12)
    if finite_values.size == pair[0].size:
        assert relaxed == expected
    assert (measured.rel_l2, measured.nan_mismatch, measured.inf_mismatch) == (0, 0, 0)


# --- sketches and statistics ------------------------------------------------------------------


@pytest.mark.parametrize("relative", [1e-6, 1e-3, 0.1, 1.0])
def test_sketches_estimate_distance_and_cosine(relative: float) -> None:
    generator = np.random.default_rng(3)
    reference = generator.normal(size=50_000)
    candidate = reference + relative * generator.normal(size=reference.size)
    exact = measure_tensors(reference, candidate, dtype="float64")
    estimate = measure_sketches(content_of(reference), content_of(candidate))
    assert estimate.evidence is Evidence.SKETCH
    assert estimate.rel_l2 == pytest.approx(exact.rel_l2, rel=0.2)
    assert estimate.rmse == pytest.approx(exact.rmse, rel=0.2)
    assert 1 - estimate.cosine == pytest.approx(1 - exact.cosine, rel=0.5, abs=1e-12)
    assert 0 <= estimate.max_abs <= exact.max_abs * (1 + 1e-9)


def test_sketches_of_opposite_and_zero_tensors() -> None:
    ones, zeros = np.ones(1000), np.zeros(1000)
    assert measure_sketches(content_of(ones), content_of(-ones)).cosine == pytest.approx(
        -1, abs=0.3
    )
    assert measure_sketches(content_of(zeros), content_of(zeros)).cosine == 1
    nothing = measure_sketches(content_of(zeros), content_of(ones))
    assert (nothing.cosine, nothing.rel_l2) == (0, math.inf)


@settings(deadline=None)
@given(tensor_pairs(dtypes=("float64", "float32", "int32", "bool", "complex64")))
@example((np.array([1e-3, 2.0]), np.array([2.0, 1e-3])))
def test_statistics_never_claim_more_distance_than_there_is(pair: tuple[Any, Any]) -> None:
    with np.errstate(all="ignore"):
        left, right = (content_of(side, sketch_loader=None) for side in pair)
        bound = measure_statistics(left, right)
        exact = measure_tensors(*pair, dtype=str(pair[0].dtype))
    assert bound.evidence is Evidence.STATISTICS
    assert math.isnan(bound.cosine)
    assert bound.nan_mismatch <= exact.nan_mismatch
    if exact.nan_mismatch or exact.inf_mismatch or exact.rel_l2 == math.inf:
        return
    rounding = 1e-12 * np.nan_to_num(left.statistics.norm)  # of the means and norms themselves
    assert bound.max_abs <= exact.max_abs * (1 + 1e-9) + rounding
    assert bound.rel_l2 <= exact.rel_l2 * (1 + 1e-9) + 1e-12


def test_statistics_see_a_scaled_and_a_shifted_tensor() -> None:
    reference = np.linspace(-1, 1, 1000)
    scaled = measure_statistics(content_of(reference), content_of(1.5 * reference))
    assert scaled.rel_l2 == pytest.approx(0.5)
    shifted = measure_statistics(content_of(reference), content_of(reference + 0.25))
    assert shifted.rel_l2 == pytest.approx(0.25 * math.sqrt(1000) / np.linalg.norm(reference))
    assert shifted.max_abs == pytest.approx(0.25)


def test_statistics_count_non_finite_elements() -> None:
    reference, candidate = np.ones(4), np.array([1, math.nan, math.nan, math.inf])
    for measured in (
        measure_statistics(content_of(reference), content_of(candidate)),
        measure_sketches(content_of(reference), content_of(candidate)),
    ):
        assert (measured.nan_mismatch, measured.inf_mismatch) == (2, 1)


def test_statistics_of_nothing_finite_and_of_nothing_at_all() -> None:
    for values in (np.full(3, math.nan), np.empty(0)):
        measured = measure_statistics(content_of(values), content_of(values))
        assert (measured.rel_l2, measured.max_abs, measured.nan_mismatch) == (0, 0, 0)


# --- the best evidence ------------------------------------------------------------------------


def test_evidence_is_taken_best_first() -> None:
    reference, candidate = content_of(np.ones(8)), content_of(np.full(8, 2.0))
    same = dataclasses.replace(candidate, digest=reference.digest)
    no_loader = dataclasses.replace(candidate, loader=None)
    no_sketch = dataclasses.replace(no_loader, sketch_loader=None)
    nothing = dataclasses.replace(no_sketch, statistics=None)
    found = [
        measure(reference, other, read_tensors=True).evidence
        for other in (same, candidate, no_loader, no_sketch, nothing)
    ]
    assert found == [
        Evidence.DIGEST,
        Evidence.TENSORS,
        Evidence.SKETCH,
        Evidence.STATISTICS,
        Evidence.NONE,
    ]
    assert measure(reference, candidate, read_tensors=False).evidence is Evidence.SKETCH


def test_unknown_digests_are_not_equal_digests() -> None:
    unread = content_of(np.ones(8), digest=None, statistics=None, loader=None)
    assert measure(unread, unread, read_tensors=True).evidence is Evidence.NONE


def test_different_sizes_cannot_be_measured() -> None:
    found = measure(content_of(np.ones(8)), content_of(np.ones(9)), read_tensors=True)
    assert found.evidence is Evidence.NONE


def test_ulps_are_those_of_the_coarser_side() -> None:
    fine = content_of(np.array([1.0 + 2.0**-20], np.float32))
    coarse = content_of(np.array([1.0], np.float16))
    assert measure(fine, coarse, read_tensors=True).max_ulp == 0
    assert measure(coarse, fine, read_tensors=True).max_ulp == 0


@given(tensor_pairs(dtypes=("float32", "int32")))
def test_the_symmetric_difference_has_no_direction(pair: tuple[Any, Any]) -> None:
    left, right = content_of(pair[0]), content_of(pair[1])
    one = symmetric_difference(left, right, measure(left, right, read_tensors=True))
    other = symmetric_difference(right, left, measure(right, left, read_tensors=True))
    assert one == pytest.approx(other, rel=1e-6, nan_ok=True)
    assert one >= 0


def test_the_symmetric_difference_at_its_ends() -> None:
    def between(left: list[float], right: list[float]) -> float:
        pair = content_of(np.array(left)), content_of(np.array(right))
        return symmetric_difference(*pair, measure(*pair, read_tensors=True))

    assert between([1, 2], [1, 2]) == 0
    assert between([0, 0], [0, -0.0]) == 0
    assert between([0, 0], [0, 3]) == between([0, 3], [0, 0]) == 1
    assert between([3, 4], [6, 8]) == pytest.approx(0.5)
    assert between([1, 1], [-1, -1]) == 2
    assert between([1, math.nan], [1, 1]) == math.inf
    assert between([math.inf, 1], [-math.inf, 1]) == math.inf


def test_the_symmetric_difference_is_unknown_without_evidence() -> None:
    bare = content_of(np.ones(2), statistics=None, digest=None)
    assert math.isnan(symmetric_difference(bare, bare, Metrics(Evidence.NONE)))
