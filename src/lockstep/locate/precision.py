"""Uniform precision changes: a whole class of operators that computes in another precision.

A device whose every matmul rounds its inputs to fp16 has no single origin, so the class is named
with its members instead of the first of them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from lockstep.compare.bounds import floats
from lockstep.compare.judge import Judgement, Operation
from lockstep.compare.measured import Measured
from lockstep.compare.operators import Family, canonical_name, family_of
from lockstep.core.dtypes import is_floating
from lockstep.core.finding import Kind, Origin, UniformChange
from lockstep.core.site import CallKind, Role, Site
from lockstep.locate.step import Aligned

_LEAST_MEMBERS = 3
"""Fewer sites than this are single faults."""

_COVERED = 0.8
"""Share of a family's sites that must show the same rounding: a tensor of few elements, or one that
happens to hold round numbers, may not show it."""

_ALIKE = 4.0
"""How many times the median excess of a class a site of the same family may be off and still belong
to it: rounding errors of matmuls of different lengths are a small factor apart."""

_NOUNS = {Family.BILINEAR: "matmul", Family.ATTENTION: "attention"}

_FORMATS = (("fp16 or TF32", 2.0**-11), ("HF32", 2.0**-12), ("bf16", 2.0**-8))
"""Formats that matmul units round operands to, and their unit roundoff."""

_OPERAND_ROUNDING = 0.59
"""Relative error of a sum of products whose factors are both rounded, in units of roundoff: a
rounding is uniform within half a unit of an even logarithm of significands, root mean square
`sqrt((1 - 1/4) / (6 ln 2)) = 0.42`; two factors make `sqrt(2)` of it, whatever the length."""

_TELLING = 64
"""Elements that an output needs for its relative distance to be near the expected one."""

_SINGLE = 2.0**-24


@dataclass(frozen=True, slots=True)
class _Class:
    """Sites of one family that round alike; `limit` is the margin up to which an origin belongs to
    them, `exact` whether they were judged alone."""

    family: Family
    rounding: str
    members: tuple[Site, ...]
    limit: float
    exact: bool


class PrecisionClasses:
    """Gathers, per family of operators, how each site rounds.

    Where operators were judged alone the judge says so. Elsewhere the error that a sum of products
    adds to what its operands bring is estimated, `sqrt(out**2 - in**2)` in relative distances: noise
    passes a matmul with a gain near 1, so this is about the operands' rounding where the device
    rounds them and far less where it does not.
    """

    def __init__(self) -> None:
        self._judged: dict[Family, set[Site]] = defaultdict(set)
        self._rounded: dict[tuple[Family, str], dict[Site, float]] = defaultdict(dict)
        self._added: dict[Site, tuple[float, float]] = {}
        self._dtypes: dict[tuple[str, str, str], set[Site]] = defaultdict(set)

    def note(self, operation: Operation, measured: Measured, judgement: Judgement) -> None:
        """Take down one judged output of an aligned call."""
        if not measured.floating:
            return
        site = _without_call(measured.pair.present.site)
        if judgement.local:
            self._judged[operation.family].add(site)
            if judgement.rounding:
                excess = measured.difference / max(judgement.tolerance, 1e-300)
                self._rounded[operation.family, judgement.rounding].setdefault(site, excess)
        elif (
            operation.family is Family.BILINEAR
            and measured.pair.present.role is Role.OUTPUT
            and measured.numel >= _TELLING
            and measured.unit <= _SINGLE
        ):
            entering = math.hypot(*(item.difference for item in floats(operation.inputs)))
            square = measured.difference**2 - entering**2
            excess = measured.difference / max(judgement.tolerance, 1e-300)
            self._added.setdefault(site, (math.sqrt(max(square, 0.0)), excess))

    def note_dtypes(self, items: Iterable[Aligned]) -> None:
        """Take down operators whose results have another dtype in the other run."""
        for item in items:
            if item.reference.kind is not CallKind.OPERATOR:
                continue
            for pair in item.complete(Role.OUTPUT):
                left, right = pair.reference, pair.candidate
                assert left is not None
                assert right is not None
                if left.dtype == right.dtype or not is_floating(left.dtype):
                    continue
                key = (canonical_name(left.site.op), left.dtype, right.dtype)
                self._dtypes[key].add(_without_call(left.site))

    def open_changes(self) -> tuple[UniformChange, ...]:
        """Classes whose results have another dtype, as both recordings say themselves."""
        by_dtypes: dict[tuple[str, str], dict[str, set[Site]]] = defaultdict(dict)
        for (name, left, right), sites in self._dtypes.items():
            by_dtypes[left, right][name] = sites
        changes = []
        for (left, right), names in by_dtypes.items():
            sites = {site for members in names.values() for site in members}
            if len(sites) >= _LEAST_MEMBERS:
                listed = ", ".join(sorted(names, key=lambda name: (-len(names[name]), name))[:4])
                more = f" and {len(names) - 4} more" if len(names) > 4 else ""
                title = f"results are {right} instead of {left} ({listed}{more})"
                changes.append(UniformChange(title, tuple(sorted(sites))))
        return _largest_first(changes)

    def hidden_changes(self) -> tuple[UniformChange, ...]:
        """Classes that round as their dtype does not say."""
        changes = []
        for one in self._classes:
            noun = _NOUNS.get(one.family, f"operator that {one.family.value}")
            estimated = "" if one.exact else " (estimated)"
            changes.append(UniformChange(f"{noun} {one.rounding}{estimated}", one.members))
        return _largest_first(changes)

    def without_members(self, origins: Iterable[Origin]) -> list[Origin]:
        """The origins that no class of hidden changes explains."""
        limits: dict[Family, float] = defaultdict(float)
        for one in self._classes:
            limits[one.family] = max(limits[one.family], one.limit)
        return [
            origin
            for origin in origins
            if origin.kind is not Kind.FAULT or origin.finding.margin > limits[family_of(origin.op)]
        ]

    @cached_property
    def _classes(self) -> tuple[_Class, ...]:
        """Read only after the last output was noted."""
        found = []
        for (family, rounding), members in self._rounded.items():
            if _is_class(members, self._judged[family]):
                limit = _ALIKE * statistics.median(members.values())
                found.append(_Class(family, rounding, tuple(sorted(members)), limit, exact=True))
        estimated = self._estimated_class()
        return (*found, *((estimated,) if estimated and not found else ()))

    def _estimated_class(self) -> _Class | None:
        """Matmuls that all add the error of operands rounded to one format."""
        errors = [added for added, _ in self._added.values() if added > 0]
        if not errors:
            return None
        typical = statistics.median(errors) / _OPERAND_ROUNDING
        name, unit = min(_FORMATS, key=lambda one: abs(math.log(typical / one[1])))
        expected = _OPERAND_ROUNDING * unit
        members = {
            site: excess
            for site, (added, excess) in self._added.items()
            if expected / _NEAR <= added <= expected * _NEAR
        }
        if not _is_class(members, self._added):
            return None
        limit = _ALIKE * max(members.values())
        rounding = f"inputs round to {name}"
        return _Class(Family.BILINEAR, rounding, tuple(sorted(members)), limit, exact=False)


_NEAR = 2.5
"""How many times more or less than expected a matmul of a class may add. In two emulated networks the
factor was 0.5 to 1.1 at 20 of 21 sites (0.26 at the other); behind a single rounded matmul other
sites add 0.15 at most."""


def _is_class(members: Collection[Site], judged: Collection[Site]) -> bool:
    return (
        len(members) >= _LEAST_MEMBERS
        and len({site.module for site in members}) > 1
        and len(members) >= _COVERED * len(judged)
    )


def _without_call(site: Site) -> Site:
    return replace(site, call=0)


def _largest_first(changes: list[UniformChange]) -> tuple[UniformChange, ...]:
    return tuple(sorted(changes, key=lambda change: (-len(change.members), change.name)))
