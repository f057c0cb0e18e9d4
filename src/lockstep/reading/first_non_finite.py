"""Where a step's first NaN or inf was made from numbers that were still fine.

A call is looked at in each of its parts: what forward makes of its inputs, what its backward makes of the gradients
that arrive (and of what forward left), what an optimizer makes of a parameter, its gradient and its state. A part is at
the source if a NaN or an inf comes out and none went in.

An inf that a script writes on purpose, as into a mask, is none: it comes with an infinite number among a call's
arguments or with the batch, and stays on purpose through whatever makes no NaN of it. And what never gets into a loss,
a gradient, a buffer, a parameter or an optimizer's state does no harm, as a `log(0)` that `where` leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from lockstep.core.content_notes import NoteKind
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role

_NOT_FINITE = {"inf", "nan", "infinity"}
_FORWARD_OUT = (Role.OUTPUT, Role.BUFFER)
_BACKWARD_OUT = (Role.GRAD_INPUT, Role.PARAM_GRAD)


class Part(Enum):
    """The part of a call: forward, backward, update."""

    BATCH = "the batch"
    FORWARD = "forward"
    BACKWARD = "backward"
    BEHIND_BACKWARD = "between backward and the optimizer"
    UPDATE = "the optimizer's update"


@dataclass(frozen=True, slots=True)
class Source:
    """A part of a call out of which a NaN or an inf came, and into which none went.

    Parameters
    ----------
    call, part
        What was at work.
    made
        The first tensor that is not finite.
    taken
        What went in.
    reads
        Whether all that went in was recorded; False where only the gradient that came out of a module is known.
    """

    call: Call
    part: Part
    made: TensorRecord
    taken: tuple[TensorRecord, ...]
    reads: bool = True

    @property
    def words(self) -> str:
        """Return the output in words, as in "3 inf of 128 elements (float16)"."""
        numbers, content = self.made.statistics, self.made.content
        counts = [] if numbers is None else [(numbers.nan_count, "NaN"), (numbers.inf_count, "inf")]
        found = " and ".join(f"{count} {name}" for count, name in counts if count)
        elements = "1 element" if content.numel == 1 else f"{content.numel} elements"
        return f"{found} of {elements} ({content.dtype})"


class Step(Protocol):
    """A step as this looks at it.

    calls: All of it, in order of time.
    losses: What backward began from.
    loss_scale: The factor of a gradient scaler, None where there is none.
    is_skipped: Whether a scaler left the update out.
    thrown_away: The time up to which the script threw away what the step computed, -1 where it did not.
    """

    @property
    def calls(self) -> Sequence[Call]: ...
    @property
    def losses(self) -> Sequence[TensorRecord]: ...
    @property
    def loss_scale(self) -> float | None: ...
    @property
    def is_skipped(self) -> bool: ...
    @property
    def thrown_away(self) -> int: ...


@dataclass(slots=True)
class _Unit:
    call: Call
    part: Part
    taken: tuple[TensorRecord, ...]
    made: tuple[TensorRecord, ...]
    reads: bool = True

    @property
    def bad_inputs(self) -> list[TensorRecord]:
        return [one for one in self.taken if not is_finite(one)]

    @property
    def bad_outputs(self) -> list[TensorRecord]:
        return [one for one in self.made if not is_finite(one)]

    @property
    def time(self) -> int:
        return min(one.sequence for one in self.made)


def sources_of(step: Step) -> list[Source]:
    """All parts of a step that a NaN or an inf came out of first and that do harm, in order of time.

    In a step that a gradient scaler skipped, nothing behind the unscaled loss is at fault: to try a factor that is
    too large, and to leave that step out, is how a scaler works. A factor of 1 or less is too large for nothing.
    """
    units, found = _found(step)
    if step.is_skipped and (step.loss_scale or 1.0) > 1.0:
        found = [
            unit
            for unit in found
            if unit.part in (Part.BATCH, Part.FORWARD) and not _scales_the_loss(step, unit)
        ]
    return _sources(step.calls, units, found)


def first_overflow(step: Step) -> Source | None:
    """Return the first part of a skipped step that made NaN or inf, also after the scaled loss."""
    units, found = _found(step)
    return next(iter(_sources(step.calls, units, found)), None)


def first_made(calls: Sequence[Call]) -> list[Source]:
    """All parts of a step that a NaN or an inf came out of first, in order of time, whether they do harm or not."""
    units = sorted(_units(calls), key=lambda unit: unit.time)
    return _sources(calls, units, list(_first_of(units)))


def _found(step: Step) -> tuple[list[_Unit], list[_Unit]]:
    """All parts in order of time, and those that a NaN or an inf came out of first and that do harm."""
    units = sorted(_units(step.calls), key=lambda unit: unit.time)
    units = [unit for unit in units if unit.time > step.thrown_away]
    if not any(unit.bad_outputs for unit in units):
        return units, []
    reaching = _reaching(step, units)
    return units, [unit for unit in _first_of(units) if _matters(unit, reaching)]


def _sources(calls: Sequence[Call], units: list[_Unit], found: list[_Unit]) -> list[Source]:
    return [
        Source(unit.call, unit.part, unit.bad_outputs[0], unit.taken, unit.reads)
        for unit in _innermost(found, units, calls)
    ]


def _units(calls: Sequence[Call]) -> Iterator[_Unit]:
    sent: dict[str, list[TensorRecord]] = {}
    summed: dict[str, TensorRecord] = {}
    last_loss = max((one.sequence for one in calls if one.kind is CallKind.LOSS), default=0)
    knows_operators = any(call.kind is CallKind.OPERATOR for call in calls)
    parameters: list[TensorRecord] = []
    for call in calls:
        if call.kind in (CallKind.OPTIMIZER, CallKind.INIT):
            parameters += call.with_role(Role.PARAM)
        elif call.kind in (CallKind.MODULE, CallKind.OPERATOR):
            for record in call.with_role(Role.PARAM_GRAD):
                sent.setdefault(record.name, []).append(record)
    for call in calls:
        if call.kind is CallKind.DATA:
            yield from _unit(call, Part.BATCH, (), call.with_role(Role.OUTPUT))
        elif call.kind is CallKind.OPTIMIZER:
            taken = call.with_role(Role.PARAM, Role.PARAM_GRAD, Role.STATE)
            made = call.with_role(Role.PARAM_AFTER, Role.STATE_AFTER)
            yield from _unit(call, Part.UPDATE, taken, made)
        elif call.kind is CallKind.GRADIENT:
            made = call.with_role(Role.PARAM_GRAD)
            taken = tuple(_before(made, sent, summed))
            yield from _unit(
                call, Part.BACKWARD, taken, made, reads=knows_operators and bool(taken)
            )
            summed.update({record.name: record for record in made})
        elif call.kind is not CallKind.LOSS:
            behind = 0 < last_loss < call.sequence
            yield from _of_call(call, _held(call, parameters), behind=behind)


def _before(
    made: Iterable[TensorRecord],
    sent: dict[str, list[TensorRecord]],
    summed: dict[str, TensorRecord],
) -> Iterator[TensorRecord]:
    """What a sum of gradients was added up from."""
    for record in made:
        yield from (one for one in sent.get(record.name, ()) if one.sequence < record.sequence)
        if record.name in summed:
            yield summed[record.name]


def _held(call: Call, parameters: Iterable[TensorRecord]) -> tuple[TensorRecord, ...]:
    """The parameters that a module reads, which are not among its arguments."""
    if call.kind is not CallKind.MODULE:
        return ()
    path = f"{call.site.module}." if call.site.module else ""
    return tuple(one for one in parameters if one.name.startswith(path))


def _of_call(call: Call, held: tuple[TensorRecord, ...], *, behind: bool) -> Iterator[_Unit]:
    inputs = (*call.with_role(Role.INPUT), *held)
    forward = tuple(one for one in call.records if one.role in _FORWARD_OUT)
    yield from _unit(call, Part.BEHIND_BACKWARD if behind else Part.FORWARD, inputs, forward)
    came = call.with_role(Role.GRAD_OUTPUT)
    left = tuple(one for one in call.records if one.role in _BACKWARD_OUT)
    yield from _unit(call, Part.BACKWARD, (*came, *inputs, *forward), left, reads=bool(came))


def _unit(
    call: Call,
    part: Part,
    taken: tuple[TensorRecord, ...],
    made: tuple[TensorRecord, ...],
    *,
    reads: bool = True,
) -> Iterator[_Unit]:
    if made:
        yield _Unit(call, part, taken, made, reads)


def _first_of(units: Iterable[_Unit]) -> Iterator[_Unit]:
    """Units out of which comes what did not go in."""
    on_purpose: set[int] = set()
    for unit in units:
        bad = unit.bad_outputs
        if not bad:
            continue
        inputs = unit.bad_inputs
        makes_nan = any(_nan_count(one) for one in bad)
        if any(_nan_count(one) or one.content.id not in on_purpose for one in inputs):
            continue
        meant = bool(inputs) or unit.part is Part.BATCH or _has_infinite(unit.call.arguments)
        if meant and not makes_nan:
            on_purpose.update(one.content.id for one in bad)
        else:
            yield unit


def _reaching(step: Step, units: Sequence[_Unit]) -> set[int]:
    """Contents that are not finite and get into a loss, a gradient, a buffer or an update."""
    found = {one.content.id for one in step.losses if not is_finite(one)}
    for unit in units:
        for one in unit.bad_outputs:
            if one.role is not Role.OUTPUT or unit.part is Part.BEHIND_BACKWARD:
                found.add(one.content.id)
    for unit in reversed(units):
        if any(one.content.id in found for one in unit.bad_outputs):
            found.update(one.content.id for one in unit.bad_inputs)
    return found


def _matters(unit: _Unit, reaching: set[int]) -> bool:
    return any(one.content.id in reaching for one in unit.bad_outputs)


def _scales_the_loss(step: Step, unit: _Unit) -> bool:
    """Whether what comes out is a loss times a scaler's factor."""
    losses = {one.content.id for one in step.losses}
    scale = step.loss_scale
    return any(one.content.id in losses for one in unit.made) and any(
        one.content.numel == 1 and one.statistics is not None and one.statistics.maximum == scale
        for one in unit.taken
    )


