"""What the origins of one step have in common, and what else is known about their places: said once, in words."""

from __future__ import annotations

from dataclasses import replace

from lockstep.core.finding import Kind, Origin
from lockstep.locate.origins import Origins
from lockstep.locate.regions import Regions
from lockstep.locate.step import AlignedStep
from lockstep.locate.unaligned import Unaligned

_UNTRACED = frozenset({Kind.SETUP, Kind.RANDOM})


def explain_origins(
    step: AlignedStep, origins: Origins, unaligned: Unaligned, *, first: int
) -> None:
    """Add to the reasons of a step's origins what differs around them besides numbers.

    Parameters
    ----------
    step
        The aligned step.
    origins
        Those found so far in its rank; `first` is the number of the first one of this step.
    unaligned
        Modules of other classes.
    """
    regions = Regions(step)
    for number in range(first, len(origins.found)):
        origins.found[number] = _explained(origins.found[number], regions, unaligned)


def _explained(origin: Origin, regions: Regions, unaligned: Unaligned) -> Origin:
    origin = replace(origin, library=_library(origin, regions))
    if origin.kind in _UNTRACED:
        return origin
    reasons = [origin.reason]
    region = regions.behind(origin.finding.pair)
    if region:
        reasons.append(str(region))
    other = unaligned.class_around(origin.module)
    if other is not None:
        reasons.append(str(other))
    return replace(origin, reason="; ".join(reasons))


def _library(origin: Origin, regions: Regions) -> str:
    """Line of the library that the user's line of an origin calls, or ""."""
    pair = origin.finding.pair
    for record in (pair.candidate, pair.reference):
        call = regions.call_of(record) if record is not None else None
        if call is not None and call.source == origin.source:
            return call.library
    return ""
