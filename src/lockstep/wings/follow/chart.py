"""How far apart each step is, as a chart in text."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lockstep.comparison import SteppedTo
from lockstep.core.text import printable

_MOST_LINES = 40
_WIDTH = 30
_MOST_BINADES = 30.0
"""Beyond so many powers of two a bar is full."""


def step_chart(steps: Sequence[SteppedTo]) -> str:
    """A line a step, thinned to forty, with a bar on a logarithmic scale: | is where what may be ends.

    The bar is the largest difference in units of what is tolerated there, floors and all that came in before; beside
    it stands how many floors apart the losses are.
    """
    if not steps:
        return "no step was compared as it came"
    every = max(1, math.ceil(len(steps) / _MOST_LINES))
    shown = [one for at, one in enumerate(steps) if at % every == 0 or one.origins]
    head = "step  furthest, in units of what may be" + (f" (each {every}-th)" if every > 1 else "")
    return "\n".join([head, *map(_line, shown)])


def loss_chart(floors: Mapping[int, float]) -> str:
    """How many floors apart the losses of each step are; of more than forty steps, the furthest of each stretch."""
    if not any(floors.values()):
        return f"the losses of {len(floors)} steps are equal to the last bit"
    steps = sorted(floors)
    each = max(1, math.ceil(len(steps) / _MOST_LINES))
    stretches = (steps[at : at + each] for at in range(0, len(steps), each))
    furthest = [max(stretch, key=lambda step: floors[step]) for stretch in stretches]
    head = "step  losses, in floors" + (f" (the furthest of each {each} steps)" if each > 1 else "")
    lines = (f"{step:>4}  {_bar(floors[step])} {floors[step]:.3g}" for step in furthest)
    return "\n".join([head, *lines])


def _line(step: SteppedTo) -> str:
    margin = 0.0 if step.furthest is None else step.furthest.margin
    site = "" if step.furthest is None or margin == 0 else f"  {step.furthest.pair.present.site}"
    loss = "unknown" if math.isnan(step.loss) else f"{step.loss:.3g} floors"
    return printable(f"{step.number:>4}  {_bar(margin)} {margin:<9.3g} loss {loss}{site}")


def _bar(margin: float) -> str:
    """Half of the bar is for what may be, the other for what is beyond."""
    half = _WIDTH // 2
    if not margin > 0:
        length = 0
    else:
        part = (
            min(1.0, max(-1.0, math.log2(margin) / _MOST_BINADES)) if math.isfinite(margin) else 1.0
        )
        length = max(1, round(half * (1 + part)))
    cells = ["#" if at < length else " " for at in range(_WIDTH)]
    cells.insert(half, "|")
    return "".join(cells)
