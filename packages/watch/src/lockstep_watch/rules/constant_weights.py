"""Weights that start with one and the same number."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import CallKind, Family, Role, family_of
from lockstep_watch.observed import Hit, ObservedStep


def constant_weights(step: ObservedStep) -> Iterator[Hit]:
    """All elements of a weight start with the same number, so that all its units learn the same.

    Formula: `minimum = maximum != 0` before the first step, of a trained parameter with two axes of two or more
    that an operator multiplies with in sums (linear, convolution, matmul).

    Usual cause: `constant_` or `ones_` on a weight, an initialisation that was replaced by a placeholder, a checkpoint
    that was not loaded.

    Cure: draw it at random (Glorot, He), load your checkpoint before you make the optimizer.

    Source: MindInsight's debugger, watchpoint "initial weight".
    """
    started = [one for call in step.calls_of(CallKind.INIT) for one in call.with_role(Role.PARAM)]
    summed = {
        record.content.id
        for call in step.operators
        if family_of(call.site.op) is Family.BILINEAR
        for record in call.with_role(Role.INPUT)
    }
    for record in started:
        numbers = record.statistics
        wide = sum(extent >= 2 for extent in record.shape) >= 2
        if numbers is None or not wide or numbers.minimum != numbers.maximum or not numbers.maximum:
            continue
        if record.content.id in summed and step.manifest.trainable.get(record.name, True):
            words = f"{record.name} starts with {numbers.maximum:g} in all {record.content.numel} elements"
            yield step.hit(record.name, words, value=numbers.maximum)
