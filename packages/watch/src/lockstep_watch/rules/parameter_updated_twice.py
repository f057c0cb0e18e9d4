"""Parameters that two optimizers update from one gradient."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from lockstep_watch.observed import Hit, ObservedStep, Update


def parameter_updated_twice(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """A parameter is updated twice in a step, both times from the same gradient.

    Formula: two updates of one parameter in a step took a gradient that is not zero and the same to the last bit.

    Usual cause: a layer that is in two optimizers, a tied weight under two names, `optimizer.step()` written twice.

    Cure: give each parameter to one optimizer; remove your second call.

    Source: PyTorch's documentation of torch.optim, which refuses a parameter in two groups of one optimizer.
    """
    by_name: dict[str, list[Update]] = defaultdict(list)
    for update in step.updates:
        by_name[update.name].append(update)
    for name, updates in by_name.items():
        taken = [one.gradient.content.id for one in updates if one.gradient and one.has_gradient]
        again = len(taken) - len(set(taken))
        if step.memory.in_a_row("updated twice", name, again > 0) >= steps:
            words = f"{name} is updated {again + 1} times in a step from one gradient"
            yield step.hit(name, words, value=float(again + 1), limit=1.0, call=updates[-1].call)
