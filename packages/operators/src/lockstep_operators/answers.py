"""Look up the operators that ran in a device's list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from lockstep.plugin import COMPOSED, SupportAnswer, SupportedOperators, SupportStanding
from lockstep_operators.ran import Ran, RanOperator
from lockstep_operators.support.native_functions import dispatch_keys

if TYPE_CHECKING:
    from lockstep_operators.alternative import Alternative

_CHOICES = Path(__file__).with_name("device_choices.yaml")
_ORDER = (
    SupportStanding.MISSING,
    SupportStanding.OTHER_DTYPES,
    SupportStanding.UNKNOWN,
    SupportStanding.SUPPORTED,
)


@dataclass(frozen=True, slots=True)
class Answered:
    """An operator with what the list says of it, and what takes its place; without a list nothing is said."""

    operator: RanOperator
    answer: SupportAnswer | None
    alternative: Alternative | None = None

    @property
    def standing(self) -> SupportStanding | None:
        """Whether the device has it."""
        return None if self.answer is None else self.answer.standing


def answered(ran: Ran, support: SupportedOperators | None) -> list[Answered]:
    """Every operator that ran, what the device lacks first, then by how often it ran."""
    return in_order(
        [Answered(one, None if support is None else _answer(one, support)) for one in ran.operators]
    )


def in_order(found: Iterable[Answered]) -> list[Answered]:
    """Return the missing operators first, then by time, then by number of calls."""
    return sorted(
        found,
        key=lambda one: (
            _ORDER.index(one.standing) if one.standing is not None else 0,
            -one.operator.seconds if one.operator.seconds > 0 else 0.0,
            -one.operator.calls.total(),
            one.operator.name,
        ),
    )


WORKER_SEED = (
    "the seed of a data loader's workers, which torch draws on the CPU, whatever the device"
)
"""torch/utils/data/dataloader.py: each epoch draws one whole number without dimensions."""


def _is_worker_seed(operator: RanOperator) -> bool:
    forms = [one for form in operator.forms for one in form]
    is_number = bool(forms) and all((one.dtype, one.shape) == ("int64", ()) for one in forms)
    return operator.name == "aten::random_" and is_number


def _answer(operator: RanOperator, support: SupportedOperators) -> SupportAnswer:
    if _is_worker_seed(operator):
        return SupportAnswer(SupportStanding.SUPPORTED, WORKER_SEED)
    if not operator.of_dispatcher:
        return _answer_of_api(operator, support)
    answer = support.answer(operator.name, operator.dtypes)
    choice = _choices().get(operator.name)
    entry = support.entry_of(operator.name)
    if choice is None or (entry is not None and entry.how != COMPOSED):
        return answer
    return _of_device(operator, choice, support)


def _of_device(
    operator: RanOperator, choice: Mapping[str, Any], support: SupportedOperators
) -> SupportAnswer:
    """What torch picks on the device, in place of an operator that it picks for another."""
    for name in choice["instead"]:
        entry = support.entry_of(f"aten::{name}")
        if entry is not None and entry.has and entry.how != COMPOSED:
            answer = support.answer(f"aten::{name}", operator.dtypes)
            why = answer.why or f"torch picks by the device, there aten::{name}"
            return SupportAnswer(answer.standing, why)
    parts = [support.answer(f"aten::{part}", operator.dtypes) for part in choice.get("parts", ())]
    if parts and all(part.standing is SupportStanding.SUPPORTED for part in parts):
        named = ", ".join(choice["parts"])
        return SupportAnswer(
            SupportStanding.SUPPORTED, f"torch picks by the device, there parts: {named}"
        )
    if not support.is_whole:
        return SupportAnswer(
            SupportStanding.UNKNOWN,
            "torch picks by the device, and the list does not claim to be whole",
        )
    return SupportAnswer(
        SupportStanding.MISSING, "torch picks by the device, and the list has none of those"
    )


def _answer_of_api(operator: RanOperator, support: SupportedOperators) -> SupportAnswer:
    """What a list of the dispatcher's operators says of a function of torch's API, by its name alone."""
    name = operator.asked_as
    own = support.entries.get(name)
    if own is not None and own.how != COMPOSED:
        return support.answer(name, operator.dtypes)
    overloads = [
        one
        for one in dispatch_keys()
        if one.partition(".")[0] == name and not one.endswith(("out", "grad_input"))
    ]
    if not overloads:
        return SupportAnswer(SupportStanding.UNKNOWN, "the dispatcher has no operator of this name")
    if any("CompositeImplicitAutograd" in dispatch_keys()[one] for one in overloads):
        return SupportAnswer(SupportStanding.UNKNOWN, "torch makes it of other operators")
    answers = [support.answer(one, operator.dtypes) for one in overloads]
    if any(one.why == COMPOSED for one in answers) and not support.is_of_torch:
        return SupportAnswer(SupportStanding.UNKNOWN, COMPOSED)
    if len({one.standing for one in answers}) == 1:
        return answers[0]
    return SupportAnswer(SupportStanding.UNKNOWN, "the list has some of its overloads")


@cache
def _choices() -> dict[str, dict[str, Any]]:
    rows = yaml.safe_load(_CHOICES.read_text(encoding="utf-8"))
    return {f"aten::{name}": row for row in rows for name in row["operators"]}
