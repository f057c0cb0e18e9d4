"""Run the program of a step in double precision, on numbers that are given, with rounding at random if asked.

Nothing of a recording but its sources, its decisions at random and its plain arguments goes in: every result between is
computed anew, and gradients are autograd's own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch

from lockstep.core.operators import AUTOGRAD_GRAD
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.laws.asked_gradients import asked_gradients
from lockstep.laws.custom_functions import as_custom_function
from lockstep.laws.distances import relative
from lockstep.laws.draws import (
    drawing_as,
    draws_inside,
    drops,
    is_draw,
    is_drawn,
    kept_elements,
    not_written,
    state_of_draw,
)
from lockstep.laws.exchanged import exchanged
from lockstep.laws.exchanges import exchange_of
from lockstep.laws.random_rounding import Rounding
from lockstep.laws.recorded_decisions import after_decisions, decisions_as_recorded
from lockstep.laws.step_events import (
    RESULTS,
    Backward,
    Body,
    Enters,
    Link,
    Node,
    NotApplicable,
    Operator,
    Source,
    StepProgram,
    Taken,
    Update,
    arriving_at,
    differentiated_in,
)
from lockstep.laws.writes_through import Ready, WritesThrough
from lockstep.replay.calls.decisions import probability_of
from lockstep.replay.calls.layouts import in_order
from lockstep.replay.calls.one_call import one_call
from lockstep.replay.calls.rebuild import torch_dtype
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Precision
from lockstep.replay.calls.torch_state import leaving_no_trace, torch_may_refuse

Given = Callable[[Source, TensorRecord], torch.Tensor]
"""The tensor that enters for a source, which was recorded so: in double precision, or of whole numbers."""


FEW_NUMBERS = 8
"""Below so many elements three runs do not tell how far rounding takes a result: the error of one number is near zero
in all three in one of some hundred results, and a training has more norms of gradients."""


@dataclass(slots=True)
class Run:
    """What a program gave.

    values: Every result, in double precision, where they were kept; none once `forget` was called.
    losses: One for each backward pass, in order.
    gradients: By parameter, added up over the passes.
    entering: By parameter, the gradient that its update takes.
    sent: By parameter of few numbers, what each backward pass has added to its gradient.
    """

    values: dict[Node, torch.Tensor] = field(default_factory=dict)
    losses: list[torch.Tensor] = field(default_factory=list)
    gradients: dict[str, torch.Tensor] = field(default_factory=dict)
    entering: dict[str, torch.Tensor] = field(default_factory=dict)
    sent: list[dict[str, torch.Tensor]] = field(default_factory=list)

    def forget(self) -> None:
        """Let go of the results, which take the most memory."""
        self.values = {}

    def gradient_at(self, node: Node) -> torch.Tensor | None:
        """The gradient that arrived at a result, where the run has kept them."""
        return self.values[node].grad


Seen = Callable[[Node, torch.Tensor], None]
"""Told a result, without its graph."""


def _done_with(program: StepProgram) -> dict[int, list[Node]]:
    """After which event, by place, which results are taken by no later one, nor stand at the end."""
    last: dict[Node, int] = {}
    for place, event in enumerate(program.events):
        taken: list[Link] = []
        if isinstance(event, Operator):
            taken = [one.link for one in event.taken.values()]
            for record in event.call.with_role(*RESULTS):
                last[Node(event.call.id, record.index)] = place
        elif isinstance(event, Backward):
            begins = [event.loss] if event.gradient is None else [event.loss, event.gradient]
            taken = [one.link for one in begins]
        last.update((one, place) for one in taken if isinstance(one, Node))
    stay: set[Link] = {*program.buffers.values(), *program.made_of_gradients}
    for update in program.updates:
        stay |= set(update.results)
        stay |= {one.link for one in (update.parameter, update.gradient) if one is not None}
    done: dict[int, list[Node]] = {}
    for node, place in last.items():
        if node not in stay:
            done.setdefault(place, []).append(node)
    return done


class DoubleRun:
    """A program, ready to be run again and again. Raises NotApplicable if one of its calls cannot be run again."""

    def __init__(self, program: StepProgram) -> None:
        self.program = program
        self._masks: dict[int, torch.Tensor] = {}
        self._ready = {
            one.call.id: _ready(one)
            for operator in program.operators
            for one in ((operator,) if operator.body is None else operator.body.calls)
            if not (
                is_drawn(one.call) or exchange_of(one.call) or one.call.site.op == AUTOGRAD_GRAD
            )
        }
        self._done = _done_with(program)
        self._behind = after_decisions(program)

    def run(
        self,
        given: Given,
        *,
        precision: Precision = Precision.DOUBLE,
        rounding: Rounding | None = None,
        instead: Mapping[Node, torch.Tensor] | None = None,
        decided: bool = False,
        keep_gradients: bool = False,
        keep: bool = True,
        seen: Seen | None = None,
        widens: bool = True,
    ) -> Run:
        """Run it.

        given: What enters.
        precision: In which numbers: double precision, or the recorded dtypes, as a correct kernel of this machine
            computes.
        rounding: Rounds every result; None for no more than `precision` does.
        instead: Values that take the place of results; gradients go back as if these had been computed.
        decided: Whether indices and masks that follow from rounded numbers are those that were recorded. If not, what
            follows from them may have other extents than it was recorded with.
        keep_gradients: Whether the gradient that arrives at each result is kept.
        keep: Whether all results are kept, or those alone that stand at the end: what parameters and buffers hold.
        seen: Told each result once it is there.
        widens: Whether calls of which autocast widens the inputs compute in the wider dtype. An operator that is made
            of others may not: of `cross_entropy` a device may widen `nll_loss` alone, and round what lies between.

        Raises NotApplicable if torch refuses a call, or a result has another shape.
        """
        execution = _Execution(
            self.program, self._ready, self._masks, given, precision, rounding, instead or {},
            decided, keep_gradients, {} if keep else self._done, seen, widens,
            frozenset() if decided else self._behind,
        )  # fmt: skip
        double = precision is Precision.DOUBLE
        default = torch.float64 if double else torch.get_default_dtype()
        with _run_again(default):
            return execution.executed()

    def updates_of(
        self,
        base: Run,
        given: Given,
        gradients: Mapping[str, torch.Tensor],
        rounding: Rounding | None = None,
    ) -> dict[Node, torch.Tensor]:
        """What the calls behind the last backward pass give where updates take these gradients.

        base: A run that holds what these calls take of the ones before.
        gradients: By parameter, in place of what its update takes.

        Raises NotApplicable as `run` does.
        """
        taken = {one.name: one.gradient.link for one in self.program.updates if one.gradient}
        links = {taken[name]: one for name, one in gradients.items() if name in taken}
        instead = {link: one for link, one in links.items() if isinstance(link, Node)}
        execution = _Execution(
            self.program, self._ready, self._masks, given, Precision.DOUBLE, rounding, instead,
            True, False,
        )  # fmt: skip
        execution.run.values.update(base.values)
        execution.run.gradients = base.gradients
        execution.entering = {
            link.name: one for link, one in links.items() if isinstance(link, Source)
        }
        with _run_again(torch.float64), torch.no_grad():
            return execution.behind_gradients()

    def decides_again(
        self,
        operator: Operator,
        base: Run,
        given: Given,
        off: Mapping[int, torch.Tensor] | None = None,
    ) -> list[tuple[TensorRecord, torch.Tensor | None]]:
        """What one call gives of its own inputs in a run, which `off` moves by index; nothing of what it draws.

        Raises NotApplicable if torch refuses it.
        """
        ready = self._ready.get(operator.call.id)
        if ready is None or drops(operator.call) or draws_inside(operator.call):
            return []
        with _run_again(torch.float64), torch.no_grad():
            passed = {
                index: base.values[one.link]
                if isinstance(one.link, Node)
                else given(one.link, one.record)
                for index, one in operator.taken.items()
            }
            passed = {key: one.detach() + (off or {}).get(key, 0) for key, one in passed.items()}
            return list(ready.results(passed, Precision.DOUBLE, of_any_extent=True))

    def losses_instead(
        self, base: Run, given: Given, instead: Mapping[Node, torch.Tensor], *, decided: bool
    ) -> list[torch.Tensor]:
        """The losses in double precision with other values in place of some results; what does not follow is of `base`.

        `decided` is as `run` takes it.

        Raises NotApplicable as `run` does.
        """
        execution = _Execution(
            self.program,
            self._ready,
            self._masks,
            given,
            Precision.DOUBLE,
            None,
            instead,
            decided,
            False,
            of_any_extent=frozenset() if decided else self._behind,
        )
        execution.run.values.update(base.values)
        with _run_again(torch.float64), torch.no_grad():
            return execution.losses_behind(instead)


@dataclass
class _Execution:
    """One run of a program, as `DoubleRun.run` takes it."""

    program: StepProgram
    ready: Mapping[int, Ready]
    masks: dict[int, torch.Tensor]
    given: Given
    precision: Precision
    rounding: Rounding | None
    instead: Mapping[Node, torch.Tensor]
    decided: bool
    keep_gradients: bool
    done_with: Mapping[int, Sequence[Node]] = field(default_factory=dict)
    seen: Seen | None = None
    widens: bool = True
    of_any_extent: frozenset[int] = frozenset()
    """Calls whose results may have other extents than were recorded."""
    run: Run = field(default_factory=Run)
    leaves: dict[Source, torch.Tensor] = field(default_factory=dict)
    entering: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Gradients in place of those that have arrived at parameters."""
    inside: dict[Link, torch.Tensor] | None = None
    """What the backward of a custom function has at hand, while it runs."""

    def __post_init__(self) -> None:
        self.differentiated = self.program.differentiated

    def executed(self) -> Run:
        """All events in order, and what they gave."""
        for place, event in enumerate(self.program.events):
            if isinstance(event, Operator):
                self._call(event)
            elif isinstance(event, Backward):
                self._backward(event)
            elif event.gradient is not None:
                self._enters(event, event.gradient)
            for node in self.done_with.get(place, ()):
                del self.run.values[node]
        self.run.gradients = _gradients_in(self.leaves)
        if not self.keep_gradients:  # what autograd keeps is as much again
            self.run.values = {node: one.detach() for node, one in self.run.values.items()}
        return self.run

    def behind_gradients(self) -> dict[Node, torch.Tensor]:
        """The results behind the last backward pass."""
        places = [at for at, one in enumerate(self.program.events) if isinstance(one, Backward)]
        found = {}
        for event in self.program.events[max(places, default=-1) + 1 :]:
            if isinstance(event, Operator) and event.call.site.op != AUTOGRAD_GRAD:
                self._call(event, with_gradients=False)
                for record in event.call.with_role(*RESULTS):
                    node = Node(event.call.id, record.index)
                    found[node] = self.run.values[node]
        return found

    def losses_behind(self, changed: Iterable[Node]) -> list[torch.Tensor]:
        """The losses, with those calls made again that take what has changed; what is made of gradients stays."""
        behind, begins = set(changed), {one.call for one in changed}
        for event in self.program.events:
            if isinstance(event, Backward):
                self.run.losses.append(self._begun(event)[0])
            if not isinstance(event, Operator):
                continue
            links = [one.link for one in event.taken.values()]
            of_gradients = any(
                isinstance(one, Source) and one.kind is Enters.GRADIENT for one in links
            )
            follows = event.call.id in begins or any(one in behind for one in links)
            if follows and not of_gradients:
                self._call(event, with_gradients=False)
                records = event.call.with_role(*RESULTS)
                behind.update(Node(event.call.id, one.index) for one in records)
        return self.run.losses

    def _enters(self, update: Update, gradient: Taken) -> None:
        """Keep the gradient that an update takes as it is now: a later pass may add to it."""
        found, link = None, gradient.link
        if isinstance(link, Node):
            found = self.run.values[link]
        elif link.kind is Enters.GRADIENT:
            found = _gradients_in(self.leaves).get(link.name)
        if found is not None:
            self.run.entering[update.name] = found.detach().clone()

    def _backward(self, event: Backward) -> None:
        for source, leaf in self.leaves.items():
            if source.name in event.anew:
                leaf.grad = None
        for name, node in event.onto.items() if event.accumulates else ():
            self._hold_gradient(name, self.run.values[node])
        total, loss, gradient = self._begun(event)
        self.run.losses.append(total.detach().clone())
        before = self._of_few_numbers()
        if loss.requires_grad and event.accumulates:
            loss.backward(gradient, retain_graph=True)
        after = self._of_few_numbers()
        self.run.sent.append({name: one - before.get(name, 0) for name, one in after.items()})

    def _of_few_numbers(self) -> dict[str, torch.Tensor]:
        gradients = _gradients_in(self.leaves)
        return {
            name: one.detach().clone()
            for name, one in gradients.items()
            if one.numel() < FEW_NUMBERS
        }

    def _hold_gradient(self, name: str, made: torch.Tensor) -> None:
        """Let a parameter have the gradient that a call has made of it, for later passes to add to."""
        leaves = [
            leaf
            for source, leaf in self.leaves.items()
            if source.kind is Enters.NAMED and source.name == name and leaf.grad is not None
        ]
        for leaf in leaves:
            leaf.grad = None
        for leaf in leaves[:1]:
            leaf.grad = made.detach().to(leaf.dtype).clone()

    def _begun(self, event: Backward) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """What a backward pass is the gradient of: a loss, or the sum of its elements times a given gradient.

        With the loss itself, and that gradient.
        """
        loss = self._value(event.loss)
        if event.gradient is None:
            return loss, loss, None
        gradient = self._value(event.gradient).detach().to(loss.dtype)
        return (loss * gradient).sum(), loss, gradient

    def _call(self, operator: Operator, *, with_gradients: bool = True) -> None:
        call = operator.call
        gradients = with_gradients and (call.conditions is None or call.conditions.gradients)
        with torch.set_grad_enabled(gradients):
            for record, found in self._results(operator):
                if found is None:
                    raise CannotReplay(f"{call.site.op} returns a different shape when run again")
                node = Node(call.id, record.index)
                value = found if operator.body else self._rounded(found, record)
                if node in self.instead:
                    value = _put(self.instead[node], value)
                if node in self.differentiated and not value.requires_grad:
                    value = _as_leaf(value)
                self.run.values[node] = value
                if self.seen is not None:
                    self.seen(node, value.detach())
                if self.keep_gradients and value.requires_grad and not value.is_leaf:
                    value.retain_grad()

    def _rounded(self, value: torch.Tensor, record: TensorRecord) -> torch.Tensor:
        return value if self.rounding is None else self.rounding.of(value, record.dtype)

    def _results(self, operator: Operator) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
        call = operator.call
        if not_written(call):
            yield from ((one, self._unwritten(one)) for one in call.with_role(Role.OUTPUT))
            return
        if is_draw(call):
            yield from ((one, self._loaded(one)) for one in call.with_role(Role.OUTPUT))
            return
        passed = {index: self._passed(operator, index) for index in operator.taken}
        if operator.body is not None:
            yield from self._of_function(operator, operator.body, passed)
            return
        if call.site.op == AUTOGRAD_GRAD:
            yield from self._as_kept(asked_gradients(call, passed))
            return
        if exchange_of(call):
            yield from self._as_kept(exchanged(call, passed))
            return
        if drops(call):
            (result,) = call.with_role(Role.OUTPUT)
            (entering,) = passed.values()
            yield result, entering * self._mask(call, result) / (1 - probability_of(call))
            return
        made = self._made(operator, passed)
        yield from decisions_as_recorded(call, passed, made) if self.decided else made

    def _of_function(
        self, operator: Operator, body: Body, passed: Mapping[int, torch.Tensor]
    ) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
        """What a custom function gives: results that its calls have made, whose gradients its own backward sends on."""
        records = operator.call.with_role(*RESULTS)
        takes = [index for index, one in operator.taken.items() if not one.detached]

        def sent_back(arrived: Sequence[torch.Tensor]) -> Sequence[torch.Tensor | None]:
            came = zip(records, arrived, strict=True)
            held: dict[Link, torch.Tensor] = {
                one.link: passed[at] for at, one in operator.taken.items()
            }
            held.update({arriving_at(operator.call, one.index): two for one, two in came})
            return self._sent_back(body, held, takes)

        results = [passed[body.gives[one.index]] for one in records]
        given = as_custom_function(sent_back, results, [passed[one] for one in takes])
        yield from zip(records, given, strict=True)

    def _sent_back(
        self, body: Body, held: dict[Link, torch.Tensor], takes: Sequence[int]
    ) -> list[torch.Tensor | None]:
        """What a custom function's backward sends to its inputs."""
        if not body.sends:
            raise CannotReplay("the backward of a custom function was not recorded")
        asked = differentiated_in(body.calls)
        held.update({link: _as_leaf(held[link]) for link in asked if link in held})
        before, self.inside = self.inside, held
        try:
            for operator in body.calls:
                self._call_of_body(operator, asked)
        finally:
            self.inside = before
        return [held[body.sends[one]] if one in body.sends else None for one in takes]

    def _call_of_body(self, operator: Operator, asked: Collection[Link]) -> None:
        assert self.inside is not None
        call = operator.call
        gradients = call.conditions is not None and call.conditions.gradients
        with torch.set_grad_enabled(gradients or torch.is_grad_enabled()):
            for record, found in self._results(operator):
                if found is None:
                    raise CannotReplay(f"{call.site.op} returns a different shape when run again")
                node, value = Node(call.id, record.index), self._rounded(found, record)
                leaf = node in asked and not value.requires_grad
                self.inside[node] = _as_leaf(value) if leaf else value

    def _as_kept(
        self, results: Iterable[tuple[TensorRecord, torch.Tensor | None]]
    ) -> Iterator[tuple[TensorRecord, torch.Tensor | None]]:
        """Results in the dtype that they are kept in, where programs run in recorded dtypes."""
        for record, found in results:
            own = self.precision is Precision.OWN and found is not None
            yield (
                record,
                found.to(torch_dtype(record.dtype)) if own and found is not None else found,
            )

    def _made(
        self, operator: Operator, passed: Mapping[int, torch.Tensor]
    ) -> Sequence[tuple[TensorRecord, torch.Tensor | None]]:
        """What a call gives; one that draws beside what it computes draws from its generator's state."""
        ready, call = self.ready[operator.call.id], operator.call
        if not draws_inside(call):
            free = call.id in self.of_any_extent
            with self._within(call):
                made = list(ready.results(passed, self.precision, of_any_extent=free))
            return made if self.widens else list(self._as_kept(made))
        own = (
            [one.record for one in operator.taken.values()]
            if self.precision is Precision.DOUBLE
            else []
        )
        with leaving_no_trace(state_of_draw(call)), drawing_as(own):
            made = list(ready.results(passed, self.precision))
        if self.precision is Precision.DOUBLE and call.id not in self.masks:
            self._check_draws(operator, passed, made)
            self.masks[call.id] = torch.ones(0)
        return made

    def _within(self, call: Call) -> AbstractContextManager[object]:
        """The autocast that a call was recorded under, where nothing is widened: one that is made of others, as a
        recurrent cell is, rounds inside of it.
        """
        known = dict(call.conditions.autocast) if call.conditions is not None else {}
        devices = {one.content.device.partition(":")[0] for one in call.with_role(Role.OUTPUT)}
        dtypes = {known[one] for one in devices & known.keys()}
        if self.widens or self.precision is not Precision.OWN or len(dtypes) != 1:
            return nullcontext()
        return torch.autocast("cpu", torch_dtype(dtypes.pop()), cache_enabled=False)

    def _check_draws(
        self,
        operator: Operator,
        passed: Mapping[int, torch.Tensor],
        made: Sequence[tuple[TensorRecord, torch.Tensor | None]],
    ) -> None:
        """Find that a call draws the same in double precision as in its own."""
        call = operator.call
        own = {
            index: one.detach().to(torch_dtype(operator.taken[index].record.dtype))
            for index, one in passed.items()
        }
        with leaving_no_trace(state_of_draw(call)), torch.no_grad():
            again = list(self.ready[call.id].results(own, Precision.OWN))
        for (record, one), (_, two) in zip(made, again, strict=True):
            if one is None or two is None or not one.dtype.is_floating_point:
                continue
            if relative(widened(two), one.detach()) > _OTHER_DRAWS:
                raise CannotReplay(f"{record.name} is drawn otherwise in double precision")

    def _passed(self, operator: Operator, index: int) -> torch.Tensor:
        taken = operator.taken[index]
        tensor = self._value(taken)
        if taken.detached:
            tensor = tensor.detach()
        ready = self.ready.get(operator.call.id)
        if ready is None:
            return tensor
        if self.precision is Precision.OWN:
            tensor = in_order(tensor, taken.record.layout)
        if ready.cast is not None and tensor.dtype.is_floating_point:
            if self.precision is Precision.OWN:
                tensor = tensor.to(ready.cast) if self._casts(tensor, ready.cast) else tensor
            elif self.rounding is not None:
                tensor = self.rounding.of(tensor, str(ready.cast).removeprefix("torch."))
        return tensor.clone() if ready.writes else tensor

    def _casts(self, tensor: torch.Tensor, dtype: torch.dtype) -> bool:
        return self.widens or torch.finfo(tensor.dtype).eps <= torch.finfo(dtype).eps

    def _value(self, taken: Taken) -> torch.Tensor:
        link = taken.link
        if self.inside is not None:
            return self.inside[link]
        if isinstance(link, Node):
            return self.run.values[link]
        if link.kind is Enters.GRADIENT:
            arrived = self.run.gradients or _gradients_in(self.leaves)
            found = self.entering.get(link.name, arrived.get(link.name))
            if found is None:
                raise CannotReplay(
                    f"the gradient of {link.name} does not come of its recorded calls"
                )
            return found.detach()
        if link not in self.leaves:
            tensor = self.given(link, taken.record)
            learns = link.kind is Enters.NAMED and link.name in self.program.gradients
            if (learns or link in self.differentiated) and tensor.dtype.is_floating_point:
                tensor = tensor.detach().clone().requires_grad_()
            self.leaves[link] = tensor
        return self.leaves[link]

    def _loaded(self, record: TensorRecord) -> torch.Tensor:
        tensor = load(record)
        return widened(tensor) if self.precision is Precision.DOUBLE else tensor

    def _unwritten(self, record: TensorRecord) -> torch.Tensor:
        """Memory that nobody has written: NaN, so that no loss is told that depends on it."""
        dtype = torch_dtype(record.dtype)
        empty = torch.zeros(record.shape, dtype=dtype)
        if dtype.is_floating_point or dtype.is_complex:
            empty.fill_(math.nan)
        return widened(empty) if self.precision is Precision.DOUBLE else empty

    def _mask(self, call: Call, result: TensorRecord) -> torch.Tensor:
        """Which elements dropout let through: told by its generator's state, else by what it gave."""
        if call.id not in self.masks:
            self.masks[call.id] = kept_elements(call)
        return self.masks[call.id]


