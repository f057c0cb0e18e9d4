"""The aligned calls of one step as a judge sees them: inputs, outputs, settings that differ."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from lockstep.align.settings import (
    Setting,
    chosen_otherwise,
    differing_settings,
    given_in_one,
    rounded_apart,
)
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.operators import Family, agreed_name, family_of
from lockstep.core.site import CallKind, Role
from lockstep.judge.protocol import Operation
from lockstep.locate.flow.ledger import Ledger
from lockstep.measure.measured_pair import Measured, pooled


class Operations:
    """Operations of one aligned step, each put together once.

    step: The aligned step.
    ledger: Measures the pairs.
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
        arrived = (measure(pair) for pair in item.complete(Role.INPUT))
        inputs = [one for one in arrived if one.known or not one.means_nothing]
        if item.reference.kind is CallKind.MODULE:
            pairs = self._parameters_of(item)
            below = [measure(pair) for pair in pairs]
            if all(one.numel for one in below):  # else other ranks have all that is computed with
                inputs.extend(_together(below))
        outputs = item.complete(Role.OUTPUT) if backward else ()
        gradients = item.complete(Role.GRAD_OUTPUT) if backward else ()
        settings = self.settings_of(item)
        apart = self._rounded_apart(settings, item) if settings else 0.0
        return Operation(
            op=agreed_name(item.reference.site.op, item.candidate.site.op),
            inputs=tuple(inputs),
            outputs=tuple(measure(pair) for pair in outputs),
            gradients=tuple(measure(pair) for pair in gradients),
            arguments=item.reference.arguments,
            setting_differs=not apart and any(one.tells_numbers for one in settings),
            numbers_apart=apart,
            calls=item.calls,
        )

    def _parameters_of(self, item: Aligned) -> list[Pair]:
        """Parameters of a module; other models may stand beside one of a single layer, which has no path."""
        path, op = item.reference.site.module, item.reference.site.op
        pairs = self._step.parameters_below.get(path, [])
        own = [pair for pair in pairs if "." not in pair.present.name]
        is_layer = not path and family_of(op) is not Family.UNKNOWN
        return own if is_layer and own else pairs

    def of_owner(self, path: str) -> Operation:
        """The module that owns a parameter as one operator, over all its calls.

        Where its own calls are not seen in both runs, as inside of compiled code, the innermost module around it.
        """
        where, operations = self._owner(path)
        if not operations:
            return Operation(op="")
        return replace(
            operations[0],
            inputs=tuple(item for one in operations for item in one.inputs),
            gradients=tuple(item for one in operations for item in one.gradients),
            beside=() if where == path else self.gradients_below(where),
        )

    def gradients_around(self, path: str, before: int) -> list[Measured]:
        """Gradients that calls sent on inside of the module that `of_owner` gives, where that is a wider one.

        A gradient that is judged against the wider module follows from these, too. `before` is the moment of it.
        """
        where, operations = self._owner(path)
        if where == path or not operations:
            return []
        within = f"{where}." if where else ""
        return [
            self._ledger.measure(pair)
            for item in self._step.of_kind(CallKind.MODULE, CallKind.OPERATOR)
            if item.reference.site.module.startswith(within)
            for pair in item.complete(Role.GRAD_INPUT)
            if pair.present.sequence < before
        ]

    def _owner(self, path: str) -> tuple[str, list[Operation]]:
        """The innermost module on the way to a path that gradients are seen to enter, and its calls."""
        where = path
        while True:
            items = self.around(where)
            operations = [self.of(item, backward=True) for item in items]
            where = items[0].reference.site.module if items else ""
            if not where or any(one.gradients for one in operations):
                return where, operations
            where = where.rpartition(".")[0]  # under no_grad, as what a checkpoint runs again later

    def around(self, path: str) -> Sequence[Aligned]:
        """Calls of the innermost module on the way to a path that is called in both runs."""
        while path and path not in self._modules_by_path:
            path = path.rpartition(".")[0]
        return self.modules_at(path)

    def gradients_below(self, path: str) -> tuple[Measured, ...]:
        """The gradients of all parameters of a module."""
        return tuple(
            self._ledger.measure(pair)
            for name, pair in self._accumulated.items()
            if not path or name.startswith(f"{path}.")
        )

    @cached_property
    def _accumulated(self) -> dict[str, Pair]:
        """The last gradient of each parameter."""
        return {
            pair.present.name: pair
            for item in self._step.of_kind(CallKind.GRADIENT)
            for pair in item.complete(Role.PARAM_GRAD)
        }

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
        """Return plain arguments that have a different value in the candidate."""
        key = item.reference.id
        known = self._settings.get(key)
        if known is None:
            same_operator = item.calls.method != "same place"
            arguments = item.reference.arguments, item.candidate.arguments
            known = differing_settings(*arguments) if same_operator else []
            self._settings[key] = known
        return known

    def given_otherwise(self, item: Aligned) -> list[Setting]:
        """Return the arguments that differ between two calls, or that one of them lacks."""
        if item.reference.site.op != item.candidate.site.op:
            return self.settings_of(item)
        alone = given_in_one(item.reference.arguments, item.candidate.arguments)
        return [*self.settings_of(item), *alone]

    def chosen_otherwise(self, item: Aligned) -> tuple[Setting, ...]:
        """Return those that the script chose: neither dtypes nor numbers that carry the noise of tensors."""
        if self._rounded_apart(self.settings_of(item), item):
            return ()
        return tuple(chosen_otherwise(item.reference, item.candidate))

    def _rounded_apart(self, settings: Sequence[Setting], item: Aligned) -> float:
        if not self._ledger.any_noise:
            return 0.0
        return rounded_apart(settings, self._ledger.numbers_read(item.reference.step))

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


def of_list_element(operation: Operation, pair: Pair) -> Operation:
    """Return what one result of an operator over lists is made of: `torch._foreach_*` go element by element.

    A list's elements are recorded as `args.0.1` and `result.1`; a single tensor, as `args.1`, goes into each result.
    One that is written to, as the flag of a gradient scaler, is made of all elements.
    """
    is_single = _is_argument(pair) and len(pair.present.name.split(".")) <= _SINGLE_ARGUMENT
    if "_foreach_" not in operation.op or is_single:
        return operation
    at = pair.present.name.rpartition(".")[2]
    inputs = [one for one in operation.inputs if _list_index(one) in ("", at)]
    return replace(operation, inputs=tuple(inputs))


def _is_argument(pair: Pair) -> bool:
    """Whether a result is an argument that the operator has written to."""
    return not pair.present.name.startswith("result")


def _list_index(measured: Measured) -> str:
    parts = measured.pair.present.name.split(".")
    return parts[-1] if len(parts) > _SINGLE_ARGUMENT else ""


_SINGLE_ARGUMENT = 2
"""Parts of the name of an argument that is no list, as `args.1`."""

_FEW = 4
"""Parameters that a layer has at most; a module with more holds layers."""


def _together(parameters: list[Measured]) -> list[Measured]:
    """Parameters of a layer one by one, those of a larger module as one tensor.

    A parameter whose true gradient is zero is moved by noise, in a layer as in a network; of a network it is a small
    part.
    """
    if len(parameters) <= _FEW:
        return parameters
    together = pooled(parameters)
    return parameters[:1] if together is None else [together]
