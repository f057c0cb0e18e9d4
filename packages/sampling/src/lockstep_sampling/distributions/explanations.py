"""Rules by which a sampler's probabilities follow from the trainer's, each tried by computing it at every position.

A rule explains a difference if it leaves no more than rounding at any position. It is not told by its name, and a rule
that the probabilities do not prove is not said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from lockstep_sampling.distributions.positions import (
    Doubles,
    Position,
    Rounding,
    by_sequence,
    largest,
    normalised,
)

_FEWEST = 2
"""Positions, or scores at one: a rule with one free number fits a single one always."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """A rule that turns the reference's probabilities into the candidate's.

    said: The rule, for a person.
    kind: In one word, for programs: shift, masked, top-k, top-p, temperature.
    rest: The largest difference of a log-probability that it leaves.
    """

    said: str
    kind: str
    rest: float


def explanation_of(positions: Sequence[Position], rounding: Rounding) -> Explanation | None:
    """Return the first rule that explains all positions; None where none does."""
    for rule in (_shift, _cut, _temperature, _cut_and_temperature):
        found = rule(positions, rounding)
        if found is not None:
            return found
    return None


# -- a shift of positions


def _shift(positions: Sequence[Position], rounding: Rounding) -> Explanation | None:
    for by, said in ((1, "the next"), (-1, "the previous")):
        rest = _shifted(positions, by, rounding)
        if rest is not None:
            return Explanation(
                f"shifted by one: each position has the probabilities of {said} one of the reference", "shift", rest
            )  # fmt: skip
    return None


def _shifted(positions: Sequence[Position], by: int, rounding: Rounding) -> float | None:
    """What is left where the candidate's positions are the reference's, so many further; None beyond rounding."""
    rests = []
    for sequence in by_sequence(positions):
        at = {one.place: one for one in sequence}
        for one in sequence:
            other = at.get(one.place + by)
            if other is None or not _are_of_one_kind(one, other):
                continue
            moved = replace(one, reference=other.reference)
            if moved.apart > rounding.allowed(moved):
                return None
            rests.append(moved.apart)
    return max(rests) if len(rests) >= _FEWEST and 2 * len(rests) >= len(positions) else None


def _are_of_one_kind(one: Position, other: Position) -> bool:
    """Whether they are of the same tokens, or each of its own token alone."""
    return np.array_equal(other.ids, one.ids) or one.ids.size == other.ids.size == 1


# -- tokens that cannot be drawn, the rest renormalised


def _cut(positions: Sequence[Position], rounding: Rounding) -> Explanation | None:
    return _cut_at(positions, rounding, 1.0)


def _cut_at(positions: Sequence[Position], rounding: Rounding, slope: float) -> Explanation | None:
    if not any(one.masked.any() and one.is_whole for one in positions):
        return None
    rest = _rest(positions, rounding, slope)
    if rest is None:
        return None
    told = _masked_ids(positions) or _top(positions, rounding)
    if told is None:
        return None
    said, kind = told
    mass = [float(np.exp(normalised(one.reference)[one.masked]).sum()) for one in positions]
    return Explanation(f"{said}, renormalised: up to {max(mass):.2g} of the mass is missing", kind, rest)  # fmt: skip


def _masked_ids(positions: Sequence[Position]) -> tuple[str, str] | None:
    """The same tokens at all positions, of two positions or more."""
    masked = {tuple(one.ids[one.masked].tolist()) for one in positions}
    if len(masked) != 1 or len(positions) < _FEWEST:
        return None
    ids = masked.pop()
    shown = ", ".join(map(str, ids[:4])) + (f" and {len(ids) - 4} more" if len(ids) > 4 else "")
    return f"token {shown} masked at all positions", "masked"


def _top(positions: Sequence[Position], rounding: Rounding) -> tuple[str, str] | None:
    """The most likely tokens: as many at each position, or as many as have a share of the mass."""
    for one in positions:
        worst = one.reference[one.kept].min(initial=np.inf)
        if one.reference[one.masked].max(initial=-np.inf) > worst + rounding.allowed(one):
            return None
    counts = {int(one.kept.sum()) for one in positions}
    if len(counts) == 1 and len(positions) >= _FEWEST:
        return f"top-k of {counts.pop()}", "top-k"
    least, most = 0.0, 1.0
    for one in positions:
        kept = np.exp(normalised(one.reference)[one.kept])
        least = max(least, float(kept.sum() - kept.min(initial=1.0)))
        most = min(most, float(kept.sum()))
    # the fewest tokens whose mass reaches p: each position gives bounds of p
    return (f"top-p between {least:.3g} and {most:.3g}", "top-p") if least <= most else None


# -- one temperature


def _temperature(positions: Sequence[Position], rounding: Rounding) -> Explanation | None:
    told = sum(max(0, int(one.kept.sum()) - 1) for one in positions)
    if told < _FEWEST or any(one.masked.any() for one in positions):
        return None
    slope = _slope(positions)
    rest = None if slope is None else _rest(positions, rounding, slope)
    if slope is None or rest is None:
        return None
    return Explanation(f"temperature {1 / slope:.3g} at all positions", "temperature", rest)


def _cut_and_temperature(positions: Sequence[Position], rounding: Rounding) -> Explanation | None:
    slope = _slope(positions)
    found = None if slope is None else _cut_at(positions, rounding, slope)
    if found is None or slope is None:
        return None
    return Explanation(f"temperature {1 / slope:.3g}, and {found.said}", found.kind, found.rest)


def _slope(positions: Sequence[Position]) -> float | None:
    """The inverse of the temperature, by least squares over all positions; None where nothing tells it."""
    above = below = 0.0
    for one in positions:
        ours, theirs = one.reference[one.kept], one.candidate[one.kept]
        if ours.size < _FEWEST:
            continue
        centred = ours - ours.mean()
        above += float(centred @ (theirs - theirs.mean()))
        below += float(centred @ centred)
    return above / below if below > 0 and above > 0 else None


def _rest(positions: Sequence[Position], rounding: Rounding, slope: float) -> float | None:
    """What a temperature over the tokens that can be drawn leaves; None beyond rounding."""
    rests = []
    for one in positions:
        if np.isfinite(one.candidate[~np.isfinite(one.reference)]).any():
            return None
        predicted, candidate = _predicted(one, slope)
        if predicted.size < _FEWEST and not one.is_whole:
            if one.apart > rounding.allowed(one):
                return None
            continue
        rest = largest(predicted, candidate)
        if rest > rounding.allowed(one, slope * one.reference[one.kept]):
            return None
        rests.append(rest)
    return max(rests) if rests else None


def _predicted(position: Position, slope: float) -> tuple[Doubles, Doubles]:
    """The log-probabilities at a temperature, and the candidate's; without their sum where that is not known."""
    ours = slope * position.reference[position.kept]
    theirs = position.candidate[position.kept]
    if position.is_whole:
        return normalised(ours), theirs
    return _centred(ours), _centred(theirs)


def _centred(values: Doubles) -> Doubles:
    return values - values.mean() if values.size else values


__all__ = ["Explanation", "explanation_of"]
