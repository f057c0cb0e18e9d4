"""Gradients that are zero altogether."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lockstep.recordings import Call, CallKind, Family, Role, TensorRecord, family_of
from lockstep_watch.observed import Hit, ObservedStep, norm_of

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)|^\d+(?=\.)")


def zero_gradient(step: ObservedStep, *, steps: int = 3) -> Iterator[Hit]:
    """Every element of a parameter's gradient is zero.

    Formula: all elements are 0, while the loss is above a thousandth of its first value. Not counted: a bias at
    whose result gradients cancel (the last one of a critic), and one of several branches with names that differ in
    a number alone, of which others get a gradient (experts).

    Usual cause: dead ReLUs after it, a product with zero, an argmax or a rounding in the way, fp16 gradients that are
    flushed to zero.

    Cure: look at the activation after it; in fp16 a larger loss scale.

    Source: MindInsight's debugger, watchpoint "tensor all zero".
    """
    for name, (call, record) in step.gradients.items():
        is_zero = norm_of(record) == 0.0 and record.content.numel > 0 and not step.has_learned
        is_zero = is_zero and not _is_by_construction(step, name, record)
        if step.memory.in_a_row("zero", name, is_zero) >= steps:
            words = f"the gradient of {name} is zero in all {record.content.numel} elements"
            yield step.hit(name, words, value=0.0, call=call)


def _is_by_construction(step: ObservedStep, name: str, record: TensorRecord) -> bool:
    users = list(_users(step, name))
    if users and all(_is_given_nothing(call) for call in users):
        return True
    if len(record.shape) == 1 and any(_cancels(call, name) for call in users):
        return True
    return _is_passed_by(step, name)


def _users(step: ObservedStep, name: str) -> Iterator[Call]:
    """Calls that take a parameter: operators, or its module where no operators are recorded."""
    path = name.rpartition(".")[0]
    for call in step.calls:
        if call.kind is CallKind.OPERATOR:
            if any(one.name == name for one in call.with_role(Role.INPUT)):
                yield call
        elif call.kind is CallKind.MODULE and not step.operators and call.site.module == path:
            yield call


def _is_given_nothing(call: Call) -> bool:
    given = call.with_role(Role.INPUT)
    return bool(given) and given[0].content.numel == 0


def _cancels(call: Call, name: str) -> bool:
    """Whether gradients arrive at what a bias is added to, so that it is their sum that is zero."""
    adds = family_of(call.site.op) in (Family.BILINEAR, Family.ADDITIVE)
    is_bias = (call.kind is CallKind.OPERATOR and adds) or (
        call.kind is CallKind.MODULE and name.endswith("bias") and adds
    )
    return is_bias and any(norm_of(one) for one in call.with_role(Role.GRAD_OUTPUT))


def _is_passed_by(step: ObservedStep, name: str) -> bool:
    """Whether it is one of several branches with one input, of which another gets a gradient."""
    for found in _NUMBER.finditer(name):
        before, behind = name[: found.start()], name[found.end() :]
        pattern = re.compile(rf"{re.escape(before)}(\d+){re.escape(behind)}")
        others = [
            before + match[1]
            for other, (_, record) in step.gradients.items()
            if other != name and norm_of(record) and (match := pattern.fullmatch(other))
        ]
        own = _given(step, before + found[0])
        if own and any(own & _given(step, other) for other in others):
            return True
    return False


def _given(step: ObservedStep, path: str) -> set[int]:
    """What a module is given, as contents."""
    return {
        record.content.id
        for call in step.calls_of(CallKind.MODULE)
        if call.site.module == path
        for record in call.with_role(Role.INPUT)
    }
