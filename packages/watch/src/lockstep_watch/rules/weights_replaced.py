"""Weights that something else than the optimizer has put in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from lockstep_watch.observed import Hit, ObservedStep

_AFTER = ("weights-replaced", "behind the update")
_QUIET = ("weights-replaced", "steps in which nothing else changed them")
_STARTS = (
    "weights-replaced",
    "what steps began with: the first of them, and how often it came back",
)


def weights_replaced(step: ObservedStep, *, steps: int = 5, returns: int = 3) -> Iterator[Hit]:
    """All weights are others at the start of a step than the optimizer left them, and were not before.

    Formula: the digest of every updated parameter differs from the one after its update in the step before, after
    `steps` watched steps in which none did; or all weights are, to the last bit, those of an earlier step, and have
    come back to it `returns` times. It is a note: you may mean to restore a checkpoint.

    Usual cause: averaged weights (EMA, SWA) that were not swapped back after an evaluation, a checkpoint that was
    loaded again and again, weights that a hook clips.

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
    known = [name for name in held if name in after] if number == step.number - 1 else []
    other = [name for name in known if held[name] != after[name]]
    is_replaced = bool(known) and len(other) == len(known)
    first, times = _came_back(step, held, is_replaced=is_replaced)
    if number != step.number - 1:
        return
    quiet = facts.get(_QUIET, 0)
    facts[_QUIET] = 0 if other else quiet + bool(known)
    if is_replaced and quiet >= steps:
        words = f"all {len(known)} parameters were changed between step {number} and this one, not by an optimizer"
        yield step.hit(f"weights before step {step.number}", words, is_note=True)
    if is_replaced and times >= returns:
        words = f"all {len(known)} parameters are those that step {first} began with, put back {times} times"
        yield step.hit(f"weights of step {first}", words, is_note=True)


def _came_back(
    step: ObservedStep, held: Mapping[str, str], *, is_replaced: bool
) -> tuple[int, int]:
    """Which step began with these weights first, and how often something else than an optimizer has put them back."""
    starts: dict[int, tuple[int, int]] = step.memory.facts.setdefault(_STARTS, {})
    state = hash(tuple(sorted(held.items())))
    first, times = starts.pop(state, (step.number, -1))
    starts[state] = first, times + (is_replaced or times < 0)
    if len(starts) > step.memory.length:
        del starts[next(iter(starts))]
    return starts[state]
