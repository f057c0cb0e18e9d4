"""What a run recorded of a step, and what its program is made of: calls, backward passes and updates, with their links.

Knows no torch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from lockstep.core.operators import AUTOGRAD_GRAD
from lockstep.core.records import GIVES_GRADIENTS, Call, Sketch, TensorRecord
from lockstep.core.site import Role

RESULTS = (Role.OUTPUT, Role.BUFFER)


class NotApplicable(Exception):  # noqa: N818 - it is an answer, not a failure of Lockstep
    """A law cannot be applied to a step; the message says why. Never leaves this package."""


Contents = frozenset[tuple[str, tuple[int, ...]]]
"""Tensors by digest and shape."""


@dataclass(frozen=True, slots=True)
class StepOfRun:
    """What a run recorded of a step.

    calls: All of it.
    starts: Parameters and buffers by name, as the first recorded step took them.
    sketches: Of what was not saved whole, by number of the content.
    constants: What custom functions, hooks and optimizers hold in this step and in another one of the run.
    """

    calls: tuple[Call, ...]
    starts: Mapping[str, TensorRecord] = field(default_factory=dict)
    sketches: Mapping[int, Sketch] = field(default_factory=dict)
    constants: Contents = frozenset()


@dataclass(frozen=True, slots=True)
class StepOfBoth:
    """One step of both runs.

    `names` is what the reference calls a parameter of the candidate, where that is another name; `reads_numbers` tells
    that Python took numbers out of tensors on the way to a loss, `reads_behind` that it did so behind the last backward
    pass.
    """

    reference: StepOfRun
    candidate: StepOfRun
    names: Mapping[str, str]
    reads_numbers: bool = False
    reads_behind: bool = False


class Enters(Enum):
    """What a source is."""

    NAMED = "parameter or buffer"
    ARRIVED = "batch or constant"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that no call of the step made.

    `name` is that of a parameter or buffer, of the parameter whose gradient it is, or the number of an arrived content.
    `version` counts how often a parameter was found changed though no call had changed it.
    """

    kind: Enters
    name: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A result of a call: `index` as its record has it."""

    call: int
    index: int


Link = Node | Source


@dataclass(frozen=True, slots=True)
class Taken:
    """One input of a call; `detached` where no gradient goes back through it."""

    link: Link
    record: TensorRecord
    detached: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A result of a call that is memory of the tensor which the call takes at an index."""

    call: Call
    takes: int
    gives: int


@dataclass(frozen=True, slots=True)
class Written:
    """A view that was written to, by the calls that make it; whether what was written has gradients."""

    views: tuple[View, ...]
    gradients: bool


@dataclass(frozen=True, slots=True)
class Body:
    """What a custom autograd function does, whose forward calls are calls of the program before it.

    gives: By result: which of the tensors that the function takes it is.
    calls: What its backward calls, in order; each takes gradients that arrive (`arriving_at`), results of the others,
        and what the function takes.
    sends: By input: what the backward sends there.
    """

    gives: dict[int, int]
    calls: tuple[Operator, ...]
    sends: dict[int, Link]


@dataclass(frozen=True, slots=True)
class Operator:
    """A call that is run again, with its inputs by index.

    `through` is there where no recorded call is: of a tensor, its first input, that changed because views of it were
    written to. The other inputs are what was written to each. `body` is there where it is a custom function, which
    takes all that it holds for backward beside its inputs.
    """

    call: Call
    taken: dict[int, Taken]
    through: tuple[Written, ...] = ()
    body: Body | None = None


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward pass from a loss; gradients of `anew` that were there before are thrown away.

    `gradient` is what the script lets it begin with; None for 1. `onto` is what the calls of the program have made of
    gradients that the pass adds to, as a clip before an update has, by parameter.
    """

    call: Call
    loss: Taken
    anew: frozenset[str]
    reached: frozenset[str]
    gradient: Taken | None = None
    onto: Mapping[str, Node] = field(default_factory=dict)

    @property
    def accumulates(self) -> bool:
        """Whether its gradients are added up; those that a script asks for are what a call of their own gives."""
        return not self.call.arguments.get(GIVES_GRADIENTS)


@dataclass(frozen=True, slots=True)
class Update:
    """An update of one parameter, and the tensors that enter it.

    `made` is the result that the parameter becomes where the program has the calls that update it, and `kept` are those
    that its states become, by the optimizer's names; None and none where an optimizer's class tells it.
    """

    call: Call
    parameter: Taken
    gradient: Taken | None
    made: Node | None = None
    kept: Mapping[str, Node] = field(default_factory=dict)

    @property
    def results(self) -> Iterator[Node]:
        """What the program has of it."""
        yield from () if self.made is None else (self.made,)
        yield from self.kept.values()

    @property
    def name(self) -> str:
        """The parameter's."""
        return self.parameter.record.name


