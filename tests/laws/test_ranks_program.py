"""The laws of trainings of several ranks: what passes between them is run again with the programs of all."""

from __future__ import annotations

from pathlib import Path

import pytest
from two_ranks import run_two_ranks

import lockstep
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.laws import Law, Quantity
from lockstep.core.site import Phase

SCRIPT = Path(__file__).with_name("ranks_training.py")


@pytest.fixture(scope="module")
def runs(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_two_ranks(programs, SCRIPT, str(folder))
    return folder


def compared(runs: Path, reference: str, candidate: str) -> Comparison:
    found = lockstep.compare_recordings(runs / reference, runs / candidate)
    assert found.laws is not None
    return found


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [
        ("wrapper", "wrapper, spelled"),
        ("wrapper", "by hand"),
        ("wrapper, masked before", "wrapper, masked behind"),
        ("by hand", "by hand, in pieces"),
        ("by hand", "wrapper, spelled"),
        ("wrapper, clipped", "wrapper, clipped, spelled"),
        ("shards", "shards, spelled"),
        ("shards, clipped", "shards, clipped, spelled"),
        ("shards, in bfloat16", "shards, in bfloat16, spelled"),
    ],
)
def test_sound_ways_of_exchanging_gradients_agree(
    runs: Path, reference: str, candidate: str
) -> None:
    # given two ranks whose function, loss and exchange are the same, spelled otherwise
    found = compared(runs, reference, candidate)
    # then the laws were applied to every step of every rank, and hold
    assert found.verdict is Verdict.AGREE
    assert found.laws is not None
    assert (found.laws.not_judged, found.laws.steps) == ((), 4)


@pytest.mark.parametrize(
    ("reference", "candidate", "ranks", "place"),
    [
        ("wrapper", "wrapper, scaled", {"rank0", "rank1"}, "torch.Tensor.mul"),
        ("wrapper", "wrapper, one rank", {"rank1"}, "torch.Tensor.mul"),
        ("wrapper", "wrapper, shrunk", {"rank1"}, ""),
        ("wrapper", "by hand, forgets one", {"rank0", "rank1"}, ""),
        ("shards", "shards, one rank", {"rank1"}, "torch.Tensor.mul"),
        ("shards, in bfloat16", "shards, in bfloat16, scaled", {"rank0"}, "torch.Tensor.mul"),
    ],
)
def test_a_fault_of_one_rank_or_of_the_exchange_diverges(
    runs: Path, reference: str, candidate: str, ranks: set[str], place: str
) -> None:
    found = compared(runs, reference, candidate)
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert any(one.breach.law is Law.PROGRAM for one in found.laws.breaches)
    first = found.origins[0]
    assert first.rank in ranks
    assert first.op == place or not place


def test_another_mask_behind_the_exchange_than_the_hook_s_diverges(runs: Path) -> None:
    # given a hook that takes a row's gradient before the ranks exchange it, and a script that takes most of it behind
    found = compared(runs, "wrapper, masked before", "wrapper, masked behind in part")
    # then they diverge where gradients are
    assert found.verdict is Verdict.DIVERGED
    assert found.origins[0].phase is Phase.BACKWARD


def test_an_exchange_that_loses_a_hundredth_breaks_the_law_of_kernels(runs: Path) -> None:
    # given a hook that sends 0.99 of each gradient, which no recorded call shows
    found = compared(runs, "wrapper", "wrapper, hook")
    # then the candidate's gradients are no longer the mean of its ranks'
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    kernels = [one.breach for one in found.laws.breaches if one.breach.law is Law.KERNELS]
    assert {(one.run, one.quantity) for one in kernels} == {("candidate", Quantity.CLIPPED)}
    assert {one.name for one in kernels} >= {"0.weight", "4.weight"}
