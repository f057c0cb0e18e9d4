"""Hypotheses that a number among the arguments is another one, found by least squares."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import torch

from lockstep.core.finding import Instead
from lockstep.replay.explanation.hypothesis import Prediction, norm_of
from lockstep.replay.explanation.other_settings import Path, leaves, told, with_value
from lockstep.replay.explanation.subject import Subject
from lockstep.replay.rebuild import Rebuilt

_ROUNDS = 8
"""Gauss-Newton steps: with one unknown and a smooth operator each doubles the digits."""

_PROBE = 1e-4
"""Relative step of the difference quotient: the square root of the roundoff of single precision, a little less than
best in double precision, and safe where an operator has kinks."""


def fitted(subject: Subject) -> Iterator[Prediction]:
    """Each number among the arguments, one at a time."""
    if subject.rebuilt is None or not bool(subject.counted.any()):
        return
    for path, value, built in _numbers(subject):
        found = _fit(subject, partial(_made, subject, built, path), value)
        if found is not None:
            number, made = found
            words = f"the same operator with {told(path)}={number:.5g} instead of {value:.5g}"
            yield Prediction(Instead.SETTING, words, made, fitted=1)


def _numbers(subject: Subject) -> Iterator[tuple[Path, float, Rebuilt]]:
    built = subject.rebuilt
    assert built is not None
    for path, value in leaves(built):
        if isinstance(value, float) and math.isfinite(value) and value != 0.0:
            yield path, value, built
    if built.op.endswith("scaled_dot_product_attention") and built.kwargs.get("scale") is None:
        # Its default, 1 / sqrt(channels); see torch.nn.functional.scaled_dot_product_attention.
        query = next(iter(built.inputs.values()), None)
        if query is not None and query.shape and query.shape[-1] > 0:
            scale = query.shape[-1] ** -0.5
            yield (
                ("kwargs", "scale"),
                scale,
                replace(built, kwargs={**built.kwargs, "scale": scale}),
            )


def _made(subject: Subject, built: Rebuilt, path: Path, number: float) -> torch.Tensor | None:
    return subject.again(rebuilt=with_value(built, path, number))


def _fit(
    subject: Subject, made: Callable[[float], torch.Tensor | None], start: float
) -> tuple[float, torch.Tensor] | None:
    """The number of least squares from a start, with what the operator gives for it; None where it goes astray."""
    number, best = start, made(start)
    counted, actual = subject.counted, subject.actual
    if best is None or best.shape != actual.shape:
        return None
    for _ in range(_ROUNDS):
        probe = made(number * (1 + _PROBE))
        if probe is None:
            return None
        slope = ((probe - best) / (number * _PROBE))[counted]
        left = (actual - best)[counted]
        size = float(slope @ slope)
        step = float(slope @ left) / size if size > 0 else math.nan
        if not math.isfinite(step) or abs(step) > 100 * abs(start):
            return None
        following = made(number + step) if number + step != 0 else None
        if following is None:
            return None
        gone = norm_of(actual - following, counted)
        if gone >= norm_of(actual - best, counted):
            break
        number, best = number + step, following
    return (number, best) if number != start else None
