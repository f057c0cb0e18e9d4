"""Law S for what a script changes between two steps in both runs, as a moving average of weights does.

No recorded call changes it, so no program is run again for it. But both runs recorded what it is then. Knows no torch.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.sketch import distance

_ROUNDINGS = 4.0
"""Unit roundoffs up to which two numbers are one: those of a sum of two products, in one order or another."""

Changed = Mapping[str, tuple[TensorRecord, TensorRecord]]
"""By the reference's name: what both runs take after a change that no recorded call makes."""


def changed_otherwise(
    changed: Changed, taken: tuple[Mapping[str, TensorRecord], Mapping[str, TensorRecord]]
) -> Iterator[str]:
    """The names of those that are not the same after the change.

    What a change makes of the parameters is as far apart in two correct runs as these are: averaging, clipping and
    projecting enlarge no distance. The laws prove of the parameters that only rounding takes them apart.

    Parameters
    ----------
    taken
        What either run's step takes, by the reference's names.
    """
    reference, candidate = taken
    others = reference.keys() & candidate.keys() - changed.keys()
    apart = [_apart(reference[name], candidate[name]) for name in others]
    drift = math.hypot(*(one for one in apart if math.isfinite(one)))
    for name, (one, two) in changed.items():
        if _apart(one, two) > max(drift, _rounding(one, two)):
            yield name


def named_inputs(calls: Sequence[Call]) -> dict[str, TensorRecord]:
    """Parameters and buffers as the calls of a step first take them."""
    found: dict[str, TensorRecord] = {}
    for call in sorted(calls, key=lambda one: one.sequence):
        if call.kind is CallKind.OPERATOR:
            for record in call.with_role(Role.INPUT):
                if record.argument:
                    found.setdefault(record.name, record)
    return found


def _apart(one: TensorRecord, two: TensorRecord) -> float:
    """Euclidean distance, of sketches an estimate; infinite where it is not known."""
    if one.digest is not None and one.digest == two.digest:
        return 0.0
    left, right = one.content.sketch, two.content.sketch
    if left is None or right is None or one.shape != two.shape or not _finite((one, two)):
        return math.inf
    return distance(left, right)


def _finite(records: Collection[TensorRecord]) -> bool:
    """Whether all elements are finite: a sketch counts others as zero."""
    known = [one.statistics for one in records]
    return all(one is not None and not (one.nan_count or one.inf_count) for one in known)


def _rounding(one: TensorRecord, two: TensorRecord) -> float:
    """How far apart two roundings of one tensor may be."""
    unit = max(unit_roundoff(record.dtype) for record in (one, two))
    sketch = one.content.sketch
    return 0.0 if sketch is None else _ROUNDINGS * unit * distance(sketch, 0 * sketch)
