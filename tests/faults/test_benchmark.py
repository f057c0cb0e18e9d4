"""The fault benchmark itself, on a few cases of its development split: it plants what it says, and scores what it
hears."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "faults"


def run(programs: Path, *arguments: str, timeout_s: float = 300) -> str:
    """Run the benchmark as a user does; returns what it printed."""
    done = subprocess.run(
        [str(programs / "python"), str(BENCHMARK), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout_s,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


WEIGHTS = ("--weight", "tensors", "--weight", "sketch", "--weight", "stats")

FEW = ("output-scaled-code", "matmul-fp16", "gradient-hook", "all-reduce-missing")
ALL = (
    *FEW, "weight-gradient-scaled", "learning-rate", "init-scaled", "batch-one-element", "inf-saturated",
)  # fmt: skip
"""A fault for each way of planting one."""


@pytest.fixture(
    scope="module",
    params=[pytest.param(FEW, id="few"), pytest.param(ALL, id="all", marks=pytest.mark.exhaustive)],
)
def kinds(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Which faults are planted: in code, in a kernel, in a gradient and on two ranks, or all."""
    found: tuple[str, ...] = request.param
    return found


@pytest.fixture(scope="module")
def answers(
    kinds: tuple[str, ...], programs: Path, tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, Any]]:
    """These faults, and two twins, judged from tensors, from sketches and from statistics."""
    results = tmp_path_factory.mktemp("results") / "results.jsonl"
    twins = ("same-again", "nothing-planted")
    run(
        programs,
        *("--arch", "convnet", "--results", str(results)),
        *("--rule", "best", *WEIGHTS),
        *(word for kind in kinds for word in ("--fault", kind)),
        *(word for twin in twins for word in ("--twin", twin)),
    )
    return [json.loads(line) for line in results.read_text().splitlines()]


def test_every_planted_fault_changes_the_training_and_is_named(
    kinds: tuple[str, ...], answers: list[dict[str, Any]]
) -> None:
    # given faults planted in the code, in kernels, in the set-up and on two ranks
    faults = [row for row in answers if row["group"] != "twin" and row["weight"] != "stats"]
    # then each changed something, and each was named where it is
    assert len(faults) == len(kinds) * 2
    assert all(row["changed"] for row in faults)
    named = {(row["case"], row["weight"]): row["score"] for row in faults}
    assert {case: score for case, score in named.items() if score != "exact"} == {}


def test_an_explanation_is_counted_by_its_kind(answers: list[dict[str, Any]]) -> None:
    # given the faults of which it is known what explains them
    told = [row for row in answers if "explained" in row and row["weight"] == "tensors"]
    # then each tells which kind of explanation it got, and none that it got none
    assert told
    assert all(bool(row["family"]) is (row["explained"] != "none") for row in told)


def test_twins_are_bitwise_the_reference_and_silent(answers: list[dict[str, Any]]) -> None:
    # given twins that must not change one bit, one of them with all of the planting machinery on
    twins = [row for row in answers if row["group"] == "twin"]
    # then no weight accuses them
    assert len(twins) == 2 * 3
    assert {(row["score"], row["changed"]) for row in twins} == {("silent", False)}


def acquitted(rows: list[dict[str, Any]]) -> list[str]:
    """Faults that a weight with less evidence convicts, and one with more lets pass without saying why."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        if row["group"] != "twin":
            found.setdefault(row["case"], {})[row["weight"]] = row
    assert found
    return [
        f"{case}: {less} convict, {more} agree"
        for case, said in found.items()
        for less, more in (("stats", "sketch"), ("stats", "tensors"), ("sketch", "tensors"))
        if said[less]["verdict"] == "diverged"
        and said[more]["verdict"] == "agree"
        and not said[more]["overruled"]
    ]


def test_more_evidence_never_acquits_in_silence(answers: list[dict[str, Any]]) -> None:
    # given faults judged from statistics, from sketches and from whole tensors
    # then what less evidence convicts, more convicts too, or it says which judgement it overrules
    assert acquitted(answers) == []


@pytest.mark.exhaustive
@pytest.mark.parametrize("architecture", ["convnet", "mlp", "encoder"])
def test_more_evidence_never_acquits_any_kind_of_fault(
    architecture: str, programs: Path, tmp_path: Path
) -> None:
    # given every kind of fault in an architecture of the development split
    results = tmp_path / "results.jsonl"
    words = ("--arch", architecture, "--results", str(results), "--rule", "best", "--fault", "*")
    run(programs, *words, *WEIGHTS, timeout_s=1500)
    # then none is acquitted in silence
    assert acquitted([json.loads(line) for line in results.read_text().splitlines()]) == []


@pytest.fixture(scope="module")
def listed(programs: Path) -> list[str]:
    """The lines of `--list` for the table's split, one per case."""
    return run(programs, "--list").splitlines()


@pytest.fixture(scope="module")
def again(programs: Path) -> list[str]:
    """The same of one architecture of the table, and of one of the development split."""
    return run(programs, "--arch", "unet", "--arch", "mlp", "--list").splitlines()


def test_cases_are_drawn_alike_each_time(listed: list[str], again: list[str]) -> None:
    # given the cases of the table, then a second look at one architecture gives the same sites and amounts
    assert [line for line in again if line.startswith("unet/")] == [
        line for line in listed if line.startswith("unet/")
    ]


def test_table_covers_eight_architectures_and_twenty_five_kinds_of_fault(listed: list[str]) -> None:
    cases = [line.split()[0].split("/") for line in listed]
    assert len({architecture for architecture, _ in cases}) >= 8
    assert len({kind for _, kind in cases}) >= 25


def test_splits_share_no_case(listed: list[str], again: list[str]) -> None:
    # given the cases of a development architecture, then none of them is in the table
    development = [line for line in again if not line.startswith("unet/")]
    assert {line.split("/")[0] for line in development} == {"mlp"}
    assert not set(development) & set(listed)
