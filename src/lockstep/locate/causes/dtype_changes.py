"""Results and parameters that have a different dtype in the other run, as both recordings note it.

Everywhere it is a change of precision, as of a device that rounds all its matmuls: a class without culprit. In part of
the sites only - one layer under autocast, one norm in bfloat16 - it is a difference of set-up, named at the first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import (
    Evidence,
    Finding,
    Kind,
    Metrics,
    Origin,
    Outcome,
    Pair,
    UniformChange,
)
from lockstep.core.manifest import RankManifest
from lockstep.core.operators import Family, Trait, canonical_name, operator_of
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role, Site
from lockstep.core.text import listed
from lockstep.judge.tolerances import CLASS_COVERED, LEAST_MEMBERS
from lockstep.locate.flow.origins import Place, origin_at, place_of, place_of_call
from lockstep.locate.setups.setup_facts import Policy, policy_of

_PARAMETERS, _BUFFERS, _INPUTS = "parameters", "buffers", "inputs"
_SHOWN = 4


@dataclass(frozen=True, slots=True)
class _First:
    """The first pair of tensors that changed in a certain way."""

    place: Place
    pair: Pair


class DtypeChanges:
    """Collects, per operator, the sites with a different dtype, over all ranks and steps.

    `policies` are the rules of autocast on both devices, which explain some of them.
    """

    def __init__(self) -> None:
        self._sites: dict[str, set[Site]] = defaultdict(set)
        self._changed: dict[tuple[str, str], dict[str, set[Site]]] = defaultdict(
            lambda: defaultdict(set)
        )
        self._first: dict[tuple[str, str], _First] = {}
        self.policies = AutocastPolicies()

    def note(self, step: AlignedStep) -> None:
        """Take down the results and the parameters of one step, in order of time."""
        items = step.aligned
        sees_operators = any(item.reference.kind is CallKind.OPERATOR for item in items)
        for item in items:
            if sees_operators and item.reference.kind is CallKind.MODULE:
                continue  # a wrapper may well give results in another dtype than its model
            pairs = list(item.complete(*_ROLES.get(item.reference.kind, ())))
            if item.reference.kind is CallKind.OPERATOR and not any(map(_has_other_dtype, pairs)):
                pairs += self._converted(item, step)
            for pair in pairs:
                self._note(item, pair, step)

    def _converted(self, item: Aligned, step: AlignedStep) -> Iterator[Pair]:
        """Inputs of another dtype that one run alone has rounded, where the results are of the same dtype again.

        A conversion to a wider dtype rounds nothing. Nor does one to the dtype of the results, which the other run's
        operator makes inside, as under autocast.
        """
        changed = [pair for pair in item.complete(Role.INPUT) if _has_other_dtype(pair)]
        cast = _cast_before(item, step) if changed else None
        made = None if cast is None else _result(cast).dtype
        if made is None or made in {
            record.dtype for record in item.reference.with_role(Role.OUTPUT)
        }:
            return iter(())
        return (pair for pair in changed if made == _coarser(pair))

    def _note(self, item: Aligned, pair: Pair, step: AlignedStep) -> None:
        left, right = pair.both
        if not (is_floating(left.dtype) and is_floating(right.dtype)):
            return
        if left.content.numel != right.content.numel:
            return  # two other results: the scripts call one operator at different places
        site = Site(left.site.module, left.site.op, 0, left.site.phase)
        name = _HELD.get(left.role) or canonical_name(site.op)
        self._sites[name].add(site)
        if left.role is Role.BUFFER and _hold_the_same(left, right):
            return  # a mask, say: not one of its numbers was rounded
        if left.dtype != right.dtype and not self.policies.explain(item, pair):
            key = (left.dtype, right.dtype)
            self._changed[key][name].add(site)
            if key not in self._first:
                place = _at_cast(item, step) or place_of(item, pair, step.module_classes)
                self._first[key] = _First(place, pair)

    def uniform(self) -> tuple[UniformChange, ...]:
        """Return changes at all sites of some operators, with their consequences."""
        found = []
        for (left, right), names in self._changed.items():
            sites = {site for members in names.values() for site in members}
            if self._is_uniform(names):
                ordered = sorted(names, key=lambda name: (-len(names[name]), name))
                title = f"results are {right} instead of {left} ({listed(ordered, _SHOWN)})"
                found.append(UniformChange(title, tuple(sorted(sites)), is_of_dtypes=True))
        return tuple(sorted(found, key=lambda change: (-len(change.members), change.name)))

    def named_in(self, origins: Iterable[Origin]) -> list[Origin]:
        """Return origins with the changes of some sites only, each at its first, in place of the numbers that they
        change.
        """
        partial = [names for names in self._changed.values() if not self._is_uniform(names)]
        modules = {site.module for names in partial for sites in names.values() for site in sites}
        kept = [
            origin
            for origin in origins
            if origin.kind is not Kind.FAULT
            or not (origin.module in modules or (modules and _is_cast(origin.op)))
        ]
        changes = self._changed.items()
        return [*kept, *(self._origin(*one) for one in changes if not self._is_uniform(one[1]))]

    def _is_uniform(self, names: Mapping[str, set[Site]]) -> bool:
        """Whether a change is one of all matmuls or, where none has changed, of all sites of some operator."""
        products = [name for name in self._sites if _sums_products(name)]
        changed = sum(len(names.get(name, ())) for name in products)
        if changed:
            return _covers(changed, sum(len(self._sites[name]) for name in products))
        return any(
            _covers(len(sites), len(self._sites[name]))
            for name, sites in names.items()
            if name
            not in (_BUFFERS, _INPUTS)  # these alone are no precision that a run computes in
        )

    def _origin(self, key: tuple[str, str], names: Mapping[str, set[Site]]) -> Origin:
        first = self._first[key]
        modules = sorted({site.module or "the model" for sites in names.values() for site in sites})
        what = _HELD.get(first.place.role, "results")
        words = (
            f"{what} are {key[1]} in the candidate and {key[0]} in the reference, in part of the model only:"
            f" {listed(modules, _SHOWN)}"
        )
        reason = Reason(Clause(About.SETTING, words, what, *key))
        metrics = Metrics(Evidence.NONE)
        finding = Finding(
            first.pair, Outcome.DIFFER, metrics, math.nan, math.nan, reason, kind=Kind.SETUP
        )
        return origin_at(first.place, finding, reason, Kind.SETUP)


def _covers(changed: int, all_sites: int) -> bool:
    return changed >= max(LEAST_MEMBERS, CLASS_COVERED * all_sites)


def _is_cast(op: str) -> bool:
    """Whether an operator is a conversion, which is how the change came about."""
    return Trait.CASTS in operator_of(op).traits


def _sums_products(name: str) -> bool:
    operator = operator_of(name)
    return operator.family is Family.BILINEAR or operator.has_matmuls_inside


def _at_cast(item: Aligned, step: AlignedStep) -> Place | None:
    """Where one run alone converts what goes into a call, None where none does."""
    cast = _cast_before(item, step)
    return None if cast is None else place_of_call(cast, _result(cast), step.module_classes)


def _cast_before(item: Aligned, step: AlignedStep) -> Call | None:
    """The conversion that one run alone makes of what goes into a call, None where there is none."""
    sides = (
        (item.candidate, step.candidate, step.of_candidate),
        (item.reference, step.reference, step.of_reference),
    )
    for call, flow, partner_of in sides:
        for record in call.with_role(Role.INPUT):
            maker = flow.producer(record.content.id, record.sequence)
            if maker is not None and _is_cast(maker.site.op) and partner_of(maker) is None:
                return maker
    return None


def _result(call: Call) -> TensorRecord:
    return call.with_role(Role.OUTPUT)[0]


def _coarser(pair: Pair) -> str:
    """The dtype of the two that holds fewer digits."""
    dtypes = [one.dtype for one in (pair.reference, pair.candidate) if one is not None]
    return max(dtypes, key=unit_roundoff)


def _hold_the_same(left: TensorRecord, right: TensorRecord) -> bool:
    """Whether two tensors of different dtypes have the same extremes, mean and norm, to the last bit."""
    one, other = left.statistics, right.statistics
    return one is not None and one == other


def _has_other_dtype(pair: Pair) -> bool:
    left, right = pair.reference, pair.candidate
    return left is not None and right is not None and left.dtype != right.dtype


_HELD = {Role.PARAM: _PARAMETERS, Role.BUFFER: _BUFFERS, Role.INPUT: _INPUTS}

_ROLES = {
    CallKind.INIT: (Role.PARAM, Role.BUFFER),
    CallKind.OPERATOR: (Role.OUTPUT,),
    CallKind.MODULE: (Role.OUTPUT,),
}


# Results whose dtype differs because autocast has other rules on the two devices, as both recordings note them.
#
# The rule excuses a dtype alone, never a number: what an operator gave is judged as any other result. It holds where
# the two devices have different rules for the operator, and each side has the dtype that its own device's rule says;
# and for what follows, where autocast leaves an operator alone and it has the dtype of an input that differs for this
# reason.

_MADE_OF = {canonical_name("cross_entropy"): canonical_name("log_softmax")}
"""Operators without a rule of their own that are made of one with a rule."""


@dataclass
class AutocastPolicies:
    """The rules of both devices, and the results whose dtype they explain.

    reference, candidate: By operator, the dtype of its results.
    """

    reference: Policy = field(default_factory=dict)
    candidate: Policy = field(default_factory=dict)
    _explained: set[tuple[int, int]] = field(default_factory=set)

    def explain(self, item: Aligned, pair: Pair) -> bool:
        """Return whether the rules make a result's dtype differ; to be asked in order of time."""
        left, right = pair.both
        if not (self.reference and self.candidate) or left.role is not Role.OUTPUT:
            return False
        if not (_is_under_autocast(item.reference) and _is_under_autocast(item.candidate)):
            return False
        rules = _rule_of(left.site.op, self.reference), _rule_of(left.site.op, self.candidate)
        sides = zip(rules, (item.reference, item.candidate), (left, right), strict=True)
        as_ruled = all(_is_as_ruled(*side) for side in sides)
        follows = any(
            (one.both[0].content.id, one.both[1].content.id) in self._explained
            for one in item.complete(Role.INPUT)
        )
        if not as_ruled or not (rules[0] != rules[1] or follows):
            return False
        self._explained.add((left.content.id, right.content.id))
        return True


def autocast_policies(reference: RankManifest, candidate: RankManifest) -> AutocastPolicies:
    """Return what two recordings note of autocast's rules."""
    return AutocastPolicies(policy_of(reference), policy_of(candidate))


def _rule_of(op: str, policy: Policy) -> str | None:
    """What a policy says of an operator, by whatever name it was called."""
    rules = {canonical_name(name): dtype for name, dtype in policy.items()}
    name = canonical_name(op)
    return rules.get(_MADE_OF.get(name, name))


def _is_under_autocast(call: Call) -> bool:
    return call.conditions is not None and bool(call.conditions.autocast)


def _is_as_ruled(rule: str | None, call: Call, result: TensorRecord) -> bool:
    """Whether a result has the dtype of the rule; where there is none, of the widest input or, beside parameters that
    are kept wider, as a norm's are, of the first.
    """
    if rule is not None:
        return result.dtype == rule
    inputs = [one.dtype for one in call.with_role(Role.INPUT) if is_floating(one.dtype)]
    return bool(inputs) and result.dtype in (inputs[0], min(inputs, key=unit_roundoff))
