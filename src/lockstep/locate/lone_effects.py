"""Find the effect of calls that only one run makes: does anything trained depend on them?

A call that one run alone makes and that changes numbers is seen where its results arrive, and judged there. Two kinds
are not: a call that returned just what it was given in the recorded steps (clipping that did not bite, a mask with
nothing to mask), which is a difference of set-up; and one whose results reach nothing that is trained (a metric, a
check), which is none. Which is which is told by the data flow of the run alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep, regions_of
from lockstep.core.dtypes import largest_finite
from lockstep.core.operators import (
    BY_HAND,
    Family,
    Operator,
    Trait,
    canonical_name,
    family_of,
    operator_of,
    writes_in_place,
)
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Phase, Role


class Idiom(str, Enum):
    """The common name of calls that belong together."""

    NORM_CLIPPING = "gradient clipping by norm"
    VALUE_CLIPPING = "gradient clipping by value"
    LOSS_SCALING = "loss scaling"
    ZEROING = "zeroing of gradients"
    GRADIENT_SCALING = "scaling of gradients"
    GRADIENT_CHANGE = "change of gradients"
    WEIGHT_DECAY = "weight decay by hand"
    WEIGHT_CLIPPING = "clipping of weights"
    WEIGHT_CHANGE = "change of weights"
    HAND_UPDATE = "update by hand"
    AVERAGING = "moving average of weights"
    READING = "reading of gradients"


class Effect(Enum):
    """The effect of a call without partner on the training."""

    REACHES = "its results flow into what is trained, and are judged there"
    IDLE = "it works on what is trained, and returned what it was given"
    AROUND = "it is around calls that are judged, or reach what is trained"
    BESIDE = "nothing trained depends on it"


@dataclass(frozen=True, slots=True)
class LoneEffect:
    """One call without partner, its effect, and its name together with the calls it takes from."""

    call: Call
    is_candidate: bool
    effect: Effect
    idiom: Idiom | None = None
    works_on: Target | None = None


class Target(Enum):
    """The tensors that a call works on."""

    GRADIENT = "gradient"
    PARAMETER = "parameter"


_UNSCALES = "ampnonfinitecheckandunscale"
_GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD)
_CALLS = frozenset({CallKind.OPERATOR, CallKind.MODULE})


def _name_all(
    call: Call, idiom: Idiom, named: dict[int, Idiom], next_to: Callable[[Call], Iterator[Call]]
) -> None:
    """Name a call and all that it leads to, one after the other; what has a name keeps it."""
    waiting = [call]
    while waiting:
        one = waiting.pop()
        if one.id not in named:
            named[one.id] = idiom
            waiting.extend(next_to(one))


def lone_effects(step: AlignedStep) -> list[LoneEffect]:
    """Every call of a module or operator without partner, with its effect, in order of time."""
    sides = [_Side(step, is_candidate=is_candidate) for is_candidate in (False, True)]
    return [
        one
        for side, other in zip(sides, reversed(sides), strict=True)
        for one in side.effects(other)
    ]


@dataclass
class _Side:
    """The calls without partner of one run."""

    step: AlignedStep
    is_candidate: bool
    flow: Flow = field(init=False)
    aligned: Callable[[Call], Aligned | None] = field(init=False)
    _targets: dict[int, Target | None] = field(default_factory=dict)
    _records: dict[tuple[CallKind, ...], list[TensorRecord]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        step = self.step
        self.flow = step.candidate if self.is_candidate else step.reference
        self.aligned = step.of_candidate if self.is_candidate else step.of_reference

    @cached_property
    def calls(self) -> list[Call]:
        """Return modules and operators without partner, in order of time, without those computed again."""
        return [
            call
            for pair in self.step.lone
            if (call := pair.candidate if self.is_candidate else pair.reference) is not None
            and call.kind in _CALLS
            and not call.recomputed
        ]

    @cached_property
    def _lone(self) -> set[int]:
        return {call.id for call in self.calls}

    def effects(self, other: _Side) -> Iterator[LoneEffect]:
        idioms = self._idioms
        for call in self.calls:
            effect = Effect.REACHES if call.id in self.reaching else Effect.BESIDE
            if effect is Effect.BESIDE and call.id in self._around:
                effect = Effect.AROUND
            if self._is_idle(call) and not other.does_alike(self, call):
                effect = Effect.IDLE
            yield LoneEffect(
                call, self.is_candidate, effect, idioms.get(call.id), self.target(call)
            )

    def does_alike(self, other: _Side, call: Call) -> bool:
        """Whether this run, too, has calls without partner where the other has one, or shows nothing there."""
        target = other.target(call)
        if target is not None:
            return any(self.target(one) is target for one in self.calls)
        around = other.aligned_around(call)
        mine = (
            None
            if around is None
            else (around.candidate if self.is_candidate else around.reference)
        )
        if mine is not None and mine.id not in self.flow.containers:
            return True  # code of which nothing is seen may do the same
        region = other.regions.get(call.id)
        return any(
            number == region and (one in self.reaching or one not in self._lone)
            for one, number in self.regions.items()
        )

    @cached_property
    def regions(self) -> dict[int, int]:
        """The region of each call that is in one, see `stretches.regions_of`."""
        return {
            call.id: region
            for region, pair in regions_of(self.step)
            if (call := pair.candidate if self.is_candidate else pair.reference) is not None
        }

    def aligned_around(self, call: Call) -> Aligned | None:
        """The innermost aligned module call around a call."""
        parent = self.flow.calls.get(call.parent)
        while parent is not None:
            item = self.aligned(parent)
            if item is not None:
                return item
            parent = self.flow.calls.get(parent.parent)
        return None

    # --- what a call works on ------------------------------------------------------------------------------------

    @cached_property
    def _gradients(self) -> dict[int, int]:
        """Contents of gradients that backward has made in this step, and from when on."""
        made: dict[int, int] = {}
        for call in self.flow.calls.values():
            if call.kind is CallKind.GRADIENT:
                for record in call.with_role(Role.PARAM_GRAD):
                    made.setdefault(record.content.id, record.sequence)
        return made

    @cached_property
    def _parameters(self) -> frozenset[str]:
        return self.step.names_of(Role.PARAM, Role.PARAM_GRAD)

    def target(self, call: Call) -> Target | None:
        """Return the part of the training that a call changes: in place, or if nothing else takes its result."""
        if call.id not in self._targets:
            self._targets[call.id] = self._target(call)
        return self._targets[call.id]

    def _target(self, call: Call) -> Target | None:
        if call.site.phase is Phase.OPTIMIZER or not _may_be_idle(call):
            return None
        given = first_tensors(call)
        if not writes_in_place(call.site.op):
            if len(given) > 1 or self._is_read(call) or call.with_role(*_GRADIENTS):
                return None
        elif self._are_copies(given) and self._is_read(call):
            return None
        if any(self._is_gradient(one) for one in given):
            return Target.GRADIENT
        return Target.PARAMETER if any(self._is_parameter(one) for one in given) else None

    def _are_copies(self, given: Sequence[TensorRecord]) -> bool:
        """Whether tensors may be copies of what is trained: one was made just before."""
        makers = (self.flow.producer(one.content.id, one.sequence) for one in given)
        return any(
            maker is not None
            and family_of(maker.site.op) is Family.MOVEMENT
            and not (_shares(maker) or writes_in_place(maker.site.op))
            for maker in makers
        )

    def _is_gradient(self, record: TensorRecord) -> bool:
        for one in self._shared_with(record):
            made = self._gradients.get(one.content.id)
            if made is not None and made < one.sequence and _tells_itself(one):
                return True
        return False

    def _is_parameter(self, record: TensorRecord) -> bool:
        weights = self._weights
        return any(
            one.name in self._parameters or (one.content.id in weights and _tells_itself(one))
            for one in self._shared_with(record)
        )

    @cached_property
    def _weights(self) -> set[int]:
        """Contents of parameters before they are updated."""
        kept = self._of_kind(CallKind.INIT, CallKind.OPTIMIZER)
        return {record.content.id for record in kept if record.role is Role.PARAM}

    def _shared_with(self, record: TensorRecord) -> Iterator[TensorRecord]:
        """A tensor and, back in time, those that it is a view of."""
        while True:
            yield record
            maker = self.flow.producer(record.content.id, record.sequence)
            viewed = first_tensors(maker) if _shares(maker) else []
            if not viewed or viewed[0].sequence >= record.sequence:
                return
            record = viewed[0]

    def _is_read(self, call: Call) -> bool:
        """Whether another call without partner takes what one returns: it may be made for that one alone."""
        return any(
            consumer.id in self._lone and consumer.sequence > call.sequence
            for record in call.with_role(Role.OUTPUT)
            for consumer in self.flow.consumers(record.content.id)
        )

    # --- what it does ----------------------------------------------------------------------------------------------

    def _is_idle(self, call: Call) -> bool:
        """Whether a call that works on what is trained returned what it was given, as other data would not have."""
        if not _may_be_idle(call) or not self._returns_what_it_gets(call):
            return False
        if self.target(call) is not None:
            return True
        if call.site.op.startswith("aten.") or _is_neutral(call):
            return False
        return self._goes_on(call)

    def _returns_what_it_gets(self, call: Call) -> bool:
        results = call.with_role(Role.OUTPUT)
        outputs = [record.content.id for record in results]
        given = [record.content.id for record in first_tensors(call)]
        if len(outputs) == 1:
            if _is_zero(results[0]) and len(call.with_role(Role.INPUT)) > 1:
                return (
                    False  # zeros that are given and zeros that are returned need not be one tensor
                )
            if not writes_in_place(call.site.op):
                given = [record.content.id for record in call.with_role(Role.INPUT)]
            return outputs[0] in given
        if not outputs and self.target(call) is Target.GRADIENT:  # it returns None
            updates = self._of_kind(CallKind.OPTIMIZER)
            arrived = {one.content.id for one in updates if one.role is Role.PARAM_GRAD}
            return arrived.issuperset(given)
        return bool(outputs) and outputs[: len(given)] == given

    def _goes_on(self, call: Call) -> bool:
        """Whether what a call returns goes on into the training as it is.

        Without a gradient that comes back it may be for another call without partner that takes it, too.
        """
        on_the_way = bool(call.with_role(Role.GRAD_OUTPUT))
        for record in call.with_role(Role.OUTPUT):
            consumers = self.flow.consumers(record.content.id)
            later = [one for one in consumers if one.sequence > call.sequence]
            aside = any(one.id in self._lone for one in later)
            taken = any(one.id not in self._lone for one in later)
            aside = aside or writes_in_place(call.site.op) or record.content.numel == 1
            if taken and (on_the_way or not aside):
                return True
        return on_the_way and self._is_loss(call)

    @cached_property
    def reaching(self) -> set[int]:
        """Calls without partner that the loss, a gradient, a parameter or a call of both runs depends on."""
        found: set[int] = set()
        for call in reversed(self.calls):
            trained = self.target(call) is not None or bool(call.with_role(*_GRADIENTS))
            trained = trained or (writes_in_place(call.site.op) and _is_kept(call))
            results = call.with_role(Role.OUTPUT, Role.BUFFER)
            if trained or any(self._reaches(call, record, found) for record in results):
                found.add(call.id)
        return found

    def _reaches(self, call: Call, record: TensorRecord, found: set[int]) -> bool:
        content = record.content.id
        if record.role is Role.BUFFER:
            return True
        if content in {one.content.id for one in call.with_role(Role.INPUT)}:
            return False  # what it was given may have gone on by itself
        for consumer in self.flow.consumers(content):
            if consumer.sequence > call.sequence and consumer.id not in self.flow.containers:
                maker = self.flow.producer(content, consumer.sequence)
                if (
                    maker is not None
                    and maker.id == call.id
                    and (consumer.id in found or consumer.id not in self._lone)
                ):
                    return True
        return content in self._kept

    @cached_property
    def _around(self) -> set[int]:
        """Calls inside of which a call has a partner, or reaches what is trained, at any depth.

        A wrapper around the model and the autograd function of a checkpoint make nothing themselves; what they hold is
        what the training depends on.
        """
        found: set[int] = set()
        for call in self.flow.calls.values():
            reaches = call.id in self.reaching or (
                call.id not in self._lone and self.aligned(call) is not None
            )
            parent = self.flow.calls.get(call.parent) if reaches else None
            while parent is not None and parent.id not in found:
                found.add(parent.id)
                parent = self.flow.calls.get(parent.parent)
        return found

    @cached_property
    def _kept(self) -> set[int]:
        """Contents of losses, gradients and parameters."""
        roles = (Role.LOSS, Role.PARAM, Role.PARAM_GRAD, Role.PARAM_AFTER)
        kept = self._of_kind(CallKind.LOSS, CallKind.GRADIENT, CallKind.OPTIMIZER)
        return {record.content.id for record in kept if record.role in roles}

    # --- what it is known as -----------------------------------------------------------------------------------------

    @cached_property
    def _idioms(self) -> dict[int, Idiom]:
        """The idiom that calls belong to: that of the call that acts, for all that it takes from."""
        named: dict[int, Idiom] = {}
        unscales = any(canonical_name(call.site.op) == _UNSCALES for call in self.calls)
        for call in self.calls:
            idiom = self._idiom_of(call, unscales=unscales)
            if idiom is not None:
                _name_all(call, idiom, named, self._makers)
        for call in self.calls:
            if (
                call.id not in named
                and call.id not in self.reaching
                and self._reads_gradients(call)
            ):
                _name_all(call, Idiom.READING, named, self._takers)
        return named

    def _makers(self, call: Call) -> Iterator[Call]:
        """The calls without partner that made what one takes."""
        for record in call.with_role(Role.INPUT):
            maker = self.flow.producer(record.content.id, record.sequence)
            if maker is not None and maker.id in self._lone:
                yield maker

    def _takers(self, call: Call) -> Iterator[Call]:
        """The calls without partner that take what one returns."""
        for record in call.with_role(Role.OUTPUT):
            for later in self.flow.consumers(record.content.id):
                if later.id in self._lone and later.sequence > call.sequence:
                    yield later

    def _idiom_of(self, call: Call, *, unscales: bool) -> Idiom | None:
        known, target = operator_of(call.site.op), self.target(call)
        scales = Trait.SCALES in known.traits
        if known.name == _UNSCALES or (unscales and scales and self._is_loss(call)):
            return Idiom.LOSS_SCALING
        if target is Target.GRADIENT:
            return self._of_gradients(call, known)
        if target is Target.PARAMETER:
            idiom = _of_parameters(known)
            by_hand = idiom is Idiom.WEIGHT_CHANGE and self._updates_by_hand
            return Idiom.HAND_UPDATE if by_hand else idiom
        if known.name == "zero" and writes_in_place(call.site.op) and self._was_gradient(call):
            return Idiom.ZEROING
        if known.name in ("lerp", "add", "copy") and writes_in_place(call.site.op):
            others = [one for one in call.with_role(Role.INPUT) if one not in first_tensors(call)]
            if any(self._is_parameter(one) for one in others):
                return Idiom.AVERAGING
        return None

    @cached_property
    def _updates_by_hand(self) -> bool:
        """Whether the script updates its parameters itself in this step."""
        calls = self.flow.calls.values()
        return any(call.kind is CallKind.OPTIMIZER and call.site.op == BY_HAND for call in calls)

    def _of_gradients(self, call: Call, known: Operator) -> Idiom:
        if Trait.CLAMPS in known.traits:
            return Idiom.VALUE_CLIPPING
        if Trait.SCALES in known.traits:
            measured = call.sequence > self._first_reading
            return Idiom.NORM_CLIPPING if measured else Idiom.GRADIENT_SCALING
        others = [one for one in call.with_role(Role.INPUT) if one not in first_tensors(call)]
        if known.name in ("add", "sub") and any(self._is_parameter(one) for one in others):
            return Idiom.WEIGHT_DECAY
        return Idiom.GRADIENT_CHANGE

    @cached_property
    def _first_reading(self) -> float:
        """When a call without partner first takes gradients without changing them."""
        return min(
            (one.sequence for one in self.calls if self._reads_gradients(one)), default=math.inf
        )

    def _is_loss(self, call: Call) -> bool:
        losses = {record.content.id for record in self._of_kind(CallKind.LOSS)}
        return any(record.content.id in losses for record in call.with_role(Role.OUTPUT))

    def _was_gradient(self, call: Call) -> bool:
        """Whether a call before backward is given tensors of the shapes that gradients have."""
        first = min(self._gradients.values(), default=0)
        shapes = {record.shape for record in self._of_kind(CallKind.GRADIENT)}
        given = first_tensors(call)
        return call.sequence < first and bool(given) and all(one.shape in shapes for one in given)

    def _of_kind(self, *kinds: CallKind) -> list[TensorRecord]:
        if kinds not in self._records:
            calls = self.flow.calls.values()
            self._records[kinds] = [
                record for call in calls if call.kind in kinds for record in call.records
            ]
        return self._records[kinds]

    def _reads_gradients(self, call: Call) -> bool:
        return not writes_in_place(call.site.op) and any(
            self._is_gradient(record) for record in call.with_role(Role.INPUT)
        )


def _of_parameters(known: Operator) -> Idiom:
    if Trait.CLAMPS in known.traits:
        return Idiom.WEIGHT_CLIPPING
    return Idiom.WEIGHT_DECAY if Trait.SCALES in known.traits else Idiom.WEIGHT_CHANGE


def first_tensors(call: Call | None) -> list[TensorRecord]:
    """The tensor that a call is given first, or the tensors of a list in its place."""
    if call is None:
        return []
    return [
        record
        for record in call.with_role(Role.INPUT)
        if (record.argument or record.name).split(".")[:2] == ["args", "0"]
    ]


def _is_kept(call: Call) -> bool:
    """Whether a call is given a parameter or buffer first: one that has a name of its own."""
    return any(record.argument for record in first_tensors(call))


def _may_be_idle(call: Call) -> bool:
    """Whether data decide what a call changes: others that return what they get, moving or casting, never change it."""
    return Trait.MAY_BE_IDLE in operator_of(call.site.op).traits


def _shares(maker: Call | None) -> bool:
    """Whether a call returns the memory that it was given."""
    return maker is not None and Trait.VIEWS in operator_of(maker.site.op).traits


def _tells_itself(record: TensorRecord) -> bool:
    """Whether a content is hardly another tensor's too, as one number is, or one many times."""
    statistics = record.statistics
    constant = statistics is not None and statistics.minimum == statistics.maximum
    return record.content.numel > 1 and not constant


