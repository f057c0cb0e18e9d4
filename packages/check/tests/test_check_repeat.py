"""`lockstep check --repeat 2 -- COMMAND`: whether a training is repeatable, and what makes it so."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from lockstep.core.finding import Comparison, Verdict
from lockstep_check.repeat.first_difference import FirstDifference
from lockstep_check.repeat.runs import Repeats
from lockstep_check.repeat.screen import headline, render

SCRIPT = """
import random, sys, time
import torch
from torch.utils._python_dispatch import TorchDispatchMode

what = sys.argv[1]

class Loose(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten.gelu.default and what == "kernel":
            result.view(-1)[0].mul_(1 + 2 ** -22 * (time.time_ns() // 1000 % 1000 + 1))
        return result

torch.manual_seed(random.randrange(1 << 30) if what == "init" else 0)
if what == "fails":
    raise SystemExit(3)
drop = torch.nn.Dropout(0.5)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), drop, torch.nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(6):
    if what == "random" or what == "data":
        torch.seed()
    batch = torch.randn(5, 8)
    if what == "random":
        batch = torch.ones(5, 8)
    with Loose():
        loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step == 5:
        raise AssertionError("what is behind the steps that are looked at is not run")
"""


def run(programs: Path, place: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `lockstep check --repeat 2` on the script."""
    (place / "train.py").write_text(SCRIPT)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP")}
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return subprocess.run(
        ["lockstep", "check", "--repeat", "2", *arguments], cwd=place, capture_output=True, text=True,
        check=False, timeout=240, env={**kept, "PATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("what", "kind", "words", "cured"),
    [
        ("init", "init", "0.weight of", True),
        ("data", "data", "batch", False),
        ("random", "random", "dropout", False),
        ("kernel", "operator", "gelu", False),
    ],
)
def test_the_first_tensor_that_is_another_one_is_named_with_its_cure(
    programs: Path, tmp_path: Path, what: str, kind: str, words: str, cured: bool
) -> None:
    # given a training that is not repeatable for one reason
    done = run(programs, tmp_path, "--json", "--", "python", "train.py", what)
    # then it is named, and it is said whether seeds cure it, as was tried
    assert done.returncode == 1, done.stderr
    found = json.loads(done.stdout)
    first = found["first"]
    assert (first["kind"], first["step"]) == (kind, 0), first
    assert words in f"{first['tensor']} of {first['site']}"
    assert first["cure"]
    assert found["seeded"]["repeatable"] is cured


def test_a_training_that_is_repeatable_is_said_to_be_so(programs: Path, tmp_path: Path) -> None:
    done = run(programs, tmp_path, "--keep", "kept", "--", "python", "train.py", "no")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("REPEATABLE bit by bit: 2 steps of 2 runs are equal")
    assert sorted(one.name for one in (tmp_path / "kept").iterdir()) == ["run0", "run1"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--", "python", "train.py", "fails"], "exit code 3"),
        (["--", "no-such-command"], "command not found"),
        (["ref", "--", "python", "train.py"], "no recordings"),
    ],
)
def test_what_cannot_be_run_is_one_sentence(
    programs: Path, tmp_path: Path, arguments: list[str], words: str
) -> None:
    done = run(programs, tmp_path, *arguments)
    assert done.returncode == 2
    assert words in done.stderr


@pytest.mark.parametrize(
    ("verdict", "within", "words"),
    [
        (Verdict.AGREE, True, "differ by rounding, first at"),
        (Verdict.DIVERGED, False, "differ by more than rounding, first at"),
        (
            Verdict.INCOMPARABLE,
            None,
            "whether that is rounding cannot be said: INCOMPARABLE: no step",
        ),
    ],
)
def test_by_how_much_runs_differ_is_what_compare_says(
    verdict: Verdict, within: bool | None, words: str
) -> None:
    # Given two runs that differ in a bit, and what `compare` says of them
    first = FirstDifference("operator", "rank0", 0, "torch.relu", "result", "train.py:3")
    compared = Comparison(
        "one", "other", verdict, "error-model", (), (), 0, 0, 0, 0, 0, ("no step occurs in both",), ()
    )  # fmt: skip
    found = Repeats(2, first, compared, 1)
    # Then the headline says no more than that
    assert found.within_noise is within
    assert words in headline(found)


@pytest.mark.parametrize(
    ("kind", "after", "words"),
    [
        ("init", None, "from a generator that is not seeded"),  # seeds were not tried
        ("init", "", "from a generator that is not seeded"),  # seeds cure it
        ("init", "init", "something that no seed reaches"),
        ("data", "data", "something that no seed reaches"),
        ("random", "random", "that the script seeds anew"),
        (
            "init",
            "data",
            "from a generator that is not seeded",
        ),  # seeds cure this, and another place is left
        ("operator", "operator", "its kernel sums in an order that is left to chance"),
    ],
)
def test_a_missing_seed_is_no_cause_of_what_seeds_do_not_cure(
    kind: str, after: str | None, words: str
) -> None:
    # Given two runs that differ, and two that were seeded and are equal, or differ in the same or another place
    first, then = (
        FirstDifference(one, "rank0", 0, one, "result", "train.py:3") if one else None
        for one in (kind, after)
    )
    seeded = None if after is None else Repeats(2, then, None, 1)
    # Then the cause is one that is left
    told = " ".join(render(Repeats(2, first, None, 1, seeded)).plain.split())
    assert words in told
