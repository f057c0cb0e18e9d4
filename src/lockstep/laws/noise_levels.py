"""Whether two programs round alike: one function of two programs may be computed by one of them in fewer bits."""

from __future__ import annotations

from lockstep.core.dtypes import unit_roundoff
from lockstep.laws.distances import distance, size
from lockstep.laws.own_runs import CANCELS, OwnRuns
from lockstep.laws.step_sides import Side

ANOTHER_PRECISION = 64.0
"""How many times as far one program's rounding may move a gradient as the other's. Forms of one function in one
precision differ up to ten times (attention in one operator or in four, a norm written out); numbers that pass through
16 bits on the way make 2^11 to 2^16 times as much."""


NUMBERS_READ = 64.0
"""How many times as far as rounding moves the gradients of a step two programs may be apart in which Python stands for
a tensor: the number that it read is of its own run, and of one rounding."""


def noise_level(sides: tuple[Side, Side], runs: tuple[OwnRuns, OwnRuns]) -> float:
    """How far rounding moves a gradient, relative, in the median, of the program that it moves most."""
    levels = [sorted(_levels(*one).values()) for one in zip(sides, runs, strict=True)]
    return max((one[len(one) // 2] for one in levels if one), default=0.0)


def other_precision(sides: tuple[Side, Side], runs: tuple[OwnRuns, OwnRuns]) -> list[str]:
    """In words, that one program computes in another precision; empty where both round alike."""
    levels = [_levels(*one) for one in zip(sides, runs, strict=True)]
    shared = levels[0].keys() & levels[1].keys()
    further = {name: levels[1][name] / levels[0][name] for name in shared}
    for run, ratios in (
        ("candidate", further),
        ("reference", {name: 1 / one for name, one in further.items()}),
    ):
        name = max(ratios, key=lambda one: ratios[one], default="")
        if name and ratios[name] > ANOTHER_PRECISION:
            words = f"the {run} computes in another precision: its rounding moves the gradient of"
            return [f"{words} {name} {ratios[name]:.0f} times as far as the other run's"]
    return []


def _levels(side: Side, runs: OwnRuns) -> dict[str, float]:
    """Of each gradient that is more than rounding: how far rounding moves it, relative, a roundoff of float32 at least.

    That of the recorded dtype is taken at least too: a run may round twice where the other does once. The run that
    moves it least counts: in another one an element may lie on the other side of a kink by chance.
    """
    found = {}
    exact = runs.exact.run.gradients
    scale = max((size(one) for one in exact.values()), default=0.0)
    for name, truth in exact.items():
        norm, record = size(truth), side.program.gradients.get(name)
        if record is None or norm <= CANCELS * scale:
            continue
        moved = [one.run.gradients.get(name) for one in runs.draws]
        noise = min((distance(one, truth) / norm for one in moved if one is not None), default=0.0)
        found[side.renamed(name)] = max(noise, unit_roundoff(record.dtype), _SINGLE)
    return found


_SINGLE = 2.0**-24
