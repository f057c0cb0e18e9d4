"""How far the attributions of two models are apart, input by input and layer by layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lockstep_deploy.explain.attributing import Explained, Floats

_TOP = 0.1

ROUNDING = 1e-4
"""Relative L2 distance up to which an output counts as the same: some thousand roundings of single precision."""

OUTPUT = "output"
"""`Apart.how` of the output of a layer."""


@dataclass(frozen=True, slots=True)
class Apart:
    """Two attributions of one thing.

    what, how: Which input or layer, and by which method.
    cosine, rel_l2: Their cosine similarity, and the L2 norm of the difference relative to the reference's. NaN where
        one is zero.
    shared: Which share of the reference's largest tenth is among the candidate's, 0 to 1.
    """

    what: str
    how: str
    cosine: float
    rel_l2: float
    shared: float


def apart(reference: Explained, candidate: Explained) -> tuple[list[Apart], list[str]]:
    """Compare two models' outputs, then what they look at; returns the numbers, and what could not be compared.

    The first layer whose output differs stands in front. What could not be compared is a sentence each.
    """
    found = [
        _measured(name, OUTPUT, ours.astype(np.float64), candidate.outputs[name].astype(np.float64))
        for name, ours in reference.outputs.items()
        if name in candidate.outputs and candidate.outputs[name].shape == ours.shape
    ]
    if (first := first_that_differs(found)) is not None:
        found = [first, *(one for one in found if one is not first)]
    by_outputs = {one.what for one in found}
    found += [*_inputs(reference, candidate)]
    found += [
        _measured(name, "gradient x output", ours, candidate.layers[name])
        for name, ours in reference.layers.items()
        if name in candidate.layers and candidate.layers[name].shape == ours.shape
    ]
    compared = {one.what for one in found}
    sides = (reference, candidate)
    lone = [name for one in sides for name in one.layers if name not in compared]
    lone += [name for one in sides for name in one.outputs if name not in by_outputs]
    left = [
        f"{name}: only one of the two models has this layer, or its shape differs"
        for name in dict.fromkeys(lone)
    ]
    return found, left


def first_that_differs(found: Sequence[Apart]) -> Apart | None:
    """Return the first layer, in the order in which they run, whose output is further off than rounding."""
    outputs = (one for one in found if one.how == OUTPUT)
    return next((one for one in outputs if not one.rel_l2 <= ROUNDING), None)


def _inputs(reference: Explained, candidate: Explained) -> Iterator[Apart]:
    for ours, theirs in zip(reference.parts, candidate.parts, strict=True):
        for how, values in ours.values.items():
            yield _measured(f"input {ours.name}", how.value, values, theirs.values[how])


def _measured(what: str, how: str, ours: Floats, theirs: Floats) -> Apart:
    ours, theirs = ours.ravel(), theirs.ravel()
    size, other = float(np.linalg.norm(ours)), float(np.linalg.norm(theirs))
    nothing = float("nan")
    cosine = float(ours @ theirs) / (size * other) if size and other else nothing
    rel_l2 = float(np.linalg.norm(theirs - ours)) / size if size else nothing
    count = max(1, round(_TOP * len(ours)))
    tops = (set(np.argsort(-np.abs(one), kind="stable")[:count].tolist()) for one in (ours, theirs))
    mine, others = tops
    return Apart(what, how, cosine, rel_l2, len(mine & others) / count)
