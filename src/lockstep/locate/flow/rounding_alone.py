"""Parameters whose gradient is zero except for rounding, and how large rounding may make their consequences.

The bias of a convolution before batch norm changes nothing, nor does the key bias of attention: the terms that their
gradients are summed from cancel. What is left is at most `gamma |t|_1` for terms `t` (Higham, Accuracy and Stability of
Numerical Algorithms, 2nd ed., section 4.2), and `|t|_1 <= sqrt(n) |t|_2`, which recorded norms give
(`lockstep.judge.gradient_model`). Two sound runs have nothing in common there but that size.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from lockstep.align.dataflow import Flow
from lockstep.align.step import AlignedStep
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.finding import Pair
from lockstep.core.operators import Family
from lockstep.core.records import Call, Content, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.sketch import distance
from lockstep.judge.gradient_model import gradient_bound
from lockstep.judge.protocol import Operation
from lockstep.judge.tolerances import DEFAULT_CONDITION, NOISE_MARGIN, SINGLE
from lockstep.measure.measured_pair import Measured, alone


@dataclass(slots=True)
class RoundingAlone:
    """Gathers over the recorded steps of one rank which gradients are rounding alone.

    sizes: By parameter the largest norm that rounding may give its gradient, of those whose gradients were never
        larger.
    moved: By parameter how far an update takes an element, root mean square and at most, of both runs.
    """

    sizes: dict[str, float] = field(default_factory=dict)
    moved: dict[str, float] = field(default_factory=dict)
    _larger: set[str] = field(default_factory=set)
    _made: set[tuple[int, int]] = field(default_factory=set)

    def gather(self, step: AlignedStep) -> None:
        """Take in the gradients and updates of one more step."""
        allowed = _allowed(step)
        for item in step.of_kind(CallKind.GRADIENT):
            for pair in item.complete(Role.PARAM_GRAD):
                name = pair.present.name
                norm = max(_norm(pair.reference), _norm(pair.candidate))
                # A gradient of nothing but zeros has not been computed, as far as is known.
                if 0.0 < norm <= allowed.get(name, 0.0) and name not in self._larger:
                    self.sizes[name] = max(self.sizes.get(name, 0.0), allowed[name])
                    self._made.add(_contents(pair))
                else:
                    self._larger.add(name)
                    self.sizes.pop(name, None)
        for item in step.of_kind(CallKind.OPTIMIZER):
            befores = {pair.present.name: pair for pair in item.complete(Role.PARAM)}
            for after in item.complete(Role.PARAM_AFTER):
                before = befores.get(after.present.name)
                if before is not None:
                    name, far = after.present.name, _moved(before, after)
                    self.moved[name] = max(self.moved.get(name, 0.0), far)

    def is_of(self, measured: Measured) -> bool:
        """Whether a gradient is rounding alone, or a result, a state or a parameter is made of such gradients."""
        record = measured.pair.present
        if _contents(measured.pair) in self._made:
            return True
        if record.role in (Role.PARAM, Role.PARAM_AFTER):
            steps = record.step + 1
            return self.allows_parameter(record.name, steps, measured.distance, measured.numel)
        return record.name.partition("|")[0] in self.sizes

    def note_made(self, pair: Pair) -> None:
        """Take in what an operator made of gradients that are rounding alone, as where they are clipped."""
        self._made.add(_contents(pair))

    def allows(self, measured: Measured) -> bool:
        """Whether a parameter or state that steps changed which were not recorded may differ by rounding alone."""
        left, right = measured.pair.reference, measured.pair.candidate
        if left is None or right is None or measured.shape_differs:
            return False
        if left.role is Role.STATE:
            contents = (left.content, right.content)
            return self.allows_state(left.name, left.step, left.content, *contents)
        return self.allows_parameter(left.name, left.step, measured.distance, measured.numel)

    def allows_state(self, name: str, steps: int, before: Content, *contents: Content) -> bool:
        """Return whether rounding alone may make an optimizer's state of a parameter after some steps.

        A weighted sum of gradients grows as the square root of their number at most, as roundings are independent, and
        a sum of their squares as their number. `before` is what a recorded step has left: no larger than squares, it is
        held to be a sum of such.
        """
        size = self.sizes.get(name.partition("|")[0], 0.0)
        limit, squares = size * (1.0 + math.sqrt(steps)), size * size * (1.0 + steps)
        norms = [math.nan if one.statistics is None else one.statistics.norm for one in contents]
        if before.statistics is not None and before.statistics.norm <= squares:
            limit = min(limit, squares)
        return size > 0.0 and all(one <= limit for one in norms)

    def allows_parameter(self, name: str, steps: int, apart: float, numel: int) -> bool:
        """Return whether a parameter may be this far apart, in its own unit, after some updates of rounding alone.

        None takes it further than those that were recorded took any of its elements.
        """
        if name not in self.sizes or name not in self.moved:
            return False
        return apart <= 2.0 * steps * self.moved[name] * math.sqrt(numel)


def _contents(pair: Pair) -> tuple[int, int]:
    reference, candidate = pair.contents
    return reference.id, candidate.id


NO_STEPS = RoundingAlone()
"""What is known of gradients where no step was compared."""


def _allowed(step: AlignedStep) -> dict[str, float]:
    """By parameter how large rounding may make its gradient, over all of its uses, in the run where that is more."""
    allowed: dict[str, float] = defaultdict(float)
    for flow in (step.reference, step.candidate):
        of_side: dict[str, float] = defaultdict(float)
        sizes = _Roundings(flow)
        for call in flow.calls.values():
            if call.id not in flow.containers and call.kind in _SENDING:
                for record in call.with_role(Role.PARAM_GRAD):
                    rounding = sizes.of(call, record)
                    if math.isfinite(rounding):
                        name = step.name_of(record, is_candidate=flow is step.candidate)
                        of_side[name] += rounding
        of_side.update(_of_hidden(step, flow, of_side))
        for name, rounding in of_side.items():
            allowed[name] = max(allowed[name], rounding)
    return allowed


def _of_hidden(step: AlignedStep, flow: Flow, sent: Collection[str]) -> dict[str, float]:
    """The same of gradients that no call is seen to send, as inside of compiled code.

    The terms that cancel there are taken to be as large as all gradients of the step, element by element, as
    `lockstep.judge.gradient_model` has it. Where a tensor of the step rounds to 16 bits, that bounds nothing.
    """
    gathered = [
        alone(record)
        for call in flow.calls.values()
        if call.kind is CallKind.GRADIENT
        for record in call.with_role(Role.PARAM_GRAD)
    ]
    count = sum(one.numel for one in gathered)
    norm = math.sqrt(sum(one.norm * one.norm for one in gathered))
    hidden = {
        step.name_of(one.pair.present, is_candidate=flow is step.candidate): one for one in gathered
    }
    hidden = {name: one for name, one in hidden.items() if name not in sent}
    if not hidden or not math.isfinite(norm) or _is_coarse(flow):
        return {}
    terms = NOISE_MARGIN * DEFAULT_CONDITION * norm
    return {name: terms * one.unit * math.sqrt(one.numel / count) for name, one in hidden.items()}


def _is_coarse(flow: Flow) -> bool:
    """Whether a tensor of a step rounds to less than single precision."""
    dtypes = {record.dtype for call in flow.calls.values() for record in call.records}
    return any(is_floating(dtype) and unit_roundoff(dtype) > SINGLE for dtype in dtypes)


_SENDING = frozenset({CallKind.OPERATOR, CallKind.MODULE})


class _Roundings:
    """How large rounding may be in what calls of one run send back.

    Where a call only moves numbers, as a view of a bias, the gradient that enters it has been summed before.
    """

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self._known: dict[int, float] = {}

    def of(self, call: Call, record: TensorRecord) -> float:
        """Return how large rounding may be in one gradient that a call sends, as a Euclidean norm."""
        operation = Operation(
            op=call.site.op,
            inputs=tuple(map(alone, call.with_role(Role.INPUT))),
            gradients=tuple(map(alone, call.with_role(Role.GRAD_OUTPUT))),
            arguments=call.arguments,
        )
        output = alone(record)
        bound = gradient_bound(operation, output)
        unit = max(one.unit for one in (*operation.gradients, output))
        rounding = NOISE_MARGIN * unit * (bound.rounding + bound.accumulation)
        if operation.family is Family.MOVEMENT:
            entering = call.with_role(Role.GRAD_OUTPUT)
            rounding += sum(self._entering(one.content.id) for one in entering)
        return rounding

    def _entering(self, content: int) -> float:
        if content not in self._known:
            self._known[content] = 0.0  # contents that come back to themselves: counted once
            found = (self.of(*one) for one in self._senders.get(content, ()))
            self._known[content] = max(found, default=0.0)
        return self._known[content]

    @cached_property
    def _senders(self) -> Mapping[int, list[tuple[Call, TensorRecord]]]:
        """By content the calls that send it on as the gradient of an input."""
        found: dict[int, list[tuple[Call, TensorRecord]]] = defaultdict(list)
        for call in self._flow.calls.values():
            if call.kind is CallKind.OPERATOR:
                for record in call.with_role(Role.GRAD_INPUT):
                    found[record.content.id].append((call, record))
        return found


def _norm(record: TensorRecord | None) -> float:
    statistics = None if record is None else record.statistics
    return math.nan if statistics is None else statistics.norm


def _moved(before: Pair, after: Pair) -> float:
    """How far an update takes an element, root mean square, in the run where that is more; 0 where it is not known."""
    found = [0.0]
    for left, right in (
        (before.reference, after.reference),
        (before.candidate, after.candidate),
    ):
        if left is None or right is None or left.shape != right.shape:
            continue
        one, other = left.content.sketch, right.content.sketch
        if one is not None and other is not None and left.content.numel:
            found.append(distance(one, other) / math.sqrt(left.content.numel))
    return max(found)
