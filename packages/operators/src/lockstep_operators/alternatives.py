"""Find the substitute for an operator that a device lacks: an equal form, the CPU, or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import yaml

from lockstep.plugin import COMPOSED, SupportAnswer, SupportedOperators, SupportStanding
from lockstep.recordings import Call, Role
from lockstep.rerun import CannotReplay, EqualForm, RerunsApart, Substitute
from lockstep_operators.alternative import Alternative, OnTheCpu
from lockstep_operators.answers import Answered, in_order
from lockstep_operators.ran import Ran, RanOperator
from lockstep_operators.support.native_functions import COMPOSITE, dispatch_keys

_FALLBACKS = Path(__file__).with_name("fallbacks.yaml")
_MOST_FORMS = 4
"""Forms of an operator's inputs on which an equal form is run."""
_LACKING = (SupportStanding.MISSING, SupportStanding.OTHER_DTYPES)


def with_alternatives(
    found: Sequence[Answered], ran: Ran, support: SupportedOperators, memory_bytes: int
) -> list[Answered]:
    """The same, with what composed operators come down to, and an alternative for each that is lacking.

    Operators of the API's level are left as they are: what they call is not known.
    """
    reruns = RerunsApart(memory_bytes)
    looked = [_looked_into(one, support, reruns) for one in found]
    return in_order(
        [
            replace(
                one,
                alternative=Alternative(
                    one.alternative.substitute
                    if one.alternative is not None
                    else _substitute(one.operator, support, reruns),
                    _on_the_cpu(one.operator, ran, support),
                ),
            )
            if one.standing in _LACKING and one.operator.of_dispatcher
            else one
            for one in looked
        ]
    )


def _looked_into(one: Answered, support: SupportedOperators, reruns: RerunsApart) -> Answered:
    """A composed operator, which the device has if it has its parts."""
    if (
        one.answer != SupportAnswer(SupportStanding.SUPPORTED, COMPOSED)
        or not one.operator.of_dispatcher
    ):
        return one
    substitute = _substitute(one.operator, support, reruns)
    if substitute.lacking:
        named = ", ".join(substitute.lacking)
        standing = SupportStanding.MISSING if support.is_whole else SupportStanding.UNKNOWN
        answer = SupportAnswer(standing, f"{COMPOSED}, of which the list lacks {named}")
        return replace(one, answer=answer, alternative=Alternative(substitute, None))
    if substitute.why and not support.is_of_torch:
        return replace(one, answer=SupportAnswer(SupportStanding.UNKNOWN, substitute.why))
    return one


def _substitute(
    operator: RanOperator, support: SupportedOperators, reruns: RerunsApart
) -> Substitute:
    calls = [call for _, call in sorted(operator.forms.values(), key=lambda one: -one[0])]
    try:
        return reruns.ask(EqualForm(operator.name, tuple(calls[:_MOST_FORMS]), support))
    except CannotReplay as error:
        return Substitute(why=str(error))


def _on_the_cpu(operator: RanOperator, ran: Ran, support: SupportedOperators) -> OnTheCpu | None:
    keys = dispatch_keys().get(operator.name, frozenset())
    if not keys & (COMPOSITE | {"CPU"}):
        return None
    moved = [(count, list(_tensors(call))) for count, call in operator.forms.values()]
    times = ran.steps * ran.ranks
    return OnTheCpu(
        sum(count * len(sizes) for count, sizes in moved) / times,
        sum(count * sum(sizes) for count, sizes in moved) / times,
        _fallbacks().get(support.name, _fallbacks()[""]),
    )


def _tensors(call: Call) -> Iterator[int]:
    """Bytes of what goes to the CPU and comes back."""
    for record in call.with_role(Role.INPUT, Role.OUTPUT):
        yield record.content.numel * _bytes_of(record.dtype)


def _bytes_of(dtype: str) -> int:
    digits = "".join(filter(str.isdigit, dtype.partition("_")[0]))
    return max(int(digits or 8) // 8, 1)


@cache
def _fallbacks() -> dict[str, str]:
    rows = yaml.safe_load(_FALLBACKS.read_text(encoding="utf-8"))
    return {row["device"]: row["how"] for row in rows}