Event = Operator | Backward | Update


def arriving_at(call: Call, index: int) -> Node:
    """What stands for the gradient that arrives at a result of a custom function."""
    return Node(call.id, -1 - index)


def asked_of(call: Call) -> range:
    """Which inputs of `torch.autograd.grad` are those whose gradients it gives; the outputs come before."""
    outputs = int(call.arguments["outputs"])
    return range(outputs, outputs + int(call.arguments["inputs"]))


def differentiated_in(operators: Iterable[Operator]) -> frozenset[Link]:
    """Where the tensors come from whose gradients some of these calls ask for."""
    return frozenset(
        one.taken[index].link
        for one in operators
        if one.call.site.op == AUTOGRAD_GRAD
        for index in asked_of(one.call)
    )


@dataclass(frozen=True, slots=True)
class Gathered:
    """A parameter that is put together of shards: the call that stands for it, and the rank's own shard."""

    operator: Operator
    shard: TensorRecord


class Passing(Protocol):
    """What passes between the ranks of a step beside the calls that were recorded of it."""

    def reduced(self, record: TensorRecord, name: str = "") -> Operator | None:
        """The call that made a gradient out of those of all ranks.

        record: Of a tensor that no recorded call made.
        name: The parameter whose gradient it is; "" where that is to be found by its numbers.
        """

    def number(self) -> int:
        """A number for a call that no recording holds."""

    def completing(self, record: TensorRecord, call: Call) -> Call | None:
        """The call that puts the ranks' parts of an input together before a call takes it; None for no part."""

    def gathered(self, record: TensorRecord) -> Gathered | None:
        """The call that put a parameter together of the shards that ranks hold; None for one that is held whole.

        Raises NotApplicable if the shards do not make it.
        """


@dataclass(slots=True)
class StepProgram:
    """The program of one step of one run.

    events: What is run, in order of time.
    sources: What enters, with the record that it was first seen by.
    gradients: The gradient of each parameter after the last backward pass, as recorded.
    buffers: The result that each parameter or buffer which a call has written to holds at the end.
    results: The record of every result.
    unplaced: What makes it uncertain which of equal tensors a call took, in words.
    sent: By parameter, the gradient that the one call sent which takes it, and that which arrived: they are one unless
        something between changes it, such as a hook.
    held: What enters a call within a custom function or an optimizer, and no recorded call has made: a constant, or
        what was computed past every recorded call.
    moved: Parameters, buffers and gradients that changed within the step though no recorded call has changed them.
    hooked: By parameter, what hooks have made of its gradient, as recorded: where ranks exchange it, no call has it.
    of_losses: Numbers of the calls on which a loss depends.
    """

    events: list[Event] = field(default_factory=list)
    sources: dict[Source, TensorRecord] = field(default_factory=dict)
    gradients: dict[str, TensorRecord] = field(default_factory=dict)
    buffers: dict[str, Node] = field(default_factory=dict)
    unplaced: list[str] = field(default_factory=list)
    results: dict[Node, TensorRecord] = field(default_factory=dict)
    held: set[Source] = field(default_factory=set)
    moved: list[TensorRecord] = field(default_factory=list)
    sent: dict[str, tuple[TensorRecord, TensorRecord]] = field(default_factory=dict)
    hooked: dict[str, TensorRecord] = field(default_factory=dict)
    of_losses: frozenset[int] = frozenset()

    @property
    def operators(self) -> Iterator[Operator]:
        """The calls among the events."""
        return (event for event in self.events if isinstance(event, Operator))

    @property
    def differentiated(self) -> frozenset[Link]:
        """Where the tensors come from whose gradients a script asks for."""
        return differentiated_in(self.operators)

    @property
    def losses(self) -> list[Backward]:
        """The backward passes among the events."""
        return [event for event in self.events if isinstance(event, Backward)]

    @property
    def updates(self) -> list[Update]:
        """The updates among the events."""
        return [event for event in self.events if isinstance(event, Update)]

    @property
    def used_gradients(self) -> Mapping[str, TensorRecord]:
        """Those of `gradients` that an update or a call takes; all of them in a step without updates.

        Of what nothing takes and nobody sets to zero, as that of a parameter which no optimizer was given, the next
        step's gradient is a sum, and no call tells it.
        """
        updated = {one.name for one in self.updates}
        if not updated:
            return self.gradients
        links = (taken.link for one in self.operators for taken in one.taken.values())
        updated |= {
            one.name for one in links if isinstance(one, Source) and one.kind is Enters.GRADIENT
        }
        return {name: one for name, one in self.gradients.items() if name in updated}

    @property
    def made_of_gradients(self) -> Iterator[Node]:
        """Results that no loss depends on, which a script may keep for the next step as an optimizer does."""
        for one in self.operators:
            if one.call.id not in self.of_losses:
                yield from (Node(one.call.id, each.index) for each in one.call.with_role(*RESULTS))

    def makers(self) -> dict[Node, Operator]:
        """Which call made each result."""
        return {
            Node(one.call.id, record.index): one
            for one in self.operators
            for record in one.call.with_role(*RESULTS)
        }


