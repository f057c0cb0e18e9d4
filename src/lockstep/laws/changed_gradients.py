"""Law C for gradients: what arrives at a parameter is what the one call that takes it has sent."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.laws import Breach, Law, Quantity
from lockstep.core.records import TensorRecord
from lockstep.core.sketch import distance as distance_of_sketches
from lockstep.laws.own_numbers import OwnNumbers
from lockstep.laws.step_sides import Side

ROUNDINGS = 4.0
"""Unit roundoffs up to which two gradients are one: zeros of either sign differ in their bits alone."""


def changed_on_its_way(left: Side, right: Side) -> Iterator[Breach]:
    """Gradients that one run changes on their way to a parameter, and the other does not.

    Where both change it, law K holds each against its own program.
    """
    ours, theirs = dict(_changes(left)), dict(_changes(right))
    for side, own, other in ((left, ours, theirs), (right, theirs, ours)):
        for name, apart in own.items():
            if apart and other.get(name) == 0.0:
                words = (
                    f"the gradient of {name} is changed in the {side.run} on its way from the call that sends it to the"
                    f" parameter, rel {apart:.2g}, by a hook, say; the other run does not change it"
                )
                limit = ROUNDINGS * unit_roundoff("float32")
                yield Breach(
                    Law.CONTINUITY, Quantity.GRADIENT, side.run, name, apart, limit, words=words
                )


def _changes(side: Side) -> Iterator[tuple[str, float]]:
    """By the reference's name of a parameter, how far what arrived is from what was sent; 0 within roundings."""
    for name, (sent, arrived) in side.program.sent.items():
        apart = _apart(side.numbers, sent, arrived)
        if apart is not None:
            yield side.renamed(name), apart


def _apart(numbers: OwnNumbers, sent: TensorRecord, arrived: TensorRecord) -> float | None:
    """Relative distance of two gradients; None where it is not known."""
    if sent.digest is not None and sent.digest == arrived.digest:
        return 0.0
    one, two = numbers.finite_sketch(sent), numbers.finite_sketch(arrived)
    known = sent.statistics, arrived.statistics
    if one is None or two is None or None in known:
        return None
    norm = max(each.norm for each in known if each is not None)
    unit = max(unit_roundoff(sent.dtype), unit_roundoff(arrived.dtype))
    apart = distance_of_sketches(one, two) / norm if norm > 0 else 0.0
    return apart if apart > ROUNDINGS * unit else 0.0
