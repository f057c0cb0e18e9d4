"""Law K of an update of which sketches alone are known: how far it moves its parameter, and where to.

The noise of a gradient may turn many elements of an update, and excuses a distance that is as large as the update. It
does not take the update away: the sound runs with other noise each move the parameter about as far, and each against
the gradient that it took itself. So a sound update does, whatever its noise was.

With `u` the move and `g` the gradient of the same run, sketches `S` give both: `|S u|` is within 20 % of `|u|`, and
`<S u, S g> / (|S u| |S g|)` off their cosine by a standard deviation of `1 / sqrt(256)` at most (the law of
`lockstep.core.sketch`; Achlioptas, JCSS 2003).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Sketch, TensorRecord
from lockstep.core.site import Role
from lockstep.core.sketch import SKETCH_SIZE
from lockstep.laws.distances import size
from lockstep.laws.double_updates import ROUNDINGS, Updated
from lockstep.laws.own_numbers import WIDENED, OwnNumbers
from lockstep.laws.own_runs import MARGIN
from lockstep.laws.step_events import Update

_COSINE_OFF = 6.0 / math.sqrt(SKETCH_SIZE)
"""Six standard deviations of a cosine that sketches give."""


def furthest(made: Updated, draws: Sequence[Updated]) -> list[float]:
    """How far the noise of each run takes a parameter at most, as a Euclidean distance that no margin widens.

    An element is off by `MARGIN` times its noise; but noise that turns it takes it no further than the update and the
    turned one are apart.
    """
    truth = (made.after["param"] - made.before).abs()
    found = []
    for one in draws:
        off = (one.after["param"].double() - made.after["param"]).abs()
        moved = (one.after["param"].double() - made.before).abs()
        found.append(size(torch.minimum(MARGIN * off, truth + torch.maximum(truth, moved))))
    return found


def moves_otherwise(
    numbers: OwnNumbers, update: Update, rounded: Sequence[Updated], moved: Sequence[Updated]
) -> tuple[float, float] | None:
    """How far an update is off in size or direction from those of all sound runs, and what is allowed.

    None if it is as they are. Of a size, relative; of a direction, a difference of cosines.

    rounded, moved: Those of runs that round; those of all runs that a sound kernel may be as far off as. One without
        rounding counts where its gradient is no smaller than those of rounding: else it is none that a device gives.
    """
    sketches = [
        _of(numbers, update, role) for role in (Role.PARAM, Role.PARAM_AFTER, Role.PARAM_GRAD)
    ]
    before, after, gradient = sketches
    (record,) = update.call.with_role(Role.PARAM_AFTER)[:1] or (None,)
    if before is None or after is None or record is None or len(rounded) < _RUNS:
        return None
    draws = _as_large(rounded, moved)
    moves = [one.after["param"].double() - one.before for one in draws]
    sizes = list(map(size, moves))
    seen = ROUNDINGS * unit_roundoff(record.dtype) * float(np.linalg.norm(after))
    if not min(sizes) > WIDENED * seen:
        return None
    move = after - before
    own, spread = float(np.linalg.norm(move)), WIDENED * max(sizes) / min(sizes)
    if own < min(sizes) / spread or own > max(sizes) * spread:
        typical = math.sqrt(max(sizes) * min(sizes))
        return abs(own - typical) / typical, spread - 1.0
    return None if gradient is None else _turned(move, gradient, moves, draws)


def _as_large(rounded: Sequence[Updated], moved: Sequence[Updated]) -> list[Updated]:
    least = min((size(one.gradient) for one in rounded if one.gradient is not None), default=0.0)
    return [one for one in moved if one.gradient is not None and size(one.gradient) >= least]


_RUNS = 2
"""Runs with noise of which the sizes tell how far sizes differ."""


def _turned(
    moved: Sketch, gradient: Sketch, moves: Sequence[torch.Tensor], draws: Sequence[Updated]
) -> tuple[float, float] | None:
    taken = [one.gradient for one in draws]
    cosines = [
        _cosine(move.reshape(-1).numpy(), one.double().reshape(-1).numpy())
        for move, one in zip(moves, taken, strict=True)
        if one is not None
    ]
    if len(cosines) < _RUNS or not all(map(math.isfinite, cosines)):
        return None
    allowed = _COSINE_OFF + max(cosines) - min(cosines)
    own = _cosine(moved, gradient)
    off = max(min(cosines) - own, own - max(cosines))
    return (off, allowed) if off > allowed else None


def _cosine(one: Sketch, two: Sketch) -> float:
    norms = float(np.linalg.norm(one) * np.linalg.norm(two))
    return float(one @ two) / norms if norms > 0 else math.nan


def _of(numbers: OwnNumbers, update: Update, role: Role) -> Sketch | None:
    records: Sequence[TensorRecord] = update.call.with_role(role)
    return numbers.finite_sketch(records[0]) if len(records) == 1 else None
