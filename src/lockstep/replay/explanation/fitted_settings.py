"""Hypotheses that a number among the arguments is another one, found by least squares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from lockstep.core.finding import Instead
from lockstep.replay.calls.rebuild import Rebuilt
from lockstep.replay.explanation.argument_names import Argument, arguments_of
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.least_squares import least_squares
from lockstep.replay.explanation.mismatch import Mismatch

_REAL = frozenset({"alpha", "beta", "threshold", "value", "min", "max", "other", "exponent"})
"""Arguments that are real numbers even where a whole one was given."""


def fitted(mismatch: Mismatch) -> Iterator[Prediction]:
    """Each number among the arguments, one at a time; one that was not given too."""
    built = mismatch.rebuilt
    if built is None or not bool(mismatch.counted.any()):
        return
    for argument in _numbers(built):
        made = partial(_made, mismatch, built, argument)
        number = least_squares(made, argument.value, mismatch.actual, mismatch.counted)
        if number is not None:
            words = f"the same operator with {argument.name}={number:.5g} instead of {argument.value:.5g}"
            yield from mismatch.predicted(
                Instead.SETTING, words, rebuilt=argument.replaced(built, number), fitted=1
            )


def _numbers(built: Rebuilt) -> Iterator[Argument]:
    for argument in arguments_of(built):
        number = argument.value
        if isinstance(number, float) and math.isfinite(number):
            yield argument
        elif isinstance(number, int) and argument.name in _REAL and type(number) is int:
            yield replace(argument, value=float(number))
    if built.op.endswith("scaled_dot_product_attention") and built.kwargs.get("scale") is None:
        # Its default, 1 / sqrt(channels); see torch.nn.functional.scaled_dot_product_attention.
        query = next(iter(built.inputs.values()), None)
        if query is not None and query.shape and query.shape[-1] > 0:
            yield Argument("scale", "scale", query.shape[-1] ** -0.5)


def _made(
    mismatch: Mismatch, built: Rebuilt, argument: Argument, number: float
) -> torch.Tensor | None:
    attempt = mismatch.attempt(rebuilt=argument.replaced(built, number))
    return None if attempt is None else attempt.values
