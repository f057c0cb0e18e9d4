"""The aligned calls of one step as a judge sees them: what went in, what came out, which settings differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from lockstep.compare.judge import Operation
from lockstep.compare.settings import Setting, differing_settings
from lockstep.core.finding import Pair
from lockstep.core.site import CallKind, Role
from lockstep.locate.ledger import Ledger
from lockstep.locate.step import Aligned, AlignedStep
from lockstep.locate.words import agreed_name


class Operations:
    """Operations of one aligned step, each put together once.

    Parameters
    ----------
    step
        The aligned step.
    ledger
        Measures the pairs.
    """

    def __init__(self, step: AlignedStep, ledger: Ledger) -> None:
        self._step, self._ledger = step, ledger
        self._operations: dict[tuple[int, bool], Operation] = {}
        self._settings: dict[int, list[Setting]] = {}

    def of(self, item: Aligned, *, backward: bool) -> Operation:
        """One call, forward or with the gradients that enter it."""
        key = (item.reference.id, backward)
        known = self._operations.get(key)
        if known is None:
            known = self._operations[key] = self._made(item, backward)
        return known

    def _made(self, item: Aligned, backward: bool) -> Operation:
        measure = self._ledger.measure
        inputs = [measure(pair) for pair in item.complete(Role.INPUT)]
        if item.reference.kind is CallKind.MODULE:
            below = self._step.parameters_below.get(item.reference.site.module, ())
            inputs.extend(measure(pair) for pair in below)
        outputs = item.complete(Role.OUTPUT) if backward else ()
        gradients = item.complete(Role.GRAD_OUTPUT) if backward else ()
        return Operation(
            op=agreed_name(item.reference.site.op, item.candidate.site.op),
            inputs=tuple(inputs),
            outputs=tuple(measure(pair) for pair in outputs),
            gradients=tuple(measure(pair) for pair in gradients),
            arguments=item.reference.arguments,
            setting_differs=any(one.tells_numbers for one in self.settings_of(item)),
            calls=item.calls,
        )

    def of_owner(self, path: str) -> Operation:
        """The module that owns a parameter as one operator, over all its calls."""
        operations = [self.of(item, backward=True) for item in self.modules_at(path)]
        if not operations:
            return Operation(op="")
        return replace(
            operations[0],
            inputs=tuple(item for one in operations for item in one.inputs),
            gradients=tuple(item for one in operations for item in one.gradients),
        )

    def modules_at(self, path: str) -> Sequence[Aligned]:
        """Calls of the module at a path, in order of time."""
        return self._modules_by_path.get(path, ())

    @cached_property
    def _modules_by_path(self) -> dict[str, list[Aligned]]:
        modules: dict[str, list[Aligned]] = defaultdict(list)
        for item in self._step.of_kind(CallKind.MODULE):
            modules[item.reference.site.module].append(item)
        return modules

    def settings_of(self, item: Aligned) -> list[Setting]:
        """Plain arguments that have another value in the candidate."""
        key = item.reference.id
        known = self._settings.get(key)
        if known is None:
            same_operator = item.calls.method != "same place"
            arguments = item.reference.arguments, item.candidate.arguments
            known = differing_settings(*arguments) if same_operator else []
            self._settings[key] = known
        return known

    def is_gathered(self, item: Aligned, pair: Pair) -> bool:
        """Whether one run may have gathered the parameter's gradients of several calls here.

        Autocast keeps its cast of a parameter and uses it again: the gradient that leaves the cast is
        that of all its uses. It is judged where it is accumulated.
        """
        other_dtype = any(
            one.reference.dtype != one.candidate.dtype
            for one in item.complete(Role.OUTPUT)
            if one.reference is not None and one.candidate is not None
        )
        return other_dtype and self._uses[pair.present.name] > 1

    @cached_property
    def _uses(self) -> Counter[str]:
        """How many operators of this step each parameter goes into."""
        return Counter(
            pair.present.name
            for item in self._step.of_kind(CallKind.OPERATOR)
            for pair in item.complete(Role.INPUT)
        )
