"""Hypotheses that a tensor of an earlier call stands in the place of this one's: a buffer that was not refreshed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Instead
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.core.text import listed
from lockstep.replay.calls.rebuild import Rebuilt
from lockstep.replay.calls.recorded_tensors import load
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.explanation.argument_names import tensor_name
from lockstep.replay.explanation.changed_inputs import arriving, with_other
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Mismatch


def stale(mismatch: Mismatch) -> Iterator[Prediction]:
    """Each input, all inputs, or the gradient that arrives, of an earlier call."""
    built = mismatch.rebuilt
    if built is None or mismatch.base is None:
        return
    for earlier in mismatch.question.earlier:
        when = _when(mismatch, earlier)
        others = _others(built, earlier)
        yield from _before_the_update(mismatch, built, earlier, others)
        for index, other in others.items():
            name = tensor_name(built, built.inputs[index])
            yield from mismatch.predicted(
                Instead.INPUT,
                f"the same operator with {name} of {when}",
                rebuilt=with_other(built, {index: other}),
            )
        if len(others) > 1:
            words = f"the same operator with all its inputs of {when}"
            yield from mismatch.predicted(Instead.INPUT, words, rebuilt=with_other(built, others))
        if mismatch.backward:
            yield from _stale_gradient(mismatch, earlier, when)


def _before_the_update(
    mismatch: Mismatch, built: Rebuilt, earlier: Call, others: Mapping[int, torch.Tensor]
) -> Iterator[Prediction]:
    """All parameters of the call as they were before the last update: a copy or a cast of them that was kept."""
    if earlier.step != mismatch.question.candidate.step - 1:
        return
    updated = mismatch.question.updated
    kept = {index: one for index, one in others.items() if built.inputs[index].name in updated}
    if kept:
        names = " and ".join(
            listed([tensor_name(built, built.inputs[index]) for index in kept]).rsplit(", ", 1)
        )
        words = f"the result of {names} before the last update"
        yield from mismatch.predicted(Instead.INPUT, words, rebuilt=with_other(built, kept))


def _stale_gradient(mismatch: Mismatch, earlier: Call, when: str) -> Iterator[Prediction]:
    for record in earlier.with_role(Role.GRAD_OUTPUT)[:1]:
        other = _loaded(record)
        if other is not None:
            change = arriving(partial(_replaced, other))
            words = f"the same backward with the incoming gradient of {when}"
            yield from mismatch.predicted(Instead.INPUT, words, change=change)


def _others(built: Rebuilt, earlier: Call) -> dict[int, torch.Tensor]:
    """Inputs of an earlier call that are not this one's, by index."""
    found = {}
    theirs = {record.index: record for record in earlier.with_role(Role.INPUT)}
    for index, record in built.inputs.items():
        other = theirs.get(index)
        same = other is not None and (other.shape, other.dtype) == (record.shape, record.dtype)
        if other is None or not same or other.digest == record.digest:
            continue
        tensor = _loaded(other)
        if tensor is not None and unit_roundoff(other.dtype) > 0:
            found[index] = tensor
    return found


def _when(mismatch: Mismatch, earlier: Call) -> str:
    if earlier.step != mismatch.question.candidate.step:
        return f"the step before ({earlier.step})"
    return f"an earlier call ({earlier.site})"


def _loaded(record: TensorRecord) -> torch.Tensor | None:
    try:
        return load(record)
    except CannotReplay:
        return None


def _replaced(other: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    return other.to(tensor.dtype) if other.shape == tensor.shape else tensor
