"""Run the program of a step in double precision, on numbers that are given, with rounding at random if asked.

Nothing of a recording but its sources, its decisions at random and its plain arguments goes in: every result between is
computed anew, and gradients are autograd's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.program import (
    Enters,
    Node,
    NotApplicable,
    Operator,
    Source,
    StepProgram,
    Update,
)
from lockstep.replay.calls.one_call import OneCall, one_call
from lockstep.replay.calls.recorded_tensors import load, random_state_of, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision
from lockstep.replay.calls.torch_state import leaving_no_trace, torch_may_refuse
from lockstep.replay.verdicts.decisions import probability_of

Given = Callable[[Source, TensorRecord], torch.Tensor]
"""The tensor that enters for a source, which was recorded so: in double precision, or of whole numbers."""

_DRAWN = (Family.RANDOM, Family.UNINITIALISED)


@dataclass(slots=True)
class Run:
    """What a program gave.

    Parameters
    ----------
    values
        Every result, in double precision.
    losses
        One for each backward pass, in order.
    gradients
        By parameter, added up over the passes.
    entering
        By parameter, the gradient that its update takes.
    """

    values: dict[Node, torch.Tensor] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    entering: dict[str, torch.Tensor] = field(default_factory=dict)

    def gradient_at(self, node: Node) -> torch.Tensor | None:
        """The gradient that arrived at a result, where the run has kept them."""
        return self.values[node].grad


@dataclass(frozen=True, slots=True)
class Rounding:
    """Rounds every result at random, to the dtype that was recorded, forward and backward.

    Relative errors are uniform up to the unit roundoff (JUDGING: a run with rounding injected at every operator is 0.9
    to 4.4 times the actual error in single precision, 0.74 to 0.9 in 16 bit).

    Parameters
    ----------
    generator
        Draws the errors.
    finest
        The unit roundoff that no result goes below; for the condition of a program in double precision.
    """

    generator: torch.Generator
    at_most: float = 1.0

    def of(self, tensor: torch.Tensor, dtype: str) -> torch.Tensor:
        """The tensor with an error of its dtype."""
        unit = min(unit_roundoff(dtype), self.at_most)
        if not unit or not tensor.dtype.is_floating_point:
            return tensor
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: gradient * self._factor(gradient, unit))
        return tensor * self._factor(tensor, unit)

    def _factor(self, tensor: torch.Tensor, unit: float) -> torch.Tensor:
        drawn = torch.rand(tensor.shape, generator=self.generator, dtype=tensor.dtype)
        return 1 + unit * (2 * drawn - 1)


class DoubleRun:
    """A program, ready to be run again and again.

    Raises
    ------
    NotApplicable
        If one of its calls cannot be run again.
    """

    def __init__(self, program: StepProgram) -> None:
        self.program = program
        self._ready: dict[int, OneCall] = {}
        self._masks: dict[int, torch.Tensor] = {}
        for operator in program.operators:
            if not _is_drawn(operator.call):
                self._ready[operator.call.id] = _ready(operator.call)

    def run(
        self,
        given: Given,
        *,
        rounding: Rounding | None = None,
        instead: Mapping[Node, torch.Tensor] | None = None,
        keep_gradients: bool = False,
    ) -> Run:
        """Run it.

        Parameters
        ----------
        given
            What enters.
        rounding
            Rounds every result; None for double precision alone.
        instead
            Values that take the place of results; gradients go back as if these had been computed.
        keep_gradients
            Whether the gradient that arrives at each result is kept.

        Raises
        ------
        NotApplicable
            If torch refuses a call, or a result has another shape.
        """
        run, leaves = Run(), dict[Source, torch.Tensor]()
        try:
            with torch_may_refuse(), leaving_no_trace(), _in_double():
                for event in self.program.events:
                    if isinstance(event, Operator):
                        self._call(event, run, leaves, given, rounding, instead or {})
                        if keep_gradients:
                            _keep(event, run)
                        continue
                    if isinstance(event, Update):
                        continue
                    _forget(event.anew, leaves)
                    loss = self._value(event.loss.link, event.loss.record, run, leaves, given)
                    run.losses.append(loss.detach().clone())
                    if loss.requires_grad:
                        loss.backward(retain_graph=True)
        except CannotReplay as error:
            raise NotApplicable(str(error)) from error
        run.gradients = _gradients_in(leaves)
        for update in self.program.updates:
            if update.gradient is not None:
                link = update.gradient.link
                if isinstance(link, Node) or link.kind is Enters.GRADIENT:
                    found = (
                        run.values[link] if isinstance(link, Node) else run.gradients.get(link.name)
                    )
                    if found is not None:
                        run.entering[update.name] = found.detach()
        return run

    def _call(
        self,
        operator: Operator,
        run: Run,
        leaves: dict[Source, torch.Tensor],
        given: Given,
        rounding: Rounding | None,
        instead: Mapping[Node, torch.Tensor],
    ) -> None:
        call = operator.call
        gradients = call.conditions is None or call.conditions.gradients
        with torch.set_grad_enabled(gradients):
            for record, found in self._results(operator, run, leaves, given, rounding):
                if found is None:
                    raise CannotReplay(f"{call.site.op} returns a different shape when run again")
                node = Node(call.id, record.index)
                value = found if rounding is None else rounding.of(found, record.dtype)
                if node in instead:
                    value = _put(instead[node], value)
                run.values[node] = value

    def _results(
        self,
        operator: Operator,
        run: Run,
        leaves: dict[Source, torch.Tensor],
        given: Given,
        rounding: Rounding | None,
    ) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
        call = operator.call
        if family_of(call.site.op) in _DRAWN:
            yield from ((one, widened(load(one))) for one in call.with_role(Role.OUTPUT))
            return
        passed = {
            index: self._passed(call, index, operator, run, leaves, given, rounding)
            for index in operator.taken
        }
        if _drops(call):
            (result,) = call.with_role(Role.OUTPUT)
            (entering,) = passed.values()
            yield result, entering * self._mask(call, result) / (1 - probability_of(call))
            return
        yield from self._ready[call.id].results(passed, Precision.DOUBLE)

    def _passed(
        self,
        call: Call,
        index: int,
        operator: Operator,
        run: Run,
        leaves: dict[Source, torch.Tensor],
        given: Given,
        rounding: Rounding | None,
    ) -> torch.Tensor:
        taken = operator.taken[index]
        tensor = self._value(taken.link, taken.record, run, leaves, given)
        if taken.detached:
            tensor = tensor.detach()
        ready = self._ready.get(call.id)
        if ready is None:
            return tensor
        if rounding is not None and ready.cast is not None and tensor.dtype.is_floating_point:
            tensor = rounding.of(tensor, str(ready.cast).removeprefix("torch."))
        return tensor.clone() if ready.writes else tensor

    def _value(
        self,
        link: Node | Source,
        record: TensorRecord,
        run: Run,
        leaves: dict[Source, torch.Tensor],
        given: Given,
    ) -> torch.Tensor:
        if isinstance(link, Node):
            return run.values[link]
        if link.kind is Enters.GRADIENT:
            found = _gradients_in(leaves).get(link.name)
            if found is None:
                raise CannotReplay(
                    f"the gradient of {link.name} does not come of its recorded calls"
                )
            return found.detach()
        if link not in leaves:
            tensor = given(link, record)
            learns = link.kind is Enters.NAMED and link.name in self.program.gradients
            if learns and tensor.dtype.is_floating_point:
                tensor = tensor.detach().clone().requires_grad_()
            leaves[link] = tensor
        return leaves[link]

    def _mask(self, call: Call, result: TensorRecord) -> torch.Tensor:
        """Which elements dropout let through: told by its generator's state, else by what it gave."""
        if call.id not in self._masks:
            self._masks[call.id] = _kept(call, result)
        return self._masks[call.id]


