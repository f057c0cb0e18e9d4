"""What explains an error: the shares are those of least squares, and of random errors nothing is said."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.wings.report.comparison_types import ErrorPattern
from lockstep.wings.report.error_pattern import ErrorSums, evidence, percent

Array = npt.NDArray[np.float64]


def pattern_of(
    reference: npt.ArrayLike, error: npt.ArrayLike, *, block: int = 1 << 16, beyond: bool = True
) -> ErrorPattern:
    reference, error = np.asarray(reference), np.asarray(error)
    sums = ErrorSums(reference.shape)
    for start in range(0, error.size, block):
        part = slice(start, start + block)
        sums.add(start, reference.reshape(-1)[part], error.reshape(-1)[part])
    return sums.pattern(beyond_noise=beyond)


def explained(error: Array, columns: Array) -> float:
    """Share of the squared error that the best combination of some columns explains."""
    flat = error.reshape(-1)
    residual = flat - columns @ np.linalg.lstsq(columns, flat, rcond=None)[0]
    return float(1 - (residual**2).sum() / (flat**2).sum())


@given(
    st.integers(2, 6),
    st.integers(2, 7),
    st.integers(1, 50),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.0, 0.3, 5.0]),
)
def test_the_shares_are_those_of_least_squares(
    rows: int, columns: int, block: int, seed: int, shift: float
) -> None:
    # given errors of any size, read in any blocks
    random = np.random.default_rng(seed)
    shape = (rows, columns)
    reference = random.standard_normal(shape)
    error = random.standard_normal(shape) + shift * random.standard_normal((rows, 1))
    found = pattern_of(reference, error, block=block)
    # then each share is that of fitting the model by least squares
    row, column = np.indices(shape).reshape(2, -1)
    assert found.constant == pytest.approx(explained(error, np.ones((error.size, 1))), abs=1e-9)
    assert found.rows == pytest.approx(explained(error, np.eye(rows)[row]), abs=1e-9)
    assert found.columns == pytest.approx(explained(error, np.eye(columns)[column]), abs=1e-9)
    assert found.factor == pytest.approx(explained(error, reference.reshape(-1, 1)), abs=1e-9)
    # and a constant explains no more than what holds it
    assert found.constant <= min(found.rows, found.columns) + 1e-12


@given(st.integers(20, 3000), st.integers(1, 4000), st.integers(0, 2**32 - 1))
def test_the_largest_are_a_hundredth_of_all(count: int, block: int, seed: int) -> None:
    error = np.random.default_rng(seed).standard_cauchy(count)
    found = pattern_of(np.ones(count), error, block=block)
    squares = np.sort(error**2)[::-1]
    expected = squares[: max(1, count // 100)].sum() / squares.sum()
    assert found.largest == pytest.approx(expected, rel=0.035)


SHAPES = [(40, 50), (3, 2), (2, 3000), (3000, 2), (5, 4, 6), (600,), (1, 64), (64, 1), (30, 2)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", ["normal", "uniform", "relative", "rounding", "heavy"])
def test_of_random_errors_nothing_is_said(shape: tuple[int, ...], kind: str) -> None:
    # given errors that follow from nothing, of the kinds that computing leaves
    for seed in range(25):
        random = np.random.default_rng(seed)
        reference = random.standard_normal(shape)
        error = {
            "normal": lambda r, x: r.standard_normal(x.shape),
            "uniform": lambda r, x: r.uniform(-1, 1, x.shape),
            "relative": lambda r, x: x * r.standard_normal(x.shape),
            "rounding": lambda r, x: x.astype(np.float32) - x,
            "heavy": lambda r, x: r.standard_t(3, x.shape),
        }[kind](random, reference)
        # then no sentence is made of them
        assert pattern_of(reference, error).sentence == ""


def planted(name: str, shape: tuple[int, int] = (40, 50)) -> tuple[Array, Array]:
    """An error of one pattern under a tenth of noise."""
    random = np.random.default_rng(3)
    reference = random.standard_normal(shape)
    few = np.zeros(shape)
    few.reshape(-1)[random.integers(0, few.size, 15)] = 40.0
    error = {
        "constant": np.full(shape, 0.5),
        "rows": np.ones(shape) * random.standard_normal((shape[0], 1)),
        "columns": np.ones(shape) * random.standard_normal((1, shape[1])),
        "factor": 0.25 * reference,
        "few": few,
        "one": np.where(np.arange(few.size).reshape(shape) == 777, 40.0, 0.0),
    }[name]
    return reference, error + 0.05 * np.abs(error).mean() * random.standard_normal(shape)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("constant", "every element is off by the same number, 0.49"),
        ("factor", "the candidate is the reference times 1.2"),
        ("rows", "all elements of a row"),
        ("columns", "all elements at one index of the last axis"),
        ("few", "20 elements hold"),
        ("one", "20 elements hold"),
    ],
)
def test_a_clear_pattern_makes_its_sentence(name: str, words: str) -> None:
    # given an error of one pattern
    reference, error = planted(name)
    found = pattern_of(reference, error)
    # then it is named, in words that hold the number
    assert found.sentence.startswith(words)
    assert "of the squared error" in found.sentence
    # and of what is within the noise nothing is said, though the shares are there
    inside = pattern_of(reference, error, beyond=False)
    assert (inside.sentence, inside.rows) == ("", found.rows)


def test_the_simplest_of_what_explains_as_much_is_named() -> None:
    # given a constant, which rows, columns and a factor of a constant tensor explain as well
    found = pattern_of(np.ones((20, 30)), np.full((20, 30), 2.0))
    assert (found.constant, found.rows, found.columns, found.factor) == (1, 1, 1, 1)
    assert found.sentence == (
        "every element is off by the same number, 2: that explains 100 % of the squared error"
    )


def test_what_explains_far_more_is_named_before_a_simpler_thing() -> None:
    # given rows whose numbers are nearly one, and nothing beside
    random = np.random.default_rng(0)
    error = np.ones((40, 50)) * (1 + 0.1 * random.standard_normal((40, 1)))
    found = pattern_of(random.standard_normal((40, 50)), error)
    assert found.constant > 0.9
    assert found.sentence.startswith("all elements of a row")


def test_an_error_where_the_reference_itself_is_is_no_pattern_of_few_elements() -> None:
    # given a tensor that is nothing but for a few elements, each rounded
    random = np.random.default_rng(0)
    reference = np.zeros(5000)
    reference[:40] = random.standard_normal(40)
    error = reference * random.standard_normal(5000) * 1e-3
    found = pattern_of(reference, error)
    assert (found.largest, found.sentence) == (pytest.approx(1), "")


@pytest.mark.parametrize("error", [[], [0.0, 0.0], [math.nan], [math.inf, 1e300]])
def test_without_an_error_that_can_be_squared_there_is_no_share(error: list[float]) -> None:
    found = pattern_of(np.ones(len(error)), np.array(error, dtype=np.float64))
    if error == [math.inf, 1e300]:
        error = []  # its square is no number
    assert found.sentence == ""
    assert math.isnan(found.constant)


def test_elements_that_are_not_finite_are_left_out() -> None:
    reference, error = planted("factor")
    error[3, 4], reference[5, 6], error[5, 6] = math.nan, math.inf, 0.0
    found = pattern_of(reference, error)
    assert found.factor > 0.99
    assert found.sentence.startswith("the candidate is the reference times 1.2")


def test_complex_errors_have_complex_constants_and_factors() -> None:
    random = np.random.default_rng(0)
    reference = random.standard_normal((8, 9)) + 1j * random.standard_normal((8, 9))
    found = pattern_of(reference, 0.5j * reference)
    assert found.factor == pytest.approx(1)
    assert found.sentence.startswith("the candidate is the reference times 1+0.5j")


def test_a_scalar_has_nothing_to_find_a_pattern_in() -> None:
    found = pattern_of(np.array(2.0), np.array(0.5))
    assert (found.constant, found.factor, found.sentence) == (1.0, 1.0, "")
    assert math.isnan(found.rows)


@given(st.integers(2, 40), st.integers(1, 6), st.floats(0.5, 0.99))
def test_the_evidence_bounds_what_random_errors_show(n: int, p: int, share: float) -> None:
    # given the share that p of n random numbers hold, many times
    if p >= n:
        assert evidence(n, p, share) == 0
        return
    squares = np.random.default_rng(n * p).standard_normal((4000, n)) ** 2
    often = (squares[:, :p].sum(1) / squares.sum(1) >= share).mean()
    # then it is no more often than the bound says
    assert often <= math.exp(-evidence(n, p, share)) + 0.03


def test_only_what_leaves_nothing_is_all() -> None:
    assert (percent(1.0), percent(0.99999), percent(0.9)) == ("100 %", "99.99 %", "90 %")
