"""Weights that something else than the optimizer has put in place."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.wings.watch.observed import Hit, ObservedStep

_AFTER = ("weights-replaced", "behind the update")
_QUIET = ("weights-replaced", "steps in which nothing else changed them")


def weights_replaced(step: ObservedStep, *, steps: int = 5) -> Iterator[Hit]:
    """All weights are others at the start of a step than the optimizer left them, and were not before.

    Formula: the digest of every parameter that is updated differs from the one after its update in the watched step
    right before, after so many watched steps in which none did. It is a note, as a restored checkpoint may be meant.

    Usual cause: averaged weights (EMA, SWA) that were swapped in for an evaluation and not swapped back, a checkpoint
    that was loaded, weights that a hook clips.

    Cure: look at the code that you run between the two steps.

    Source: Lockstep's.
    """
    facts = step.memory.facts
    number, after = facts.get(_AFTER, (-2, {}))
    held = {one.name: one.before.digest for one in step.updates if one.before and one.before.digest}
    facts[_AFTER] = (
        step.number,
        {one.name: one.after.digest for one in step.updates if one.after and one.after.digest},
    )
    if number != step.number - 1:
        return
    known = [name for name in held if name in after]
    other = [name for name in known if held[name] != after[name]]
    quiet = facts.get(_QUIET, 0)
    facts[_QUIET] = 0 if other else quiet + bool(known)
    if known and len(other) == len(known) and quiet >= steps:
        words = f"all {len(known)} parameters were changed between step {number} and this one, not by an optimizer"
        yield step.hit(f"weights before step {step.number}", words, is_note=True)