def kept_elements(call: Call) -> torch.Tensor:
    """Which elements a call of dropout let through."""
    (result,) = call.with_role(Role.OUTPUT)
    return _kept(call, result)


def drops(call: Call) -> bool:
    """Whether a call drops elements at random."""
    return _drops(call)


def is_draw(call: Call) -> bool:
    """Whether a call's results are numbers that were drawn."""
    return family_of(call.site.op) is Family.RANDOM


def _kept(call: Call, result: TensorRecord) -> torch.Tensor:
    given = load(result) != 0
    entering = next(iter(call.with_role(Role.INPUT)))
    state = random_state_of(call)
    if state is not None:
        with leaving_no_trace(state):
            drawn = torch.nn.functional.dropout(
                torch.ones(result.shape, dtype=load(result).dtype), probability_of(call)
            )
        if bool(((drawn != 0) == given)[load(entering) != 0].all()):
            return drawn != 0
    for gradient in call.with_role(Role.GRAD_INPUT)[:1]:
        given = given | (load(gradient).reshape(given.shape) != 0)
    return given


def _is_drawn(call: Call) -> bool:
    return family_of(call.site.op) in _DRAWN or _drops(call)


def _drops(call: Call) -> bool:
    if family_of(call.site.op) is not Family.DROPOUT or probability_of(call) <= 0:
        return False
    return len(call.with_role(Role.INPUT)) == 1 and len(call.with_role(Role.OUTPUT)) == 1


def _ready(call: Call) -> OneCall:
    try:
        return one_call(call)
    except CannotReplay as error:
        raise NotApplicable(f"{call.site.op} at {call.source}: {error}") from error


def _put(other: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Another number in place of a result, through which gradients go as through that."""
    other = other.detach().reshape(value.shape)
    return value + (other - value.detach()) if value.dtype.is_floating_point else other


def _keep(event: Operator, run: Run) -> None:
    for record in event.call.with_role(Role.OUTPUT):
        value = run.values[Node(event.call.id, record.index)]
        if value.requires_grad and not value.is_leaf:
            value.retain_grad()


def _gradients_in(leaves: Mapping[Source, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients that have arrived by now, added up over what each parameter has been."""
    found: dict[str, torch.Tensor] = {}
    for source, leaf in leaves.items():
        if source.kind is Enters.NAMED and leaf.grad is not None:
            before = found.get(source.name)
            found[source.name] = leaf.grad if before is None else before + leaf.grad
    return found


def _forget(names: frozenset[str], leaves: Mapping[Source, torch.Tensor]) -> None:
    for source, leaf in leaves.items():
        if source.name in names:
            leaf.grad = None


@contextmanager
def _in_double() -> Iterator[None]:
    """What a call makes of nothing is made in double precision, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
