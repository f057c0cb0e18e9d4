"""Where tensors are NaN or infinite, and the sign of a zero, at every weight of a recording."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison, Outcome, Verdict
from lockstep.devices.tensor_numbers import numbers_of
from lockstep.kernels.not_finite import not_finite_of
from lockstep.report.comparison.verdict_words import tally_of

NAN, INF = float("nan"), float("inf")


class Given(torch.autograd.Function):
    """Puts numbers at places, as a kernel may that nobody sees into."""

    @staticmethod
    def forward(ctx: object, x: Tensor, places: dict[tuple[int, int], float]) -> Tensor:
        with torch._C.DisableTorchFunction():
            made = torch.zeros_like(x)
            for place, value in places.items():
                made[place] = value
        return made

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


SAID: dict[str, dict[tuple[int, int], float]] = {
    "first": {(0, 3): NAN},
    "later": {(5, 9): NAN},
    "up": {(1, 1): INF, (2, 2): INF},
    "up and down": {(1, 1): INF, (2, 2): -INF},
    "finite": {(0, 3): 1.0},
    "minus zero": {(0, 3): 1.0, (7, 7): -0.0, (8, 1): -0.0},
}


@cache
def recorded(which: str, save: str) -> Path:
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    torch.manual_seed(0)
    model, x = nn.Linear(4, 50), torch.ones(40, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, steps="0:1", save=save):
        y = torch.nan_to_num(Given.apply(model(x), SAID[which]), posinf=0.0, neginf=0.0)
        (y.square().mean() + model.weight.square().mean()).backward()
        optimizer.step()
    return path


def compared(one: str, other: str, save: str, rule: str = "error-model") -> Comparison:
    return lockstep.compare_recordings(recorded(one, save), recorded(other, save), rule=rule)


def is_counted(found: Comparison) -> bool:
    """Whether every tensor that was compared stands in one line of the table."""
    tally = tally_of(found.findings)
    lines = tally.equal, tally.alike, tally.inside, tally.beyond, tally.unjudged
    return sum(lines) == found.compared


@pytest.mark.parametrize("rule", ["error-model", "fixed"])
@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
@pytest.mark.parametrize(("one", "other"), [("first", "later"), ("up", "up and down")])
def test_another_place_or_sign_is_told(one: str, other: str, save: str, rule: str) -> None:
    found = compared(one, other, save, rule)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].op.endswith("Given")
    assert is_counted(found)


@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
def test_the_same_places_are_equal(save: str) -> None:
    assert compared("up", "up", save).verdict is Verdict.AGREE


@pytest.mark.parametrize("rule", ["error-model", "fixed"])
@pytest.mark.parametrize("save", ["sketch", "tensors"])
def test_a_zero_of_the_other_sign_is_equal_and_counted(save: str, rule: str) -> None:
    found = compared("finite", "minus zero", save, rule)
    tally = tally_of(found.findings)
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    assert (tally.alike > 0, tally.inside, tally.unjudged) == (True, 0, 0)
    assert is_counted(found)


def test_a_recording_without_places_is_compared_as_before_and_it_is_said(tmp_path: Path) -> None:
    # Given recordings of an earlier build, whose contents lack the column
    for name in ("first", "later"):
        with lockstep.record(tmp_path / name, steps="0:1"):
            model = nn.Linear(4, 50)
            Given.apply(model(torch.ones(40, 4)), SAID[name]).sum().backward()
        without_places(tmp_path / name)
    found = lockstep.compare_recordings(tmp_path / "first", tmp_path / "later")
    assert any("where they stand was not recorded" in note for note in found.notes)


def without_places(recording: Path) -> None:
    for file in recording.glob("rank0/*.parquet"):
        table = pl.read_parquet(file)
        if "not_finite" in table.columns:
            table.drop("not_finite").write_parquet(file)
    manifest = recording / "rank0" / "manifest.json"
    text = manifest.read_text()
    start, end = text.index('"files"'), text.index("}", text.index('"files"'))
    body = (text[:start] + '"files": {' + text[end:]).rpartition(',\n "digest"')[0]
    manifest.write_text(body + "\n}")


@pytest.mark.parametrize("size", [10, 256, 257, 70_000])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_digest_for_every_dtype(dtype: torch.dtype, size: int) -> None:
    values = np.zeros(size)
    values[[0, 4, 9]] = NAN, INF, -INF
    found, _ = numbers_of(torch.tensor(values).to(dtype), with_sketch=False)
    assert found.not_finite == not_finite_of(values)


def test_finite_tensors_have_none() -> None:
    for size in (10, 1000):
        assert numbers_of(torch.ones(size), with_sketch=True)[0].not_finite is None


def test_layouts_of_the_same_elements_have_one_digest() -> None:
    values = torch.zeros(6, 7)
    values[2, 3] = NAN
    strided = values.t().contiguous().t()
    flat = strided.contiguous().view(-1)
    assert numbers_of(flat, with_sketch=False)[0].not_finite == not_finite_of(values.numpy())


def test_missing_tensors_stand_in_no_line_of_those_compared() -> None:
    found = compared("first", "later", "sketch")
    assert not any(one.outcome is Outcome.MISSING for one in found.findings[: found.compared])
