"""Parameters that an optimizer holds and that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.wings.watch.observed import Hit, ObservedStep


def parameter_without_gradient(step: ObservedStep, *, steps: int = 10) -> Iterator[Hit]:
    """An optimizer holds a parameter that wants a gradient and gets none.

    Formula: held by an optimizer that steps, `requires_grad` is set, and there is no gradient in so many watched steps
    in a row. What is frozen by `requires_grad_(False)` is frozen on purpose and is not told, though an optimizer may
    hold it.

    Usual cause: a `detach()`, `no_grad` or `.data` in the way, a layer that is made and not called, a module that was
    replaced behind the optimizer's back.

    Cure: take the detour out, leave the layer out of the optimizer, or freeze it by `requires_grad_(False)`.

    Source: MindInsight's method for accuracy problems ("weights wrongly frozen"); the number of steps is Lockstep's.
    """
    taken = {one.name for one in step.updates if one.gradient is not None}
    reached = taken | set(step.gradients)
    if step.is_skipped or not reached:
        return
    for name in sorted(step.held_parameters):
        lacks = name not in reached and step.manifest.trainable.get(name, False)
        if step.memory.in_a_row("no gradient", name, lacks) >= steps:
            words = f"{name} is held by the optimizer and gets no gradient"
            yield step.hit(name, words)
