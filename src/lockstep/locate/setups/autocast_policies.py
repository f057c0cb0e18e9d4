"""Results whose dtype differs because autocast has other rules on the two devices, as both recordings note them.

The rule excuses a dtype alone, never a number: what an operator gave is judged as any other result. It holds where the
two devices have different rules for the operator, and each side has the dtype that its own device's rule says; and for
what follows, where autocast leaves an operator alone and it has the dtype of an input that differs for this reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lockstep.align.step import Aligned
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Pair
from lockstep.core.manifest import RankManifest
from lockstep.core.operators import canonical_name
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role

Policy = dict[str, str]
_MADE_OF = {canonical_name("cross_entropy"): canonical_name("log_softmax")}
"""Operators without a rule of their own that are made of one with a rule."""


@dataclass
class AutocastPolicies:
    """The rules of both devices, and the results whose dtype they explain.

    Parameters
    ----------
    reference, candidate
        By operator, the dtype of its results.
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


def policy_of(manifest: RankManifest) -> Policy:
    """Return the rules of the one device that autocast was on for; none where it was on for several."""
    policies = list(manifest.autocast_policies.values())
    return policies[0] if len(policies) == 1 else {}


def words_of(mine: Policy, other: Policy) -> str:
    """Return the rules that the other device does not have, as in `layer_norm, softmax float32`."""
    by_dtype: dict[str, list[str]] = {}
    for name, dtype in mine.items():
        if other.get(name) != dtype:
            by_dtype.setdefault(dtype, []).append(name)
    return "; ".join(f"{', '.join(names)} {dtype}" for dtype, names in by_dtype.items())


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