def finished(program: StepProgram, makers: Mapping[Node, Operator]) -> StepProgram:
    """A program without the calls on which no loss, update, parameter or buffer depends.

    Raises NotApplicable if a loss is computed from gradients of parameters.
    """
    _keep_needed(program, makers)
    _name_sources(program)
    program.of_losses = _before_losses(program, makers)
    if any(_takes_gradient(one) for one in program.operators if one.call.id in program.of_losses):
        raise NotApplicable("a loss is computed from gradients of parameters")
    return program


def _keep_needed(program: StepProgram, makers: Mapping[Node, Operator]) -> None:
    waiting: list[Link] = []
    for event in program.events:
        if isinstance(event, Backward):
            waiting.append(event.loss.link)
            waiting.extend([] if event.gradient is None else [event.gradient.link])
        elif isinstance(event, Update):
            taken = (event.parameter, event.gradient)
            waiting.extend(one.link for one in taken if one is not None)
            waiting.extend(event.results)
    waiting.extend(program.buffers.values())
    needed = _made_by(waiting, makers)
    program.events = [
        one for one in program.events if not isinstance(one, Operator) or one.call.id in needed
    ]


def _name_sources(program: StepProgram) -> None:
    used = {taken.link for one in program.operators for taken in one.taken.values()}
    used |= {one.gradient.link for one in program.losses if one.gradient is not None}
    for one in program.updates:
        used |= {each.link for each in (one.parameter, one.gradient) if each is not None}
    program.sources = {key: one for key, one in program.sources.items() if key in used}
    kept = {one.call.id for one in program.operators}
    program.results = {key: one for key, one in program.results.items() if key.call in kept}
    program.buffers = {key: one for key, one in program.buffers.items() if one.call in kept}


def _before_losses(program: StepProgram, makers: Mapping[Node, Operator]) -> frozenset[int]:
    """The calls on which a loss depends."""
    begins = [one for event in program.losses for one in (event.loss, event.gradient)]
    return _made_by([one.link for one in begins if one is not None], makers)


def _made_by(waiting: list[Link], makers: Mapping[Node, Operator]) -> frozenset[int]:
    """The calls that these depend on; takes them out of the list."""
    needed: set[int] = set()
    while waiting:
        link = waiting.pop()
        if isinstance(link, Source) or link.call in needed:
            continue
        needed.add(link.call)
        waiting.extend(one.link for one in makers[link].taken.values())
    return frozenset(needed)


def named_where_taken(record: TensorRecord) -> str:
    """What an input without a name of its own is called: by the call that takes it first."""
    return f"{record.name} of {record.site.op}"


def _takes_gradient(operator: Operator) -> bool:
    links = [taken.link for taken in operator.taken.values()]
    return any(isinstance(one, Source) and one.kind is Enters.GRADIENT for one in links)


def is_whole(record: TensorRecord) -> bool:
    """Whether all numbers of a tensor were recorded."""
    return record.content.loader is not None or record.content.numel == 0


def sketches_of(calls: Iterable[Call]) -> dict[int, Sketch]:
    """The sketches of what was not saved whole, by number of the content."""
    contents = {
        record.content.id: record.content
        for whole in calls
        for call in (whole, *whole.body)
        for record in (*call.records, *call.sample)
        if not is_whole(record) and record.role in _HELD_AGAINST
    }
    found = {number: content.sketch for number, content in contents.items()}
    return {number: sketch for number, sketch in found.items() if sketch is not None}


_HELD_AGAINST = frozenset(
    {
        Role.OUTPUT,
        Role.BUFFER,
        Role.GRAD_OUTPUT,
        Role.PARAM_GRAD,
        Role.PARAM_AFTER,
        Role.STATE_AFTER,
        Role.PARAM,
        Role.STATE,
        Role.SAMPLE,
    }
)
"""Roles of tensors that law K compares with what a program gives, and of those that an update takes."""
