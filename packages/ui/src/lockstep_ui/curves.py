"""Any number of several runs over their steps, and where two of them part in it."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.recordings import losses_of, open_recording, scalars_of, tensor_series_of
from lockstep_ui.runs import Run

MOST_RUNS = 8
"""Runs on one axis at a time."""

MOST_POINTS = 20_000
"""Steps of one curve that are sent; of more, some that are spread evenly, the first and the last among them."""

_MOST_KEPT = 32

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Curve:
    """One number of a rank of a run over steps, the last one of each step; `steps` ascend."""

    name: str
    rank: str
    steps: Integers
    values: Floats


@dataclass(frozen=True, slots=True)
class Parting:
    """Where two curves part.

    shared: How many steps both have.
    first: The first one of them at which the two numbers are not the same bit by bit; None where all are.
    steps, difference: The shared steps, and candidate less reference at each; NaN where one of them is no finite
        number.
    """

    shared: int
    first: int | None
    steps: Integers
    difference: Floats


class Curves:
    """Reads the curves of runs, and reads each again only when its recording has changed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: OrderedDict[tuple[str, str], list[Curve]] = OrderedDict()

    def of(self, run: Run) -> list[Curve]:
        """Every curve of a run: losses, learning rates and what else changes of its settings, norms.

        Raises RecordingError if it cannot be read.
        """
        key = run.key, run.stamp
        with self._lock:
            if key not in self._known:
                self._known[key] = _read(run)
                while len(self._known) > _MOST_KEPT:
                    self._known.popitem(last=False)
            self._known.move_to_end(key)
            return self._known[key]


def _read(run: Run) -> list[Curve]:
    recording = open_recording(run.path)
    tensors, _ = tensor_series_of(recording)
    found: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for series in (*losses_of(recording), *scalars_of(recording, tensors)):
        held = found[series.quantity, series.rank]
        held.update(zip(series.steps.tolist(), series.values.tolist(), strict=True))
    for tensor in tensors:
        held = found[f"norm of {tensor.what} {tensor.name}", tensor.rank]
        held.update(zip(tensor.steps.tolist(), tensor.norm.tolist(), strict=True))
    return [
        Curve(name, rank, np.array(sorted(held), np.int32), np.array([held[one] for one in sorted(held)]))
        for (name, rank), held in found.items()
    ]  # fmt: skip


def names_in(curves: Sequence[Sequence[Curve]]) -> list[str]:
    """Return the curves that some runs have, in order; those that all have come first."""
    of_runs = [dict.fromkeys(curve.name for curve in of_run) for of_run in curves]
    every = list(dict.fromkeys(name for names in of_runs for name in names))
    shared = [name for name in every if all(name in names for names in of_runs)]
    return [*shared, *(name for name in every if name not in set(shared))]


def parting(reference: Curve, candidate: Curve) -> Parting:
    """Where two curves part, over the steps that both have.

    Examples
    --------
    >>> steps = np.arange(3, dtype=np.int32)
    >>> one, other = (Curve("loss", "rank0", steps, np.array(v)) for v in ([3.0, 2.0, 1.0], [3.0, 2.5, 1.0]))
    >>> parting(one, other).first
    1
    """
    steps, left, right = np.intersect1d(
        reference.steps, candidate.steps, assume_unique=True, return_indices=True
    )
    one, other = reference.values[left], candidate.values[right]
    with np.errstate(invalid="ignore"):
        difference = other - one
    apart = np.flatnonzero((one != other) & ~(np.isnan(one) & np.isnan(other)))
    first = int(steps[apart[0]]) if len(apart) else None
    finite = np.isfinite(one) & np.isfinite(other)
    return Parting(len(steps), first, steps, np.where(finite, difference, np.nan))


def curves_json(
    runs: Sequence[Run], curves: Sequence[Sequence[Curve]], name: str
) -> dict[str, Any]:
    """One number of some runs, and where each of the others parts from the first one of them."""
    lines, partings = [], []
    for run, of_run in zip(runs, curves, strict=True):
        for curve in of_run:
            if curve.name == name:
                lines.append(
                    {
                        "run": run.key,
                        "name": run.name,
                        "rank": curve.rank,
                        **_points(curve.steps, curve.values),
                    }
                )
    of_reference = {curve.rank: curve for curve in curves[0] if curve.name == name}
    for run, of_run in zip(runs[1:], curves[1:], strict=True):
        for curve in of_run:
            if curve.name == name and curve.rank in of_reference:
                found = parting(of_reference[curve.rank], curve)
                partings.append(
                    {
                        "run": run.key,
                        "name": run.name,
                        "rank": curve.rank,
                        "shared": found.shared,
                        "first": found.first,
                        **_points(found.steps, found.difference),
                    }
                )
    return {"name": name, "lines": lines, "partings": partings}  # fmt: skip


def _points(steps: Integers, values: Floats) -> dict[str, list[Any]]:
    if len(steps) > MOST_POINTS:
        places = np.unique(np.linspace(0, len(steps) - 1, MOST_POINTS).round().astype(int))
        steps, values = steps[places], values[places]
    return {"steps": steps.tolist(), "values": [plain_number(one) for one in values.tolist()]}


def plain_number(value: float) -> float | str | None:
    """As JSON has it: None for what is not known, a word for what is infinite."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else ("infinite" if value > 0 else "-infinite")
