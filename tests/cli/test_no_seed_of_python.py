"""Data that Python's or NumPy's generator decides without a seed, recorded by the command and in code."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from torch import nn
from workplace import Workplace

import lockstep
from lockstep.core.finding import Comparison
from lockstep.report.comparison.verdict_words import answer_of, lines_below
from lockstep.store.reader import Recording

TRAIN = """
import random, sys
import numpy as np
import torch
from torch import nn
{imports}
torch.manual_seed(0)
own = np.random.default_rng()
model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.randn(64, 8)
def train():
    order = {order}
    for first in (0, 16):
        inputs = x[order[first : first + 16]]
        optimizer.zero_grad()
        (model(inputs) - inputs.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
{run}
"""
BY_COMMAND = TRAIN.format(imports="", run="train()", order="random.sample(range(64), 64)")
IN_CODE = TRAIN.format(
    imports="import lockstep", order="own.permutation(64).tolist()",
    run="order = own.random()\nwith lockstep.record(sys.argv[1], model=model): train()",
)  # fmt: skip
HEADLINE = "DIVERGED: the two runs drew other random numbers: no seed was set for "


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> list[Workplace]:
    """One whose processes import torch themselves, one whose processes are forked from one that had."""
    folder = tmp_path_factory.mktemp("unseeded")
    for place in (places := [Workplace(folder), Workplace(folder, programs)]):
        place.script("train.py", BY_COMMAND)
        place.script("in_code.py", IN_CODE)
    return places


def test_what_python_draws_without_a_seed_is_told_with_the_command_that_mends_it(
    places: list[Workplace],
) -> None:
    for path in ("first", "second"):
        assert places[0].record("-o", path, "--", "python", "train.py").code == 0
    lines = places[1].run("lockstep", "compare", "first", "second").out.splitlines()
    assert lines[0] == f"{HEADLINE}Python's random"
    assert lines[1].startswith("  seen first at step 0, data: ")
    assert lines[-1].count(" record --save program --steps 0:2 --seed 0 ") == 2


def test_what_a_generator_of_the_script_draws_is_told_of_a_recording_in_code(
    places: list[Workplace],
) -> None:
    for place, path in zip(places, ("in-1", "in-2"), strict=True):
        done = place.run("python", "in_code.py", path)
        assert done.code == 0, done.err
    out = places[1].run("lockstep", "compare", "in-1", "in-2").out
    assert out.startswith(f"{HEADLINE}numpy.random.default_rng()\n")
    assert "What next: give each numpy.random.default_rng() a seed in the script" in out


# --- what is asked of two runs whose generators had no seed ----------------------------------------------------------


@cache
def recorded(folder: Path, kind: str) -> Path:
    path = folder / kind
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1))
    x = torch.randn(16, 8)
    drawn = torch.Generator().manual_seed(len(kind))
    with torch.no_grad():
        if kind in ("weights", "other-weights"):
            model[0].weight.normal_(generator=drawn)
        if kind == "wider":
            model[0].weight.mul_(1.5)
    if kind in ("batch", "other-batch", "shifted-batch"):
        x = torch.randn(16, 8, generator=drawn) + (kind == "shifted-batch")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(path, model=model):
        inputs = x * (1.01 if kind == "scaled" else 1)
        (model(inputs) - 1).square().mean().backward()
        optimizer.step()
    return path


def compared(
    folder: Path, kinds: tuple[str, str], unseeded: tuple[str, str], states: str = "ab"
) -> Comparison:
    """Compare two kinds, as if they had drawn from generators of these names, in these states."""
    runs = [Recording(recorded(folder, kind)) for kind in kinds]
    for run, name, state in zip(runs, unseeded, states, strict=True):
        manifest = run.ranks["rank0"].manifest
        manifest.unseeded = [name] if name else []
        manifest.random_states |= {name: state} if name else {}
    return lockstep.compare_recordings(*runs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("in-process")


@pytest.mark.parametrize(
    ("kinds", "first"),
    [
        (("batch", "other-batch"), "seen first at step 0, data: "),
        (
            ("weights", "other-weights"),
            "seen first at step 0, init of 0.weight (torch.nn.Linear): ",
        ),
    ],
)
def test_data_and_weights_that_numpy_draws_are_told(
    folder: Path, kinds: tuple[str, str], first: str
) -> None:
    found = compared(folder, kinds, ("numpy", "numpy"))
    assert answer_of(found).headline == f"{HEADLINE}numpy.random"
    assert lines_below(found)[0].startswith(first)


@pytest.mark.parametrize(
    ("kinds", "unseeded", "states"),
    [
        (("plain", "scaled"), ("python", "python"), "ab"),  # nothing draws a multiple
        (("batch", "shifted-batch"), ("python", "python"), "ab"),  # nor another mean
        (("plain", "wider"), ("numpy", "numpy"), "ab"),  # nor another spread
        (("batch", "other-batch"), ("", ""), "ab"),  # both had a seed
        (("batch", "other-batch"), ("numpy", "numpy"), "aa"),  # both draw the same
        (("batch", "other-batch"), ("numpy.random.default_rng", ""), "ab"),  # it may be a long seed
    ],
)
def test_any_other_difference_is_named_where_it_is(
    folder: Path, kinds: tuple[str, str], unseeded: tuple[str, str], states: str
) -> None:
    found = compared(folder, kinds, unseeded, states)
    assert answer_of(found).headline.startswith("DIVERGED at step 0, ")
