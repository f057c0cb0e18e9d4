"""Formulas that may give a recorded tensor; the writer tries them before it stores the bytes.

A formula here is a guess at how torch computes: a product, a sum of gradients, an optimizer's update. The writer holds
it against the bits (`lockstep.store.derived.search`), so a wrong guess costs some time and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any, cast

from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.tensors.contents import UNRECORDED, Contents
from lockstep.core.formulas import Formula, Operation, Stored
from lockstep.core.site import CallKind

_OPERATORS = {
    "add": "add",
    "sub": "sub",
    "subtract": "sub",
    "mul": "mul",
    "multiply": "mul",
    "div": "div",
    "divide": "div",
    "true_divide": "div",
}
"""Operators of torch, and of Python without their underscores, by what they compute of two operands."""


class Derivations:
    """Guesses formulas for the tensors of one step, from the contents met before.

    contents: Tells where a content is stored.
    """

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._sent: dict[str, list[int]] = {}
        self._sums: dict[str, int] = {}

    def forget(self) -> None:
        """Drop what belongs to the step that ends."""
        self._sent.clear()
        self._sums.clear()

    def begun(self, call: OpenCall) -> None:
        """An operator begins: what it gets may be operands."""
        if call.kind is CallKind.OPERATOR:
            names = [name for name, _ in call.inputs]
            call.known = dict(zip(names, [content for _, content in call.contents], strict=True))

    def output(self, call: OpenCall) -> Formula | None:
        """Note the formula that an operator with one result may have computed."""
        operands = self._operands(call)
        return None if operands is None else _elementwise(call.op, *operands)

    def came(self, call: OpenCall, index: int, content: int) -> None:
        """The gradient of an output has arrived at a call."""
        if index == 0 and call.known:
            call.known["grad"] = content

    def gradient(self, call: OpenCall, index: int) -> Formula | None:
        """Note the formula of a gradient that an operator may send to an input."""
        arriving = self._contents.stored((call.known or {}).get("grad", UNRECORDED))
        operands = None if arriving is None else self._operands(call)
        if arriving is None or operands is None:
            return None
        first, second = operands
        match _name(call.op):
            case "mul" | "multiply":
                return Operation("mul", (arriving, second if index == 0 else first))
            case "pow" if second in (2.0, 3.0):
                power = _power(first, int(second) - 1)
                return Operation("mul", (arriving, Operation("mul", (power, second))))
        return None

    def sent(self, call: OpenCall, parameter: str, content: int) -> None:
        """An operator has sent a gradient to a parameter."""
        if call.known:
            self._sent.setdefault(parameter, []).append(content)

    def sum_of_sent(self, parameter: str) -> Formula | None:
        """Note that a parameter's gradient may be its earlier value plus all that was sent to it."""
        parts = [self._contents.stored(content) for content in self._sent.pop(parameter, [])]
        before = self._contents.stored(self._sums.get(parameter, UNRECORDED))
        if not parts or None in parts or (before is None and len(parts) == 1):
            return None
        total = reduce(lambda left, right: Operation("add", (left, right)), cast(list[Any], parts))
        return total if before is None else Operation("add", (before, total))

    def summed(self, parameter: str, content: int) -> None:
        """Such a sum was recorded."""
        if self._contents.keeps_tensors:
            self._sums[parameter] = content

    def update(self, call: OpenCall) -> dict[str, Formula]:
        """Note the formulas of an optimizer's update of a parameter ("param") and its states, by name.

        call: The update, whose `known` are the contents that it started from.
        """
        if not self._contents.keeps_tensors:
            return {}
        before = {
            name: self._contents.stored(content) for name, content in (call.known or {}).items()
        }
        known = {name: place for name, place in before.items() if place is not None}
        guess = _UPDATES.get(_name(call.op))
        if guess is None:
            return {}
        try:
            return guess(known, call.arguments)
        except (KeyError, TypeError, ValueError):  # other state, other options
            return {}

    def _operands(self, call: OpenCall) -> tuple[Formula, Formula] | None:
        """The two operands of an operator that has exactly two, both stored or numbers."""
        if not call.known or len(call.known.keys() - {"grad"}) + len(call.arguments) != 2:
            return None
        found: dict[str, Formula] = {}
        for name, content in call.known.items():
            place = self._contents.stored(content)
            if place is not None and name != "grad":
                found[name] = place
        for name, value in call.arguments.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                found[name] = float(value)
        if found.keys() != {"args.0", "args.1"}:
            return None
        return found["args.0"], found["args.1"]


def _name(op: str) -> str:
    return op.rpartition(".")[2].strip("_")


def _elementwise(op: str, first: Formula, second: Formula) -> Formula | None:
    name = _name(op)
    if name == "pow" and second in (2.0, 3.0):
        return _power(first, int(second))
    return Operation(_OPERATORS[name], (first, second)) if name in _OPERATORS else None


def _power(base: Formula, exponent: int) -> Formula:
    power = base
    for _ in range(exponent - 1):
        power = Operation("mul", (power, base))
    return power


# --- updates ---------------------------------------------------------------------------------------------------------


def _fma(factor: Formula, other: Formula, summand: Formula) -> Formula:
    return Operation("fma", (factor, other, summand))


def _mul(factor: Formula, other: Formula) -> Formula:
    return Operation("mul", (factor, other))


def _adam(before: Mapping[str, Stored], options: Mapping[str, Any]) -> dict[str, Formula]:
    """The moments of Adam and AdamW, as `torch.optim.adam._single_tensor_adam` has them.

    The parameter itself would take a dozen operations more, which is slower to read than its bytes.
    """
    (beta1, beta2), decay = options["betas"], options["weight_decay"]
    gradient: Formula = before["grad"]
    if decay and not options["decoupled_weight_decay"]:
        gradient = _fma(before["param"], decay, gradient)
    average: Formula = before.get("exp_avg", 0.0)
    square: Formula = before.get("exp_avg_sq", 0.0)
    return {
        "exp_avg": _fma(Operation("sub", (gradient, average)), 1 - beta1, average),
        "exp_avg_sq": _fma(_mul(gradient, 1 - beta2), gradient, _mul(square, beta2)),
    }


def _sgd(before: Mapping[str, Stored], options: Mapping[str, Any]) -> dict[str, Formula]:
    """SGD with momentum, as `torch.optim.sgd._single_tensor_sgd` has it."""
    parameter = before["param"]
    change: Formula = before["grad"]
    if options["weight_decay"]:
        change = _fma(parameter, options["weight_decay"], change)
    made: dict[str, Formula] = {}
    if options["momentum"] and "momentum_buffer" in before:
        buffer = _fma(
            change, 1 - options["dampening"], _mul(before["momentum_buffer"], options["momentum"])
        )
        made["momentum_buffer"] = buffer
        change = _fma(buffer, options["momentum"], change) if options["nesterov"] else buffer
    made["param"] = _fma(change, -options["lr"], parameter)
    return made


_Guess = Callable[[Mapping[str, Stored], Mapping[str, Any]], dict[str, Formula]]
_UPDATES: dict[str, _Guess] = {"Adam": _adam, "AdamW": _adam, "SGD": _sgd}
