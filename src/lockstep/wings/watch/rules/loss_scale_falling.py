"""A gradient scaler that finds no factor."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.wings.watch.observed import Hit, ObservedStep


def loss_scale_falling(
    step: ObservedStep, *, falls: int = 4, window: int = 30, least: float = 1.0
) -> Iterator[Hit]:
    """A gradient scaler's factor falls again and again, or to 1.

    Formula: it has fallen in `falls` of the last `window` watched steps, not counted those before the first step that
    was not skipped; or it is at most `least` and was above. Skips at the start are how a scaler finds its factor, and
    one now and then is how it tries a larger one.

    Usual cause: activations or gradients that overflow float16 whatever the factor, NaN in the batch, a learning rate
    that has thrown the weights off.

    Cure: `lockstep overflow` names the operator; compute it in float32, clip gradients, use bfloat16.

    Source: Micikevicius et al., Mixed Precision Training (ICLR 2018), section 3.2; the limits are Lockstep's.
    """
    scale, memory = step.loss_scale, step.memory
    if scale is None:
        return
    before = memory.before("loss scale")
    fell = bool(before) and scale < before[-1] and bool(memory.facts.get(_FOUND))
    memory.remember("loss scale", scale)
    memory.remember("loss scale falls", float(fell))
    if not step.is_skipped:
        memory.facts[_FOUND] = True
    count = int(sum(memory.before("loss scale falls")[-window:]))
    if scale <= least < max(memory.before("loss scale")):
        words = f"the loss scale has fallen to {scale:g}"
        yield step.hit("loss scale", words, value=scale, limit=least)
    elif count >= falls:
        words = f"the loss scale has fallen {count} times in {window} watched steps, to {scale:g}"
        yield step.hit("loss scale", words, value=scale, limit=float(falls))


_FOUND = ("loss-scale-falling", "a factor was found")
