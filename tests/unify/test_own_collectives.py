"""Scripts that call collectives themselves on two ranks, compared with one rank on the whole batch.

Each sound script has faulty twins: what is shown is right, and what is trained is not.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from two_ranks import run_two_ranks

from lockstep import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.core.site import Phase

SCRIPT = Path(__file__).with_name("own_collectives.py")
SHOWN = (
    "plain+mean",
    "plain+mean+late",
    "plain+weighted",
    "plain+smoothed",
    "plain+perplexity",
    "hand+mean",
    "plain+mean+clipped-by-shown+sound",
)
"""That show a number of all ranks."""
WITHIN_FUNCTIONS = (
    "norm",
    "norm+averaged",
    "norm+means",
    "norm+means+bypassed",
    "router",
    "router+means",
    "contrast",
)
"""That call collectives within autograd functions."""
SHARED_UPDATES = ("zero", "zero+halves", "zero+flat", "zero+to-owner")
"""Of which each rank updates its share of the parameters, and sends it to the others."""
UNLIKE = ("plain+first", "plain+gathered")
"""That show numbers which ranks have in ways that no one rank has."""
SOUND = (*SHOWN, *UNLIKE, *WITHIN_FUNCTIONS, *SHARED_UPDATES, "hand", "hand+reversed")
FAULTS = {
    # what the training is compared with, the operator at fault, and what is said of it
    "plain+mean+summed": ("plain+mean", "loss", "every gradient is 2.00 times"),
    "plain+weighted+summed": ("plain+weighted", "loss", "every gradient is 2.00 times"),
    "plain+mean+clipped-by-shown": ("plain+mean+clipped-by-shown+sound", "mul_", "rel 0.5"),
    "norm+wrong-count": ("norm", "div", "argument 1 is 8"),
    "norm+averaged+wrong-mean": ("norm+averaged", "div", "rel 0.5"),
    "norm+means+wrong-count": ("norm+means", "Summed", "rel 0.5"),
    "norm+means+lost-backward": ("norm+means", "Summed", "grad_input does not agree: rel 0.5"),
    "router+lost-backward": ("router", "Summed", "grad_input does not agree: rel 0.5"),
    "router+means+wrong-count": ("router+means", "Summed", "output does not agree: rel 0.5"),
    "hand+lost": ("hand", "gradient between backward", "first.bias"),
    "hand+unequal": ("hand", "div_", "rank1 alone calls torch.Tensor.mul_ at "),
    "hand+copies": ("hand", "gradient between", "copies differ: rank1's is 0.98 times the other"),
    "hand+start": ("hand", "Linear", "copies differ: rank1's is 0.98 times the other run's"),
    "zero+skips": ("zero", "linear", "first.bias, changed since the last step"),
    "zero+flat+skips": ("zero+flat", "linear", "first.bias, changed since the last step"),
    "zero+to-owner+skips": ("zero+to-owner", "linear", "first.bias, changed since the last step"),
    "hand+reversed+lost": ("hand", "gradient between backward", "first.bias"),
    "zero+rate": ("zero", "AdamW", "lr is 0.01"),
    "zero+unsent": ("zero", "AdamW", "first.weight at the next step is held by several ranks"),
}
ALONE = ("hand+unequal", "hand+copies")
"""Of which one rank calls something that the other does not."""
CLIPPED = ("plain+clipped", "plain+clipped+own-rows")
"""By the norm of all gradients, which ranks have added up; of the second, one rank takes other rows."""


@pytest.fixture(scope="module")
def runs(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All trainings, in one process of one rank and two of two: to start them takes longer than they do."""
    folder = tmp_path_factory.mktemp("own-collectives")
    alone = [str(programs / "python"), str(SCRIPT), str(folder / "one"), *SOUND]
    subprocess.run(alone, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True)
    run_two_ranks(programs, SCRIPT, str(folder / "many"), *SOUND, *FAULTS, *CLIPPED)
    return folder


def compared(runs: Path, one: str, many: str) -> Comparison:
    return compare_recordings(runs / "one" / one, runs / "many" / many)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SOUND)
def test_a_sound_training_agrees_with_its_twin_of_one_rank(runs: Path, name: str) -> None:
    found = compared(runs, name, name)
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FAULTS)
def test_its_faulty_twin_is_named_where_the_fault_is(runs: Path, name: str) -> None:
    one, operator, words = FAULTS[name]
    found = compared(runs, one, name)
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert operator in first.op
    assert words in f"{first.tensor} {first.reason}"
    # And a rank is said to call something alone only where one does
    assert ("alone calls" in first.reason) is (name in ALONE)


@pytest.mark.parametrize("turned", [False, True])
def test_collectives_may_come_in_another_order(runs: Path, turned: bool) -> None:
    names = ("hand+reversed", "hand") if turned else ("hand", "hand+reversed")
    found = compare_recordings(*(runs / "many" / name for name in names))
    assert (found.verdict, found.not_compared) == (Verdict.AGREE, ())
    assert compared(runs, *names).verdict is Verdict.AGREE


def test_one_that_is_lost_in_another_order_is_named(runs: Path) -> None:
    found = compare_recordings(runs / "many" / "hand", runs / "many" / "hand+reversed+lost")
    assert found.verdict is Verdict.DIVERGED
    first = found.origins[0]
    assert first.op.endswith("all_reduce") or first.tensor == "first.bias"


def test_what_one_rank_takes_is_no_second_fault_where_others_clip_their_sum(runs: Path) -> None:
    found = compare_recordings(*(runs / "many" / name for name in CLIPPED))
    (origin,) = found.origins
    assert (origin.rank, origin.phase) == ("rank1", Phase.DATA)
