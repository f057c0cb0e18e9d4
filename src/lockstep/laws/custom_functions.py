"""Run a custom autograd function again whose forward and backward are recorded calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

SentBack = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor | None]]
"""Gives the gradients of the inputs, of the gradients that arrive at the results."""


def as_custom_function(
    sent_back: SentBack, results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, ...]:
    """The results as tensors that were made of the inputs, with a backward of their own.

    sent_back: Called for each backward pass that comes through the results; zeros arrive where nothing does.
    results, inputs: Of any shapes.
    """
    made: tuple[torch.Tensor, ...] = _Again.apply(sent_back, len(results), *results, *inputs)  # type: ignore[no-untyped-call]
    return made


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, sent_back: SentBack, count: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        context.sent_back, context.count = sent_back, count
        made = tuple(one.detach().clone() for one in tensors[:count])
        plain = [one for one in made if not (one.is_floating_point() or one.is_complex())]
        context.mark_non_differentiable(*plain)
        return made

    @staticmethod
    def backward(context: Any, *arrived: torch.Tensor) -> tuple[Any, ...]:
        return None, None, *[None] * context.count, *context.sent_back(arrived)
