"""Uniform precision changes: a whole class of operators that computes in a different precision, TF32 too.

A device whose every matmul rounds its inputs to fp16 has no single origin, so the class is named
with its members instead of the first of them.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from lockstep.core.finding import Kind, Origin, UniformChange
from lockstep.core.manifest import RankManifest
from lockstep.core.operators import Family, Trait, chains_matmuls, family_of, operator_of
from lockstep.core.site import Role, Site
from lockstep.core.text import listed
from lockstep.judge.bounds import floats, usual_product_norm
from lockstep.judge.protocol import Judgement, Operation, Rounding
from lockstep.judge.tolerances import (
    CLASS_ALIKE,
    CLASS_COVERED,
    CLASS_ELEMENTS,
    CLASS_FUSED_ALIKE,
    CLASS_NEAR,
    LEAST_MEMBERS,
    OPERAND_FORMATS,
    OPERAND_ROUNDING,
    SINGLE,
)
from lockstep.measure.measured_pair import Measured


@dataclass(frozen=True, slots=True)
class _Rounded:
    """How far a site of a class is off, in times of its tolerance and relative to its norm."""

    margin: float
    difference: float


@dataclass(frozen=True, slots=True)
class _Class:
    """Sites of one family that round alike; origins up to these limits belong to them."""

    family: Family
    words: str
    members: tuple[Site, ...]
    margin_limit: float
    difference_limit: float
    members_alone: bool = False
    of: int = 0
    kind: Kind = Kind.FAULT

    def explains(self, origin: Origin) -> bool:
        """Whether an origin is one more of these sites, or one of them where these are members alone."""
        if origin.kind is not self.kind:
            return False
        if self.members_alone:
            return _without_call(origin.finding.pair.present.site) in self.members
        if family_of(origin.op) is self.family and origin.finding.margin <= self.margin_limit:
            return True
        fused = self.family is Family.BILINEAR and operator_of(origin.op).has_matmuls_inside
        return fused and origin.finding.difference <= self.difference_limit


class PrecisionClasses:
    """Gathers, per family of operators, how each site rounds.

    Where operators were judged alone the judge says so. Elsewhere the error that a sum of products
    adds to what its operands bring is estimated, `sqrt(out**2 - in**2)` in relative distances: noise
    passes a matmul with a gain near 1, so this is about the operands' rounding where the device
    rounds them and far less where it does not.
    """

    def __init__(self) -> None:
        self._judged: dict[Family, set[Site]] = defaultdict(set)
        self._rounded: dict[tuple[Family, Rounding | None], dict[Site, _Rounded]] = defaultdict(
            dict
        )
        self._added: dict[Site, tuple[float, _Rounded]] = {}
        self._by_run: dict[str, set[Site]] = defaultdict(set)
        self._equal: set[Site] = set()
        self.tf32 = Tf32Allowed()

    def note(self, operation: Operation, measured: Measured, judgement: Judgement) -> None:
        """Take down one judged output of an aligned call."""
        if not measured.floating:
            return
        if judgement.local:
            family = _class_family(operation.op)
            site = _without_call(measured.pair.present.site)
            self._judged[family].add(site)
            run = self.tf32.run_at(operation.op, measured) if family is Family.BILINEAR else ""
            if run:
                self._by_run[run].add(site)
            if judgement.unexplained:
                key = (family, judgement.rounding)
                self._rounded[key].setdefault(site, _rounded(measured, judgement))
        elif _is_telling(operation, measured):
            added = _added_error(operation, measured)
            if added is not None:
                site = _without_call(measured.pair.present.site)
                self._added.setdefault(site, (added, _rounded(measured, judgement)))

    def note_equal(self, measured: Measured) -> None:
        """Take down an output that is equal bit by bit: where it comes from, no operand is rounded in one run alone."""
        record = measured.pair.present
        is_result = record.role is Role.OUTPUT and measured.floating
        if is_result and _class_family(record.site.op) is Family.BILINEAR:
            site = _without_call(record.site)
            if site not in self._added and _is_something(measured):
                self._equal.add(site)

    def hidden_changes(self) -> tuple[UniformChange, ...]:
        """Classes that round as their dtype does not say."""
        return _largest_first(
            [
                UniformChange(f"{_subject(one)} {one.words}".lstrip(), one.members, one.of)
                for one in self._classes
            ]
        )

    def without_members(self, origins: Iterable[Origin]) -> list[Origin]:
        """The origins that no class of hidden changes explains."""
        return [
            origin for origin in origins if not any(one.explains(origin) for one in self._classes)
        ]

    @cached_property
    def _classes(self) -> tuple[_Class, ...]:
        """Read only after the last output was noted."""
        found: list[_Class] = []
        for family, rounding, members in self._recognised():
            if rounding.rounded == "inside":
                found.extend(self._inside(family, rounding, members))
                continue
            differences = [one.difference for one in members.values()]
            difference = statistics.median(differences)
            alike = {
                site: one
                for site, one in self._rounded.get((family, None), {}).items()
                if difference / CLASS_ALIKE <= one.difference <= difference * CLASS_ALIKE
            }
            members = {**alike, **members}
            if _is_class(members, self._judged[family]):
                margin = statistics.median(one.margin for one in members.values())
                found.append(_class(family, str(rounding), members, margin, difference))
        if not any(one.family is Family.BILINEAR for one in found):
            found.extend(self._allowed())
        estimated = self._estimated_class()
        return (*found, *((estimated,) if estimated and not found else ()))

    def _allowed(self) -> Iterator[_Class]:
        """Sites that round to TF32 where one run's set-up alone allows it: the library chooses which."""
        rounded = {rounding: set(sites) for (_, rounding), sites in self._products()}
        tf32 = {one for one in rounded if one and one.rounded == "inputs" and "TF32" in one.formats}
        otherwise = set().union(*(sites for one, sites in rounded.items() if one not in tf32))
        members = set().union(*(rounded[one] for one in tf32)) - otherwise
        for run, allowed in sorted(self._by_run.items()):
            kind, sites = self.tf32.kind_in(run), tuple(sorted(members & allowed))
            if kind is not None and sites:
                words = f"TF32 is allowed in the {run} alone: {_noun(Family.BILINEAR, sites)} inputs round to it"
                yield _Class(Family.BILINEAR, words, sites, 0.0, 0.0, True, len(allowed), kind)

    def _products(self) -> Iterator[tuple[tuple[Family, Rounding | None], dict[Site, _Rounded]]]:
        return ((key, sites) for key, sites in self._rounded.items() if key[0] is Family.BILINEAR)

    def _inside(
        self, family: Family, rounding: Rounding, members: Mapping[Site, _Rounded]
    ) -> Iterator[_Class]:
        """Operators of a family that all round inside, and show nothing else; a model may well have one alone."""
        otherwise = self._rounded.get((family, None), {})
        members = {site: one for site, one in members.items() if site not in otherwise}
        if members and len(members) >= CLASS_COVERED * len(self._judged[family]):
            yield _Class(
                family, str(rounding), tuple(sorted(members)), 0.0, 0.0, members_alone=True
            )

    def _recognised(self) -> Iterator[tuple[Family, Rounding, dict[Site, _Rounded]]]:
        """Sites by the format that the judge recognised; where one fits two, by the more frequent."""
        by_format: dict[tuple[Family, Rounding], dict[Site, _Rounded]] = defaultdict(dict)
        for (family, rounding), members in self._rounded.items():
            if rounding is not None:
                for one in rounding.formats:
                    by_format[family, replace(rounding, formats=(one,))].update(members)
        taken: dict[Family, set[Site]] = defaultdict(set)
        for (family, rounding), members in sorted(
            by_format.items(), key=lambda item: (-len(item[1]), str(item[0][1]))
        ):
            left = {site: one for site, one in members.items() if site not in taken[family]}
            taken[family].update(left)
            if left:
                yield family, rounding, left

    def _estimated_class(self) -> _Class | None:
        """Matmuls that all add the error of operands rounded to one format."""
        errors = [added for added, _ in self._added.values() if added > 0]
        if not errors:
            return None
        typical = statistics.median(errors) / OPERAND_ROUNDING
        name, unit = min(OPERAND_FORMATS, key=lambda one: abs(math.log(typical / one[1])))
        expected = OPERAND_ROUNDING * unit
        members = {
            site: rounded
            for site, (added, rounded) in self._added.items()
            if expected / CLASS_NEAR <= added <= expected * CLASS_NEAR and site not in self._equal
        }
        # What chains matmuls may forget noise that enters it, and then adds less than it takes away.
        judged = [site for site in self._added if site in members or not chains_matmuls(site.op)]
        if not _is_class(members, judged):
            return None
        margin = max(rounded.margin for rounded in members.values())
        words = f"{Rounding('inputs', (name,))} (estimated)"
        return _class(Family.BILINEAR, words, members, margin, expected)


