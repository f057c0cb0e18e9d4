"""Parameters that an optimizer holds and that no gradient reaches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Set

from lockstep_watch.observed import Hit, ObservedStep


def parameter_without_gradient(step: ObservedStep, *, steps: int = 10) -> Iterator[Hit]:
    """An optimizer holds a parameter that wants a gradient and gets none.

    Formula: an optimizer that steps holds it, `requires_grad` is set, and there is no gradient. It is a note for
    one of several with names that differ in a number alone, if some got a gradient (a router may pass it by), and
    for parameters without a known name.

    Usual cause: a `detach()`, `no_grad` or `.data` in the way, a layer that is made and not called, a module that was
    replaced after the optimizer was made.

    Cure: take the detour out, leave the layer out of the optimizer, or freeze it by `requires_grad_(False)`.

    Source: MindInsight's method for accuracy problems ("weights wrongly frozen").
    """
    taken = {one.name for one in step.updates if one.gradient is not None}
    reached = taken | set(step.gradients)
    if step.is_skipped or not reached:
        return
    changing = _changing(step, reached)
    for name in sorted(step.held_parameters):
        lacks = name not in reached and step.manifest.trainable.get(name, False)
        if step.memory.in_a_row("no gradient", name, lacks) >= steps:
            words = f"{name} is held by the optimizer and gets no gradient"
            yield step.hit(name, words, is_note=_is_routed(step, name, changing))
    nameless = [one for one in step.held_parameters - reached if _NAMELESS.search(one)]
    if step.memory.in_a_row("no gradient, no name", "", bool(nameless)) >= steps:
        words = (
            f"{len(nameless)} of the {len(step.held_parameters)} parameters that the optimizer holds get no gradient,"
            " and no module that holds them is called where gradients are taken"
        )
        yield step.hit("parameters without a name", words, is_note=True)


_SEEN = ("parameter-without-gradient", "names by whether they got a gradient")
_NAMELESS = re.compile(r"param_groups\[\d+\]\.params\[\d+\]$")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def _changing(step: ObservedStep, reached: Set[str]) -> Set[str]:
    """Parameters that got a gradient in some watched steps and not in others."""
    seen: tuple[set[str], set[str]] = step.memory.facts.setdefault(_SEEN, (set(), set()))
    seen[0].update(step.held_parameters & reached)
    seen[1].update(step.held_parameters - reached)
    return seen[0] & seen[1]


def _is_routed(step: ObservedStep, name: str, changing: Set[str]) -> bool:
    """Whether others whose names differ in one number alone are called in some steps and not in others."""
    patterns = [
        re.compile(rf"{re.escape(name[: one.start()])}\d+{re.escape(name[one.end() :])}")
        for one in _NUMBER.finditer(name)
    ]
    return any(one != name and pattern.fullmatch(one) for pattern in patterns for one in changing)
