"""Where each site stands in the strip: lanes of steps and ranks, phases below each other, as on the page."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lockstep.report.comparison.kinds import KINDS
from lockstep.wings.report.comparison_types import Floats, Integers, Pairs

PHASES = ("init", "data", "forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class StripPlaces:
    """Sites, each with the row that matters most of it.

    lanes: What each lane is called.
    lane, place, row: Per site its lane, its place from 0 to 1, and its row.
    begins: Where each phase begins.
    width: Of one site in the fullest lane.
    """

    lanes: tuple[str, ...]
    lane: Integers
    place: Floats
    row: Integers
    begins: dict[str, float]
    width: float


def strip_places(pairs: Pairs) -> StripPlaces:
    """Lay the sites of all pairs out."""
    several = len(pairs.rank.names) > 1
    lanes: dict[tuple[int, int], int] = {}
    sites: dict[tuple[int, ...], int] = {}
    loudness = _loudness(pairs)
    lane_of: list[int] = []
    phase_of: list[int] = []
    row_of: list[int] = []
    last_of: list[int] = []
    columns = (pairs.phase.codes, pairs.module.codes, pairs.operator.codes, pairs.call)
    keys = zip(*(one.tolist() for one in columns), strict=True)
    steps = zip(pairs.step.tolist(), pairs.rank.codes.tolist(), strict=True)
    for row, (key, step) in enumerate(zip(keys, steps, strict=True)):
        lane = lanes.setdefault(step, len(lanes))
        site = sites.setdefault((lane, *key), len(sites))
        if site == len(row_of):
            lane_of.append(lane)
            phase_of.append(key[0])
            row_of.append(row)
            last_of.append(row)
        last_of[site] = row
        if loudness[row] > loudness[row_of[site]]:
            row_of[site] = row
    names = [
        f"step {step}" + (f" {pairs.rank.names[rank]}" if several else "") for step, rank in lanes
    ]
    place, begins, width = _places(np.array(lane_of), np.array(phase_of), np.array(last_of), pairs)
    return StripPlaces(
        tuple(names), np.array(lane_of, np.int32), place, np.array(row_of, np.int32), begins, width
    )


def _loudness(pairs: Pairs) -> list[tuple[int, float]]:
    """How much a row matters where several are of one site: its kind, then its distance."""
    ranks = {kind.name: kind.rank for kind in KINDS}
    kinds = [ranks[name] for name in pairs.kind.names]
    margins = np.nan_to_num(pairs.margin, nan=np.inf).tolist()
    return [
        (kinds[code], margin)
        for code, margin in zip(pairs.kind.codes.tolist(), margins, strict=True)
    ]


def _places(
    lane: Integers, phase: Integers, last: Integers, pairs: Pairs
) -> tuple[Floats, dict[str, float], float]:
    """Phases take as much room as the fullest lane needs; within one, sites stand by their last row."""
    names = sorted(pairs.phase.names, key=lambda one: PHASES.index(one) if one in PHASES else 9)
    found: dict[str, list[npt.NDArray[np.intp]]] = {}
    for name in names:
        of_phase = phase == pairs.phase.names.index(name)
        for number in np.unique(lane[of_phase]):
            at = np.flatnonzero(of_phase & (lane == number))
            found.setdefault(name, []).append(at[np.argsort(last[at])])
    most = {name: max(map(len, parts)) for name, parts in found.items()}
    gap = 0.01
    width = (1 - gap * len(most)) / max(1, sum(most.values()))
    place, begins, start = np.zeros(len(lane)), {}, 0.0
    for name, parts in found.items():
        begins[name] = start
        for at in parts:
            place[at] = start + (np.arange(len(at)) + 0.5) * width
        start += most[name] * width + gap
    return place, begins, width
