"""A gradient scaler that finds no factor."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.recordings import first_overflow
from lockstep_watch.observed import Hit, ObservedStep


def loss_scale_falling(
    step: ObservedStep, *, falls: int = 4, window: int = 30, least: float = 1.0
) -> Iterator[Hit]:
    """A gradient scaler's factor falls again and again, or to 1.

    Formula: it has fallen in `falls` of the last `window` watched steps, from the first step that was not skipped;
    or it is at most `least` and was above. The first fall below every factor that has worked is a note. Each hit
    names the first operator that made an inf or a NaN.

    Usual cause: activations or gradients that overflow float16 whatever the factor, NaN in the batch, too large a
    learning rate.

    Cure: compute the named operator in float32, clip your gradients, or use bfloat16.

    Source: Micikevicius et al., Mixed Precision Training (ICLR 2018), section 3.2.
    """
    scale, memory, facts = step.loss_scale, step.memory, step.memory.facts
    if scale is None:
        return
    before = memory.before("loss scale")
    fell = bool(before) and scale < before[-1] and bool(facts.get(_FOUND))
    memory.remember("loss scale", scale)
    memory.remember("loss scale falls", float(fell))
    if step.is_skipped:
        facts.setdefault(_CAUSE, _cause(step))
    else:
        facts[_FOUND] = True
        facts[_WORKED] = min(scale, facts.get(_WORKED, scale))
        if int(sum(memory.before("loss scale falls")[-window:])) < falls:
            facts.pop(_CAUSE, None)
    count = int(sum(memory.before("loss scale falls")[-window:]))
    because = facts.get(_CAUSE) or ""
    if scale <= least < max(memory.before("loss scale")):
        words = f"the loss scale has fallen to {scale:g}{because}"
        yield step.hit("loss scale", words, value=scale, limit=least)
    elif count >= falls:
        words = f"the loss scale has fallen {count} times in {window} watched steps, to {scale:g}{because}"
        yield step.hit("loss scale", words, value=scale, limit=float(falls))
    elif step.is_skipped and scale <= facts.get(_WORKED, 0.0):
        words = f"a step is skipped at a loss scale of {scale:g}, which has worked before{because}"
        yield step.hit("loss scale that worked", words, value=scale, is_note=True)


def _cause(step: ObservedStep) -> str:
    source = first_overflow(step)
    if source is None:
        return ""
    at = f", {source.call.source}" if source.call.source else ""
    return f"; first {source.words} out of {source.call.site}, {source.part.value}{at}"


_FOUND = ("loss-scale-falling", "a factor was found")
_WORKED = ("loss-scale-falling", "the least factor that worked")
_CAUSE = ("loss-scale-falling", "what overflowed first")
