"""Gradients of which clipping leaves next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median

from lockstep.terminal import times
from lockstep_watch.observed import Hit, ObservedStep, norm_of


def gradient_clipped_away(
    step: ObservedStep, *, limit: float = 1e-4, steps: int = 10
) -> Iterator[Hit]:
    """The gradients that an optimizer takes are next to nothing of those that backward left.

    Formula: the median over parameters of `|g taken| / |g left| < limit`, without a scaler's factor.

    Usual cause: a clipping norm that is wrong by orders of magnitude, gradients that are divided twice, or explode.

    Cure: compare the norm that you clip to with the gradient norm that `lockstep watch` prints.

    Source: Pascanu et al., On the difficulty of training recurrent neural networks (ICML 2013), section 3.2: the
    norm to clip to is half to ten times an average one.
    """
    ratios = []
    for update in step.updates:
        _, left = step.gradients.get(update.name, (None, None))
        before = None if left is None else norm_of(left)
        taken = None if update.gradient is None else norm_of(update.gradient)
        if before and taken is not None:
            ratios.append(taken / (before / step.gradient_scale))
    if not ratios or step.is_skipped:
        return
    value = median(ratios)
    if step.memory.in_a_row("clipped away", "", value < limit) >= steps:
        words = f"the optimizer takes {times(value)} of the gradients that backward left"
        yield step.hit("gradients", words, value=value, limit=limit)
