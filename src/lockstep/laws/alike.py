"""Whether both runs of a step are one program on the same numbers: running one of them again then answers for both."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lockstep.core.devices import device_of
from lockstep.core.dtypes import unit_roundoff
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.draws import drops, is_drawn, kept_elements
from lockstep.laws.own_numbers import OwnNumbers
from lockstep.laws.step_events import (
    RESULTS,
    Backward,
    Body,
    Enters,
    Event,
    Operator,
    Source,
    StepProgram,
    Taken,
    is_whole,
)

Numbers = Mapping[int, torch.Tensor]
"""By number of a content: what was run again of it."""


def are_one(left: StepProgram, right: StepProgram, numbers: tuple[OwnNumbers, OwnNumbers]) -> bool:
    """Whether two programs are the same calls with the same numbers of the calls, on equal numbers.

    All that running a program again takes is compared: operators, their arguments and conditions, where their tensors
    come from, dtypes and shapes of results, what enters, what was drawn, and what was decided by rounded numbers.

    numbers: What is known of either run's tensors, with what the step before left.
    """
    return (
        len(left.events) == len(right.events)
        and all(map(_is_event, left.events, right.events))
        and _enter_alike(left.sources, right.sources, numbers)
        and left.buffers == right.buffers
        and left.gradients.keys() == right.gradients.keys()
        and left.unplaced == right.unplaced
        and _states_alike(left, right, numbers)
    )


def called_alike(
    left: StepProgram, right: StepProgram, carried: Numbers, before: Numbers
) -> dict[int, torch.Tensor]:
    """What the left program leaves, by the numbers of the right one's contents; the programs are one.

    carried: What the left one leaves, by number of its contents.
    before: What the right one took from the step before.
    """
    numbers = {
        one.content.id: two.content.id
        for ours, theirs in zip(_left(left), _left(right), strict=True)
        for one, two in zip(ours, theirs, strict=True)
    }
    stay = {id(tensor) for tensor in carried.values()}
    found = {number: tensor for number, tensor in before.items() if id(tensor) in stay}
    known = {numbers[one]: tensor for one, tensor in carried.items() if one in numbers}
    return {**found, **known}


def may_hold_read_numbers(left: StepProgram, right: StepProgram) -> bool:
    """Whether an argument of one program alone may be a number that Python took out of a rounded tensor.

    Such a number is another one in the other run, and has more than six digits, unlike what people write: of single
    precision by chance once in thousands of times, of bfloat16 only where the two are four roundings apart.
    """
    apart = _plain_numbers(left) ^ _plain_numbers(right)
    return any(math.isfinite(one) and float(f"{one:.6g}") != one for one in apart)


def _plain_numbers(program: StepProgram) -> frozenset[float]:
    """Python's floating-point numbers among the arguments of a program's calls and updates."""
    called = (call for one in program.operators for call in (one.call, *one.call.body))
    calls = (*called, *(one.call for one in program.updates))
    return frozenset(number for call in calls for number in _floats_in(call.arguments))


def _floats_in(value: Any) -> Iterator[float]:
    if isinstance(value, float):
        yield value
    elif isinstance(value, (dict, list)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _floats_in(one)


def _left(program: StepProgram) -> Iterator[Sequence[TensorRecord]]:
    """What a program leaves to the next step: what updates made, and results that stand at the end."""
    for update in program.updates:
        yield update.call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER)
    nodes = (*program.buffers.values(), *program.made_of_gradients)
    yield [program.results[node] for node in nodes]


def _is_event(one: Event, two: Event) -> bool:
    if isinstance(one, Operator) and isinstance(two, Operator):
        return _is_operator(one, two)
    if isinstance(one, Backward) and isinstance(two, Backward):
        return (
            _taken(one.loss) == _taken(two.loss)
            and _taken(one.gradient) == _taken(two.gradient)
            and (one.anew, one.reached, one.onto) == (two.anew, two.reached, two.onto)
        )
    if isinstance(one, (Operator, Backward)) or isinstance(two, (Operator, Backward)):
        return False
    return (
        _is_call(one.call, two.call)
        and _taken(one.parameter) == _taken(two.parameter)
        and _taken(one.gradient) == _taken(two.gradient)
        and (one.name, one.made, one.kept) == (two.name, two.made, two.kept)
    )


def _is_operator(one: Operator, two: Operator) -> bool:
    return (
        _is_call(one.call, two.call)
        and not (one.through or two.through)
        and one.taken.keys() == two.taken.keys()
        and all(_taken(each) == _taken(two.taken[index]) for index, each in one.taken.items())
        and _gives_alike(one.call, two.call)
        and _is_body(one.body, two.body)
    )


def _is_body(one: Body | None, two: Body | None) -> bool:
    """Whether custom functions do the same, forward and backward."""
    if one is None or two is None:
        return one is two
    return (
        (one.gives, one.sends) == (two.gives, two.sends)
        and len(one.calls) == len(two.calls)
        and all(map(_is_operator, one.calls, two.calls))
    )


def _is_call(one: Call, two: Call) -> bool:
    return (
        (one.id, one.kind, one.site.op, one.rank) == (two.id, two.kind, two.site.op, two.rank)
        and _is_argument(one.arguments, two.arguments)
        and one.conditions == two.conditions
        and _state(one) == _state(two)
    )


def _is_argument(one: Any, two: Any) -> bool:
    """Whether plain arguments are equal; devices are, since programs are run again on one."""
    if type(one) is not type(two):
        return False
    if isinstance(one, dict):
        return one.keys() == two.keys() and all(
            _is_argument(value, two[key]) for key, value in one.items()
        )
    if isinstance(one, list):
        return len(one) == len(two) and all(map(_is_argument, one, two))
    if isinstance(one, str) and device_of(one) is not None:
        return device_of(two) is not None
    return bool(one == two)


def _state(call: Call) -> Any:
    """What tells from which state of its generator a call draws; never equal where nothing does."""
    if call.random_state is None:
        return None
    return call.random_state.digest or object()


def _taken(taken: Taken | None) -> Any:
    if taken is None:
        return None
    layout = taken.record.layout  # kernels add up in another order where axes lie in another one
    order = None if layout is None else layout.strides
    return (taken.link, taken.detached, order, *_form(taken.record))


def _form(record: TensorRecord) -> tuple[Any, ...]:
    return record.index, record.dtype, record.shape


def _gives_alike(one: Call, two: Call) -> bool:
    """Whether results are of one dtype and shape, and equal where they are given to a program that is run again."""
    pairs = list(zip(one.with_role(*RESULTS), two.with_role(*RESULTS), strict=False))
    if len(one.with_role(*RESULTS)) != len(two.with_role(*RESULTS)):
        return False
    if any((a.role, *_form(a)) != (b.role, *_form(b)) for a, b in pairs):
        return False
    if drops(one) and drops(two):
        return torch.equal(kept_elements(one), kept_elements(two))
    given = is_drawn(one) or is_drawn(two)
    return all(_equal(a, b) for a, b in pairs if given or not unit_roundoff(a.dtype))


def _equal(one: TensorRecord, two: TensorRecord) -> bool:
    return one.digest is not None and one.digest == two.digest


def _enter_alike(
    left: Mapping[Source, TensorRecord],
    right: Mapping[Source, TensorRecord],
    numbers: tuple[OwnNumbers, OwnNumbers],
) -> bool:
    return left.keys() == right.keys() and all(
        source.kind is Enters.GRADIENT or _number_alike(one, right[source], numbers)
        for source, one in left.items()
    )


def _number_alike(
    one: TensorRecord, two: TensorRecord, numbers: tuple[OwnNumbers, OwnNumbers]
) -> bool:
    """Whether a tensor that enters is the same: saved whole and equal, or left by steps that were one."""
    if _form(one)[1:] != _form(two)[1:]:
        return False
    if is_whole(one) and is_whole(two):
        return _equal(one, two)
    ours, theirs = (
        known.carried.get(record.content.id)
        for known, record in zip(numbers, (one, two), strict=True)
    )
    return ours is not None and ours is theirs and not (is_whole(one) or is_whole(two))


def _states_alike(
    left: StepProgram, right: StepProgram, numbers: tuple[OwnNumbers, OwnNumbers]
) -> bool:
    """Whether optimizers begin with the same states."""
    pairs: Iterable[tuple[Sequence[TensorRecord], Sequence[TensorRecord]]] = (
        (one.call.with_role(Role.STATE), two.call.with_role(Role.STATE))
        for one, two in zip(left.updates, right.updates, strict=True)
    )
    return all(
        len(ours) == len(theirs)
        and all(
            one.name == two.name and _number_alike(one, two, numbers)
            for one, two in zip(ours, theirs, strict=True)
        )
        for ours, theirs in pairs
    )