def _class_family(op: str) -> Family:
    """Family of an operator, where what chains matmuls counts with them."""
    return Family.BILINEAR if chains_matmuls(op) else family_of(op)


def _subject(one: _Class) -> str:
    if one.of:
        return ""
    if one.members_alone:
        return f"{listed(sorted({site.op.rpartition('.')[2] for site in one.members}))}:"
    return _noun(one.family, one.members)


def _noun(family: Family, members: Collection[Site]) -> str:
    if family is not Family.BILINEAR:
        return f"operator that {family.value}:"
    convolutions = sum(operator_of(site.op).convolves for site in members)
    if convolutions == 0:
        return "matmul"
    return "convolution" if convolutions == len(members) else "matmul and convolution"


def _class(
    family: Family,
    words: str,
    members: Mapping[Site, _Rounded],
    margin: float,
    difference: float,
) -> _Class:
    sites = tuple(sorted(members))
    return _Class(family, words, sites, CLASS_ALIKE * margin, CLASS_FUSED_ALIKE * difference)


def _is_telling(operation: Operation, output: Measured) -> bool:
    return (
        (operation.family is Family.BILINEAR or chains_matmuls(operation.op))
        and output.pair.present.role is Role.OUTPUT
        and output.known
        and math.isfinite(output.distance)
        and output.numel >= CLASS_ELEMENTS
        and output.unit <= SINGLE
    )