def _is_zero(record: TensorRecord) -> bool:
    statistics = record.statistics
    return statistics is not None and statistics.minimum == statistics.maximum == 0


def _is_neutral(call: Call) -> bool:
    """Whether a plain number makes a call one that leaves any tensor alone."""
    neutral = operator_of(call.site.op).neutral
    numbers = [
        value
        for value in call.arguments.values()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    ]
    return neutral is not None and len(call.with_role(Role.INPUT)) == 1 and numbers[:1] == [neutral]


def idle_causes(effects: Sequence[LoneEffect]) -> list[list[LoneEffect]]:
    """Calls that left all that is trained as it was: a list for each idiom, or for each operator and line.

    What belongs to an idiom of which any call changed something is seen where that arrives.
    """
    causes: dict[tuple[object, ...], list[LoneEffect]] = {}
    for one in effects:
        if one.effect is Effect.IDLE:
            causes.setdefault(_cause(one), [])
    for one in effects:
        if _cause(one) in causes and (one.idiom is not None or one.effect is Effect.IDLE):
            causes[_cause(one)].append(one)
    return [
        together
        for together in causes.values()
        if not any(one.works_on and one.effect is Effect.REACHES for one in together)
        and not any(_has_no_limit(one.call) for one in together)
    ]


def _has_no_limit(call: Call) -> bool:
    """Whether a call limits nothing that is finite: to infinity, as clipping that is only there for the norm that it
    returns, or to the largest number of the dtype, as a library guards a product with zero."""
    given = first_tensors(call)
    largest = largest_finite(given[0].dtype) if given else None
    return any(
        value == "inf" or (isinstance(value, float) and abs(value) >= (largest or math.inf))
        for value in call.arguments.values()
    )


def _cause(one: LoneEffect) -> tuple[object, ...]:
    if one.idiom is not None:
        return one.is_candidate, one.idiom
    return one.is_candidate, one.call.site.module, one.call.site.op, one.call.source


__all__ = ["Effect", "Idiom", "LoneEffect", "idle_causes", "lone_effects", "writes_in_place"]
