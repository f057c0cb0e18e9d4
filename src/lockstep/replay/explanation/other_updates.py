"""Hypotheses about optimizer updates: the candidate's own hyper-parameters, other ones, another gradient."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from lockstep.core.finding import Instead
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.other_settings import otherwise
from lockstep.replay.explanation.subject import Subject
from lockstep.replay.machine import HERE
from lockstep.replay.optimizer_update import UpdateRerun
from lockstep.replay.refusals import CannotReplay
from lockstep.replay.rerun import widened

_DECAYED_OTHERWISE = {
    "torch.optim.AdamW": "torch.optim.Adam",
    "torch.optim.Adam": "torch.optim.AdamW",
}
"""The class that couples weight decay with the gradient, and the one that does not."""


def updates(subject: Subject) -> Iterator[Prediction]:
    """The reference's update of this parameter, made otherwise."""
    left, right = subject.question.reference_call, subject.question.candidate_call
    if left is None or left.kind is not CallKind.OPTIMIZER:
        return
    if right is not None and right.site.op == left.site.op:
        words = otherwise(left, right)
        if words:
            yield from _made(
                subject, replace(left, arguments=right.arguments), f"updated with {words}"
            )
    for name, value in left.arguments.items():
        for other in _others(name, value):
            changed = replace(left, arguments={**left.arguments, name: other})
            yield from _made(subject, changed, f"updated with {name}={other} instead of {value}")
    op = _DECAYED_OTHERWISE.get(left.site.op)
    if op is not None and left.arguments.get("weight_decay"):
        changed = replace(left, site=replace(left.site, op=op))
        yield from _made(
            subject, changed, f"updated as by {op}: its weight decay is applied the other way"
        )


def _others(name: str, value: Any) -> Iterator[Any]:
    """What else a hyper-parameter may be."""
    if isinstance(value, bool):
        yield from (not value,) if name in ("nesterov", "amsgrad", "maximize") else ()
    elif isinstance(value, float) and value != 0.0:
        if name in ("weight_decay", "momentum", "dampening"):
            yield 0.0
        if name == "eps":
            yield from (other for other in (1e-12, 1e-8, 1e-7, 1e-6, 1e-5) if other != value)
        if name in ("lr", "weight_decay", "eps"):
            yield from (10 * value, value / 10, 2 * value, value / 2)


def _made(subject: Subject, call: Call, words: str) -> Iterator[Prediction]:
    record = subject.question.reference
    try:
        update = UpdateRerun(call)
        found = update.named(update.again(HERE), record)
    except CannotReplay:
        return
    if found is not None and tuple(found.shape) == subject.shape:
        yield Prediction(Instead.SETTING, words, widened(found))
