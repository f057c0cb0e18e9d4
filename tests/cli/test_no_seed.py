"""Two runs of a script that sets no seed: the draws are named, and the command that fixes them."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from workplace import Workplace

import lockstep
from lockstep.core.finding import Comparison, Kind
from lockstep.core.reason import About
from lockstep.report.comparison.verdict_words import answer_of, lines_below
from lockstep.store.reader import Recording

TRAIN = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

model = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.3 if kind == "dropout" else 0.0), nn.Linear(32, 1))
with torch.no_grad():
    if kind == "wide":
        model[0].weight.mul_(2)
    for one in model.parameters() if kind not in ("init", "wide") else ():
        one.copy_(torch.linspace(-0.3, 0.4, one.numel()).view_as(one) * (1.01 if kind == "scaled" else 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 8, generator=torch.Generator().manual_seed(1))
order = {"sorted": x.sum(1).argsort()}.get(kind, torch.arange(64))
data = TensorDataset(x[order], x[order].sum(1, keepdim=True))
for inputs, target in DataLoader(data, batch_size=16, shuffle=kind == "shuffle"):
    optimizer.zero_grad()
    (model(inputs) - target).square().mean().backward()
    optimizer.step()
"""

HEADLINE = "DIVERGED: the two runs drew other random numbers: no seed was set"


@pytest.fixture(scope="module")
def unseeded(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Workplace:
    """Two recordings of the script without a seed.

    The first process imports torch itself; the second is forked from one that had, and so draws other numbers.
    """
    folder = tmp_path_factory.mktemp("unseeded")
    for place, name in ((Workplace(folder), "first"), (Workplace(folder, programs), "second")):
        place.script("train.py", f'kind = "init"\n{TRAIN}')
        done = place.record("-o", name, "--", "python", "train.py")
        assert done.code == 0, done.err
    return place


@cache
def recorded(place: Path, kind: str, seed: int) -> Path:
    path = place / f"{kind}-{seed}"
    with lockstep.record(path, steps="0:2"):
        torch.manual_seed(seed)
        exec(compile(TRAIN, "train.py", "exec"), {"kind": kind})
    return path


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seeded")


def compared(
    place: Path,
    reference: str,
    candidate: str,
    *,
    seeds: tuple[int, int] = (0, 1),
    unseeded: tuple[bool, bool] = (True, True),
) -> Comparison:
    """Compare two kinds that draw from two seeds, as if these were what torch drew for itself at its import."""
    runs = [
        Recording(recorded(place, kind, seed))
        for kind, seed in zip((reference, candidate), seeds, strict=True)
    ]
    for run, is_so in zip(runs, unseeded, strict=True):
        manifest = run.ranks["rank0"].manifest
        assert "torch" not in manifest.unseeded
        manifest.unseeded = ["torch"] if is_so else []
    return lockstep.compare_recordings(*runs)


def test_two_runs_without_a_seed_are_told_with_the_command_that_mends_it(
    unseeded: Workplace,
) -> None:
    done = unseeded.run("lockstep", "compare", "first", "second")
    assert done.code == 1
    assert done.out.splitlines()[0] == HEADLINE
    assert "seen first at step 0, init of 0.weight (torch.nn.Linear): " in done.out
    assert "What next: give both the same random numbers" in done.out
    line = done.out.rstrip().splitlines()[-1]
    assert line.count(" record --save program --steps 0:2 --seed 0 ") == 2
    pasted = unseeded.run("bash", "-c", line)
    assert pasted.code == 0, pasted
    assert "AGREE: " in pasted.out


@pytest.mark.parametrize(
    ("kind", "first"),
    [
        ("init", "seen first at step 0, init of 0.weight (torch.nn.Linear): "),
        ("shuffle", "seen first at step 0, data: "),
        ("dropout", "seen first at step 0, forward of 1 (torch.nn.functional.dropout): "),
    ],
)
def test_each_thing_that_is_drawn_is_told_as_that(place: Path, kind: str, first: str) -> None:
    found = compared(place, kind, kind)
    assert answer_of(found).headline == HEADLINE
    assert lines_below(found)[0].startswith(first)
    assert found.origins[0].kind is Kind.RANDOM


def test_the_run_that_set_no_seed_is_named_where_the_other_did(place: Path) -> None:
    found = compared(place, "init", "init", unseeded=(False, True))
    assert answer_of(found).headline == f"{HEADLINE} in the candidate"


@pytest.mark.parametrize(
    ("reference", "candidate", "given", "phase"),
    [
        ("init", "wide", {"seeds": (0, 0), "unseeded": (False, False)}, "init"),  # another spread
        ("init", "init", {"unseeded": (False, False)}, "init"),  # both were seeded
        ("init", "wide", {}, "init"),  # no two samples of one distribution
        ("fixed", "scaled", {}, "init"),  # nothing that was drawn
        ("fixed", "sorted", {}, "data"),  # a loader that shuffles nothing
        ("dropout", "dropout", {"unseeded": (False, False)}, "forward"),
    ],
)
def test_any_other_difference_is_named_where_it_is(
    place: Path, reference: str, candidate: str, given: dict[str, Any], phase: str
) -> None:
    found = compared(place, reference, candidate, **given)
    assert found.origins[0].phase.value == phase
    assert not found.origins[0].reason.of(About.UNSEEDED)
    assert answer_of(found).headline.startswith("DIVERGED at step 0, ")