def _innermost(
    found: Sequence[_Unit], units: Sequence[_Unit], calls: Sequence[Call]
) -> list[_Unit]:
    """Without modules inside of which a NaN or an inf is seen too: there stands what made it."""
    parents = {call.id: call.parent for call in calls}
    around: set[tuple[int, Part]] = set()
    for unit in units:
        at = parents.get(unit.call.id, -1) if unit.bad_outputs else -1
        while at >= 0:
            around.add((at, unit.part))
            at = parents.get(at, -1)
    return [unit for unit in found if (unit.call.id, unit.part) not in around]


def _nan_count(record: TensorRecord) -> int:
    return 0 if record.statistics is None else record.statistics.nan_count


def _has_infinite(arguments: dict[str, Any]) -> bool:
    return any(not math.isfinite(one) for one in numbers_in(arguments))


def is_finite(record: TensorRecord) -> bool:
    """Whether a tensor has neither NaN nor inf, as far as is known; memory as `torch.empty` finds it says nothing."""
    numbers = record.statistics
    if numbers is None or record.content.told.kind is NoteKind.UNWRITTEN:
        return True
    return not (numbers.nan_count or numbers.inf_count)


def numbers_in(value: Any) -> Iterator[float]:
    """The numbers that a script wrote as arguments of a call, nested as they may be; NaN and inf by their names."""
    if isinstance(value, str):
        if value.lower().lstrip("-") in _NOT_FINITE:
            yield float(value)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield float(value) if abs(value) < 1e308 else math.copysign(math.inf, value)
    elif isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(one)