_OTHER_DRAWS = 2.0**-5
"""Relative distance beyond any rounding of 16-bit results: dropping other elements with p = 0.001 makes 0.04."""


def _ready(operator: Operator) -> Ready:
    call = operator.call
    try:
        if operator.through:
            return WritesThrough(operator)
        return one_call(call, draws=draws_inside(call))
    except CannotReplay as error:
        raise NotApplicable(f"{call.site.op} at {call.source}: {error}") from error


def _as_leaf(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().requires_grad_()


def _put(other: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Another number in place of a result, through which gradients go as through that."""
    other = other.detach().reshape(value.shape)
    return value + (other - value.detach()) if value.dtype.is_floating_point else other


def _gradients_in(leaves: Mapping[Source, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients that have arrived by now, added up over what each parameter has been."""
    found: dict[str, torch.Tensor] = {}
    for source, leaf in leaves.items():
        if source.kind is Enters.NAMED and leaf.grad is not None:
            before = found.get(source.name)
            found[source.name] = leaf.grad if before is None else before + leaf.grad
    return found


@contextmanager
def _run_again(default: torch.dtype) -> Iterator[None]:
    """Leave no trace, and say of what torch refuses that no law can be applied."""
    try:
        with torch_may_refuse(), leaving_no_trace(), _by_default(default):
            yield
    except CannotReplay as error:
        raise NotApplicable(str(error)) from error


@contextmanager
def _by_default(dtype: torch.dtype) -> Iterator[None]:
    """What a call makes of nothing is made in this dtype."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
