"""Tensors that no recorded input went into: their own shape, kind and numbers decide."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import lockstep
from lockstep.core.finding import Comparison, Kind, Outcome, Verdict

MADE = {
    "positions": lambda: torch.arange(8, dtype=torch.float32),
    "fewer": lambda: torch.arange(3, dtype=torch.float32),
    "none": lambda: torch.arange(0, dtype=torch.float32),
    "whole": lambda: torch.arange(8),
    "zeros": lambda: torch.zeros(8),
    "zeros-4": lambda: torch.zeros(4),
    "zeros-view": lambda: torch.zeros(2, 4),
    "zeros-whole": lambda: torch.zeros(8, dtype=torch.int64),
    "zeros-truth": lambda: torch.zeros(8, dtype=torch.bool),
    "twos": lambda: torch.full((8,), 2.0),
    "hundreds": lambda: torch.full((8,), 100.0),
    "spread": lambda: torch.ones(8, 1),
    "broadcast": lambda: torch.ones(1, 1),
    "found": lambda: torch.empty(8),
    "found-3": lambda: torch.empty(3),
    "cut": lambda: torch.arange(8)[:3] * 2,
    "cut-of-more": lambda: torch.arange(16)[:3] * 2,
    "not-cut": lambda: torch.arange(3) * 2,
    "normal": lambda: torch.randn(8),
    "uniform": lambda: torch.rand(8),
}


class Unused(nn.Module):
    """Makes a tensor of nothing, which nothing that is trained depends on."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.leave = what, nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        made = MADE[self.what]()
        if not self.what.startswith("found"):  # memory that is kept differs at the end
            self.made = made
        out: Tensor = self.leave(x)
        return out


@cache
def recorded(what: str, save: str) -> Path:
    path = Path(mkdtemp(prefix="lockstep-tests-")) / "run"
    torch.manual_seed(0)
    model = Unused(what)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, steps="0:1", save=save):
        model(torch.ones(3, 4)).sum().backward()
        optimizer.step()
    return path


def compared(
    reference: str, candidate: str, *, save: str = "sketch", rule: str = "error-model"
) -> Comparison:
    return lockstep.compare_recordings(
        recorded(reference, save), recorded(candidate, save), rule=rule
    )


@pytest.mark.parametrize("rule", ["error-model", "fixed"])
@pytest.mark.parametrize("save", ["stats", "tensors"])
@pytest.mark.parametrize(
    ("reference", "candidate", "words"),
    [
        ("positions", "fewer", "shape (8,) in the reference and (3,) in the candidate"),
        ("positions", "none", "shape (8,) in the reference and (0,) in the candidate"),
        ("zeros", "zeros-4", "shape (8,) in the reference and (4,) in the candidate"),
        ("positions", "whole", "float32 in the reference and int64 in the candidate"),
        ("zeros", "zeros-whole", "float32 in the reference and int64 in the candidate"),
    ],
)
def test_another_shape_or_kind_of_what_was_made_of_nothing_is_a_difference(
    reference: str, candidate: str, words: str, save: str, rule: str
) -> None:
    found = compared(reference, candidate, save=save, rule=rule)
    assert found.verdict is Verdict.DIVERGED
    assert words in found.origins[0].reason


@pytest.mark.parametrize("rule", ["error-model", "fixed"])
@pytest.mark.parametrize("save", ["sketch", "tensors"])
@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("zeros", "zeros-view"),  # the same elements
        ("zeros", "zeros-truth"),  # as masks are
        ("spread", "broadcast"),  # the same number
        ("found", "found-3"),  # which nobody has written to
        ("cut", "cut-of-more"),  # all that is made of it is equal
        ("not-cut", "cut-of-more"),  # by a call that one run alone makes
    ],
)
def test_another_way_to_the_same_elements_is_none(
    reference: str, candidate: str, save: str, rule: str
) -> None:
    found = compared(reference, candidate, save=save, rule=rule)
    # Thresholds alone do not tell what a call of one run does to the training.
    alone = rule == "fixed" and found.unaligned_calls
    wanted = Verdict.INCOMPARABLE if alone else Verdict.AGREE
    assert (found.verdict, found.origins) == (wanted, ())


def test_numbers_far_off_are_told_and_so_is_another_random_stream() -> None:
    assert compared("twos", "hundreds").origins[0].op == "torch.full"
    assert compared("normal", "uniform").origins[0].kind is Kind.RANDOM


def test_an_extent_that_is_not_judged_is_counted_as_that() -> None:
    found = compared("cut", "cut-of-more")
    unjudged = [one.reason for one in found.findings if one.outcome is Outcome.INCOMPARABLE]
    assert unjudged
    assert all(one.endswith("everything computed from it is equal bit by bit") for one in unjudged)


# --- dumps that tell results alone ---------------------------------------------------------------

RESULTS = {
    name: np.random.default_rng(place).normal(size=(5, 8)).astype(np.float32)
    for place, name in enumerate("abc")
}
NAMES = {
    "in order": "rank0/step0/{place:04}/{name}/torch.nn.Linear#0/output.result.npy",
    "by name": "rank0/step0/{name}/torch.nn.Linear#0/output.result.npy",
    "tfdbg": "{name}.0.160000000000000{place}.npy",
    "ascend": "MatMul.{name}.{place}.1.160000000000000{place}.output.0.npy",
}


def dumped(folder: Path, form: str, **changed: np.ndarray) -> Path:
    for place, (name, value) in enumerate({**RESULTS, **changed}.items()):
        file = folder / NAMES[form].format(place=place, name=name)
        file.parent.mkdir(parents=True, exist_ok=True)
        np.save(file, value)
    return folder


@pytest.mark.parametrize("rule", ["error-model", "fixed"])
@pytest.mark.parametrize("form", NAMES)
@pytest.mark.parametrize(
    "changed",
    [
        {"a": RESULTS["a"][:, :4]},
        {"b": 50 * RESULTS["b"][:, :4]},
        {"a": RESULTS["a"][:0]},
        {"a": RESULTS["b"], "b": RESULTS["a"]},
    ],
    ids=["half", "half-and-larger", "nothing", "exchanged"],
)
def test_a_dump_of_results_alone_is_held_by_its_own_numbers(
    tmp_path: Path, form: str, changed: dict[str, np.ndarray], rule: str
) -> None:
    reference = dumped(tmp_path / "reference", form)
    candidate = dumped(tmp_path / "candidate", form, **changed)
    found = lockstep.compare_recordings(reference, candidate, rule=rule)
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].module == min(changed)


@pytest.mark.parametrize("form", NAMES)
def test_the_same_results_in_another_shape_are_the_same(tmp_path: Path, form: str) -> None:
    reference = dumped(tmp_path / "reference", form)
    candidate = dumped(tmp_path / "candidate", form, a=RESULTS["a"].reshape(-1))
    assert lockstep.compare_recordings(reference, candidate).verdict is Verdict.AGREE