def _is_something(measured: Measured) -> bool:
    """Whether so many elements are not all zero."""
    statistics = measured.pair.present.statistics
    return measured.numel >= CLASS_ELEMENTS and statistics is not None and statistics.norm > 0


def _added_error(operation: Operation, output: Measured) -> float | None:
    """What an operator adds to its operands' differences, relative to its usual size."""
    usual = output.norm
    if operation.family is Family.BILINEAR:
        usual = usual_product_norm(operation, output)
    if not usual > 0:
        return None
    entering = math.hypot(*(item.relative for item in floats(operation.inputs)))
    # `**` raises where a square is beyond all numbers, as it can be of statistics that somebody wrote.
    leaving = output.distance / usual
    return math.sqrt(max(leaving * leaving - entering * entering, 0.0))


def _is_class(members: Collection[Site], judged: Collection[Site]) -> bool:
    return len({site.module for site in members}) >= LEAST_MEMBERS and len(
        members
    ) >= CLASS_COVERED * len(judged)


def _without_call(site: Site) -> Site:
    return Site(site.module, site.op, 0, site.phase) if site.call else site


def _rounded(measured: Measured, judgement: Judgement) -> _Rounded:
    margin = measured.difference / max(judgement.tolerance, 1e-300)
    return _Rounded(margin, measured.difference)


def _largest_first(changes: list[UniformChange]) -> tuple[UniformChange, ...]:
    return tuple(sorted(changes, key=lambda change: (-len(change.members), change.name)))


DEVICES = ("cuda",)
"""How the names of devices begin whose libraries may round to TF32."""

_RUNS = {(False, True): "candidate", (True, False): "reference"}
_KINDS = {"candidate": Kind.FAULT, "reference": Kind.MORE_ACCURATE}


@dataclass(frozen=True, slots=True)
class Tf32Allowed:
    """Which run alone allows TF32, by library: "matmul" for cuBLAS, "cudnn" for convolutions and recurrent layers.

    A library that both runs allow it, or neither, has no entry. Libraries choose by shape where they use it.
    """

    alone: Mapping[str, str] = field(default_factory=dict)

    def run_at(self, op: str, measured: Measured) -> str:
        """Return the run that alone may round at an operator, "" where none may: processors do not."""
        known = operator_of(op)
        of_cudnn = known.convolves or Trait.STEPS_THROUGH in known.traits
        run = self.alone.get("cudnn" if of_cudnn else "matmul", "")
        pair = measured.pair
        record = pair.candidate if run == "candidate" else pair.reference
        return run if record is not None and record.content.device.startswith(DEVICES) else ""

    @staticmethod
    def kind_in(run: str) -> Kind | None:
        """Return the kind of a result that only this run rounds, if no set-up explains it."""
        return _KINDS.get(run)


def tf32_allowed(reference: RankManifest, candidate: RankManifest) -> Tf32Allowed:
    """Compare the notes of both runs: `matmul=False cudnn=True`."""
    left, right = _noted(reference), _noted(candidate)
    runs = {name: _RUNS.get((left[name], right[name]), "") for name in left.keys() & right.keys()}
    return Tf32Allowed({name: run for name, run in runs.items() if run})


def _noted(manifest: RankManifest) -> dict[str, bool]:
    parts = (part.partition("=") for part in manifest.numerics.get("tf32", "").split())
    values = {"True": True, "False": False}
    return {name: values[value] for name, _, value in parts if value in values}
