"""Gradients that are too small to train by."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep, rms_of


def vanishing_gradient(step: ObservedStep, *, limit: float = 1e-9, steps: int = 3) -> Iterator[Hit]:
    """A weight's gradient is next to nothing, and not zero.

    Formula: `0 < rms(g) < limit`, for parameters of two axes or more, without a scaler's factor, while the loss is
    above a thousandth of its first value.

    Usual cause: saturated activations, a deep net without normalisation or residual paths, weights that start too
    small, a loss that is divided too often.

    Cure: another initialisation, normalisation, residual connections; in fp16 a larger loss scale.

    Source: MindInsight's debugger, watchpoint "gradient vanishing" (mean magnitude below 1e-9).
    """
    learns = not step.has_learned
    for update in step.updates:
        call, record = step.gradients.get(update.name, (None, None))
        if record is None or not update.is_weight:
            continue
        value = rms_of(record)
        small = value is not None and 0.0 < value / step.gradient_scale < limit and learns
        if value is not None and step.memory.in_a_row("vanishing", update.name, small) >= steps:
            value /= step.gradient_scale
            words = f"the gradient of {update.name} has a root mean square of {value:.2g}, below {limit:g}"
            yield step.hit(update.name, words, value=value, limit=limit, call=call)
