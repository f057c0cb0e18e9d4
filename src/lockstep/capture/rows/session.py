"""Turn the calls that the taps see into rows of one rank's recording.

The taps (`interception`) know when something is called; the recorder knows which step it is; this module knows what a
call looks like on disk.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from operator import attrgetter, itemgetter
from types import CodeType
from typing import Any, NamedTuple

import torch

from lockstep.capture.calls.collectives import fills, is_collective, writes
from lockstep.capture.calls.gradients import (
    NUMBER,
    EdgeFinder,
    PendingSums,
    changed_edge,
    edge_number,
    first_sequence_number,
    next_number,
    watch,
)
from lockstep.capture.calls.kernel_context import (
    layout_of,
    layouts_of,
    may_draw,
    random_state,
)
from lockstep.capture.calls.leaves import (
    KeptAttributes,
    NamedTensor,
    values_refused,
)
from lockstep.capture.calls.long_graphs import LongGraphs
from lockstep.capture.calls.open_call import NO_NUMBERS, Edge, OpenCall, Positions
from lockstep.capture.calls.surroundings import arguments_written
from lockstep.capture.calls.unseen_work import OutOfSight
from lockstep.capture.modules.module_paths import ModuleNames
from lockstep.capture.rows.arrival_rows import Arrivals
from lockstep.capture.rows.derivations import Derivations
from lockstep.capture.rows.gaps import Gaps
from lockstep.capture.rows.hand_updates import HandUpdates
from lockstep.capture.rows.parameter_rows import ParameterRows
from lockstep.capture.rows.rows import Made, Rows
from lockstep.capture.rows.update_rows import UpdateRows
from lockstep.capture.silence import silently
from lockstep.capture.tensors.contents import UNRECORDED, Contents
from lockstep.capture.tensors.memory import part_indexed
from lockstep.capture.tensors.whole_sources import WholeSources
from lockstep.core.manifest import Event, NotSeen
from lockstep.core.operators import Family, family_of
from lockstep.core.records import GIVES_GRADIENTS, LEAF, NO_GRADIENT
from lockstep.core.selection import SiteFilter
from lockstep.core.site import CallKind, Phase, Role
from lockstep.devices.methods import equal, is_inference
from lockstep.store.writer import RankWriter

_UNINITIALIZED = re.compile(r"(^|[._])empty([._]|$)")
"""Operators that give memory as they find it."""


_SILENT = re.compile("batch_norm|instance_norm")
"""Operators that write to buffers without counting it as a version."""

_PARTIAL = re.compile("index|scatter|masked|put|diagonal")
"""Operators that may leave elements of what they write to as they are."""


_BRING_NUMBERS = (Family.RANDOM, Family.DROPOUT, Family.UNINITIALISED)
"""Operators whose results do not follow from what goes in."""


class _Effects(NamedTuple):
    """What an operator may do besides what autograd counts, by its name."""

    gives_memory: bool
    writes_silently: bool
    written: tuple[str, ...]
    """Arguments that it writes to whether their versions tell or not; a list's tensors have a number behind."""
    is_collective: bool
    may_draw: bool
    brings_numbers: bool


@cache
def _effects_of(op: str) -> _Effects:
    silent = _SILENT.search(op) is not None
    gives = _UNINITIALIZED.search(op) is not None
    collective = is_collective(op)
    brings = collective or family_of(op) in _BRING_NUMBERS
    return _Effects(gives, silent, arguments_written(op), collective, may_draw(op), brings)


def _is_among(name: str, arguments: tuple[str, ...]) -> bool:
    """Whether an input is one of these arguments, or of a list that is one."""
    return any(name == one or name.startswith(f"{one}.") for one in arguments)


class Session:
    """Emits calls, records and contents of one rank to its writer: calls here, the rest in rooms of its own.

    writer: Takes the rows.
    save: "stats", "sketch", "program" or "tensors".
    sites: Which sites are wanted.
    names: Names of modules and parameters.
    operators: Whether operators are recorded (levels api and aten); if not, tensors between modules are unseen.
    below_nodes: Whether what autograd's nodes call is recorded too (level aten).
    parameter_name: Name of a parameter that no module owns, by its optimizer, or None.
    watch_parameters: Is told of new parameters, whose gradients are to be listened to; by None, that any may be new.
    trained: Gives the identities of the parameters that optimizers hold.
    idle: Gives those whose optimizers have never stepped.
    fail: Takes an error of our own that must not reach the training.
    border: See `capture.source_code.stacks.Stacks`.
    out_of_sight: What the model has computed where no step was open.
    optimizer_state: Whether an optimizer's state is recorded beside its parameters.
    sketch_parameters: With `save` "stats": whether parameters have sketches all the same.
    for_rules, finite_alone: Whether rules on numbers are all that it is recorded for, and which of these they ask for;
        see `Contents`.
    sources: With `save` "program": decides which contents are kept whole.

    rows, contents: Calls and records, and the contents of tensors.
    parameters, arrivals, updates: Rows of modules and parameters, of what comes from outside, and of updates.
    gaps: What is not seen.
    gradients_are_batched: Whether the engine runs once for several gradients (`is_grads_batched`): then what arrives
        has no numbers.
    """

    def __init__(
        self,
        writer: RankWriter,
        *,
        save: str,
        sites: SiteFilter,
        names: ModuleNames,
        operators: bool,
        below_nodes: bool,
        parameter_name: Callable[[torch.Tensor], str | None],
        watch_parameters: Callable[[Sequence[torch.Tensor] | None], None],
        trained: Callable[[], frozenset[int]],
        idle: Callable[[], frozenset[int]],
        fail: Callable[[Exception], None],
        border: CodeType,
        out_of_sight: OutOfSight,
        optimizer_state: bool = True,
        sketch_parameters: bool = False,
        for_rules: bool = False,
        finite_alone: bool = False,
        sources: WholeSources | None = None,
    ) -> None:
        self.names, self.fail = names, fail
        self.contents = Contents(
            writer, save, trust_versions=operators, sketch_parameters=sketch_parameters,
            trust_results=for_rules, finite_alone=finite_alone, sources=sources,
        )  # fmt: skip
        self._inputs_are_sources = operators and self.contents.keeps_inputs
        self.rows, self.writer = Rows(writer, border), writer
        self.gaps, self.events = Gaps(), list[Event]()
        self.parameters = ParameterRows(
            self.rows, self.contents, names, sites, self.gaps,
            watch_parameters=watch_parameters, trained=trained, for_rules=for_rules,
        )  # fmt: skip
        self.arrivals = Arrivals(
            self.rows, self.contents, self.parameters,
            operators=operators, parameter_name=parameter_name, out_of_sight=out_of_sight,
        )  # fmt: skip
        self._derivations = Derivations(self.contents)
        self._hand_updates = HandUpdates(self.rows, self.contents)
        self.updates = UpdateRows(
            self.rows, self.contents, self._derivations, names, sites, self._hand_updates,
            optimizer_state=optimizer_state,
        )  # fmt: skip
        self.pending, self.edges = PendingSums(), EdgeFinder()
        self.attributes = KeptAttributes()
        self._long_graphs = LongGraphs()
        self.wants, self.wants_all = sites.wants, not sites
        self._below_nodes = below_nodes
        self._trained, self._idle = trained, idle
        self._has_ended_a_step = False
        self._later: set[OpenCall] = set()
        self.gradients_are_batched = False

    @property
    def call_count(self) -> int:
        """How many calls the open step has had."""
        return self.rows.call_count

    # --- steps ---------------------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Start a step: call numbers and identities start anew."""
        self.rows.begin_step(step)
        self.arrivals.begin_step()
        self.updates.begin_step()
        self.names.refresh()
        self.parameters.remember()
        self._hand_updates.begin_step(self._trained(), self._idle())

    def record_hand_updates(self) -> bool:
        """Record what the script has made of its parameters by hand since backward, and tell whether it has."""
        return self._hand_updates.are_possible and self._hand_updates.record()

    def may_be_updated_by_hand(self, parameter: torch.Tensor) -> bool:
        """Whether a parameter was given a gradient that no optimizer takes, and is as it was before its update."""
        if parameter.grad is None or self.names.owner_of(parameter) is None:
            return False
        return self._hand_updates.may_take(parameter)

    def is_certain(self) -> None:
        """The step that is open is one."""
        self.rows.is_certain()

    def set_aside(self) -> None:
        """Set aside the rows since the step was opened; `begin_step` starts it again.

        In the first step that goes for names and initial parameters too: a checkpoint may have been loaded since.
        """
        self._later.clear()
        self.pending.settle()
        self._forget_identities()
        self.rows.set_aside(keep_set_up=self._has_ended_a_step)
        if not self._has_ended_a_step:
            self.parameters.start_anew()
            self.attributes.forget()

    def end_step(self) -> None:
        """End the step."""
        self._end_without_results()
        self.pending.settle()
        self._forget_identities()
        self._hand_updates.forget()
        self.rows.end_step()
        for gap in values_refused():
            self.gaps.add(gap)
        if self.contents.sources is not None:
            for gap in self.contents.sources.gaps():
                self.gaps.renew(gap)
        self._has_ended_a_step = True

    def _forget_identities(self) -> None:
        self.edges.forget()
        self._long_graphs.forget()
        self.contents.forget_identities()
        self._derivations.forget()

    # --- calls ---------------------------------------------------------------------------------------------------

    @silently
    def begin(
        self,
        call: OpenCall,
        buffers: Iterable[NamedTensor] = (),
    ) -> OpenCall:
        """Begin a call: number it and record what goes in.

        `buffers` are those that it may change. None comes back where this fails.
        """
        call.session, wanted = self, call.wanted
        if call.inputs and call.inputs[-1][0].startswith("kwargs."):
            call.unread = _outs(call.kind, call.inputs)
        comes = call.phase is Phase.FORWARD and call.kind is not CallKind.FUNCTION_BODY
        self._name_inputs(call, may_arrive=wanted and comes)
        self.rows.open(call)
        if wanted:
            for _, tensor in buffers:
                call.buffers = (*call.buffers, self.contents.of(tensor, source=True))
            self._take_inputs(call)
        call.since = first_sequence_number()
        return call

    def _name_inputs(self, call: OpenCall, *, may_arrive: bool) -> None:
        """What inputs are called, which of them are parameters, and how often they were written to.

        What comes from outside of the step is recorded first, where it may.
        """
        owners, stand_ins = self.names.owners, self.names.stand_ins
        labels, call.versions = [], _versions_of(call.inputs)
        for index, (name, tensor) in enumerate(call.inputs):
            found = owners.get(id(tensor)) or (stand_ins and stand_ins.get(id(tensor)))
            owner = found[1:] if found and found[0] is tensor else None
            if owner is None and may_arrive and index not in call.unread:
                try:
                    may_come = tensor.grad_fn is None
                except RuntimeError:  # see `graph_node`
                    may_come = True
                if may_come:
                    inside = call.place is not None
                    self.arrivals.note(tensor, name, call.path, call.op, inside=inside)
                    owner = self.names.owner_of(tensor)
            if owner is not None:
                name = owner[1]
                if tensor.requires_grad:
                    call.parameters |= {index}
            labels.append(name)
        call.labels = tuple(labels)  # a tuple of texts is nothing to collect

    def _take_inputs(self, call: OpenCall) -> None:
        """Take the contents of what goes in, how it lies, and where its gradient goes."""
        tick, contents, grad = self.rows.tick, self.contents, call.grad
        source, updated = self._inputs_are_sources, self.updates.in_this_step
        call.contents = taken = []
        numbers: list[int | None] = []
        call.edge_numbers = numbers
        call.edges = edges = []
        for index, (_, tensor) in enumerate(call.inputs):
            sequence = tick()
            is_read = index not in call.unread
            if updated and is_read and id(tensor) in updated:  # two optimizers that take turns
                taken.append((sequence, contents.entering(tensor)))
            else:
                of = contents.of(tensor, source=source) if is_read else UNRECORDED
                taken.append((sequence, of))
            if not tensor.requires_grad:
                numbers.append(NO_GRADIENT)
                continue
            number: int | None = LEAF
            try:
                node: Any = tensor.grad_fn
            except RuntimeError:  # see `graph_node`
                node = number = None
            if node is not None:  # as `edge_number`
                edge: Edge | None = (node, tensor.output_nr)
                number = node.metadata.setdefault(NUMBER, next_number()) + tensor.output_nr
            else:
                edge = self.edges.leaf_edge(tensor) if grad else None
            numbers.append(number)
            if grad and edge is not None:
                edges.append((index, edge))
        call.layouts = layouts_of(call.inputs)
        if contents.keeps_tensors or contents.sources is not None:
            self._take_what_follows_from(call)

    def _take_what_follows_from(self, call: OpenCall) -> None:
        """Take the state of the generator, and what the results may be computed from."""
        may_draw, keeps_tensors = _effects_of(call.op).may_draw, self.contents.keeps_tensors
        if may_draw or (keeps_tensors and call.kind is CallKind.MODULE):
            call.random_state = random_state(call.inputs)
        if keeps_tensors:
            self._derivations.begun(call)

    @silently
    def end(
        self,
        call: OpenCall,
        outputs: Sequence[NamedTensor],
        buffers: Iterable[NamedTensor] = (),
        part: object = ...,
    ) -> None:
        """End a call: record what came out, what it changed in place, and tap its gradients.

        `part` is the index of the elements that an assignment wrote to.
        """
        effects = _effects_of(call.op)
        changed: list[int] = []
        if call.inputs:
            versions = _versions_of(call.inputs)
            silent = effects.is_collective or effects.writes_silently or effects.written
            if silent or versions != call.versions:
                changed = self._changed_by(call, effects, versions, part)
        if effects.gives_memory:
            for _, tensor in outputs:
                self.contents.found(tensor)
        if call.wanted:
            if call.random_state is not None:
                self._note_drawn(call, call.random_state)
            made = self._made_by(call, outputs, changed)
            if buffers:
                behind = len(outputs) + len(call.inputs)
                made += self._changed_buffers(call, buffers, behind)
            self.rows.add_ended(call, made)
            self._tap(call, outputs)
        else:
            for _, tensor in outputs:
                self.contents.note(tensor)
        call.let_go()

    def _note_drawn(self, call: OpenCall, before: torch.Tensor) -> None:
        """Keep the state of the generator before a call that drew from it."""
        now = random_state(call.inputs)
        if now is not None and not equal(now, before):
            call.drawn = self.contents.of(before, source=True)

    def _changed_by(
        self, call: OpenCall, effects: _Effects, versions: Sequence[int], part: object
    ) -> list[int]:
        """Which inputs the call wrote to; `versions` are those that they have now."""
        changed = []
        for index, (name, tensor) in enumerate(call.inputs):
            version = versions[index]
            if version != call.versions[index] or _is_among(name, effects.written):
                changed.append(index)
                self._wrote(call, name, tensor, part)
            elif effects.is_collective or (effects.writes_silently and call.labels[index] != name):
                self.contents.changed(tensor)
                if fills(call.op, name):
                    self.contents.written(tensor)
                if call.wanted and (
                    writes(call.op, name) or self.contents.of(tensor) != call.contents[index][1]
                ):
                    changed.append(index)
        return changed

    def _wrote(self, call: OpenCall, name: str, tensor: torch.Tensor, part: object) -> None:
        """A call has written to an input."""
        self.contents.changed(tensor)
        if self._hand_updates.are_possible:
            self._hand_updates.wrote(call, tensor)
        if fills(call.op, name) or not _PARTIAL.search(call.op):
            self.contents.written(tensor, part)
        elif self.contents.was_found(tensor):
            indexed = part_indexed(call.op, dict(call.inputs), call.arguments)
            if indexed is not None:
                self.contents.written(tensor, indexed)

    def _made_by(
        self, call: OpenCall, outputs: Sequence[NamedTensor], changed: list[int]
    ) -> list[Made]:
        """What came out of a call, and the inputs that it has changed."""
        formula = self._derivations.output(call) if call.known and len(outputs) == 1 else None
        made: list[Made] = []
        enters = self.contents.keeps_inputs and self._brings_numbers(call)
        for index, (name, tensor) in enumerate(outputs):
            content = self.contents.of(tensor, formula, source=enters or self._decides(tensor))
            laid = layout_of(tensor)
            made.append((Role.OUTPUT, index, name, content, laid, edge_number(tensor)))
        if not changed:
            return made
        returned = {id(tensor) for _, tensor in outputs}
        for index in changed:
            name, tensor = call.inputs[index]
            if id(tensor) not in returned:
                label = call.labels[index]
                role = Role.OUTPUT if label == name else Role.BUFFER
                source = enters or self._decides(tensor)
                content, edge = self.contents.of(tensor, source=source), changed_edge(tensor)
                made.append((role, len(outputs) + index, label, content, "", edge))
        return made

    def _brings_numbers(self, call: OpenCall) -> bool:
        """Whether results do not follow from a call's tensors: it draws, or takes numbers of Python or other ranks."""
        return _effects_of(call.op).brings_numbers or not call.inputs

    def _decides(self, tensor: torch.Tensor) -> bool:
        """Whether a result is of whole numbers or booleans, which noise may turn."""
        dtype = tensor.dtype
        return self.contents.keeps_inputs and not (dtype.is_floating_point or dtype.is_complex)

    def _changed_buffers(
        self, call: OpenCall, buffers: Iterable[NamedTensor], behind: int
    ) -> list[Made]:
        """Those buffers that have other contents than before the call; they stand behind so many inputs and outputs."""
        made: list[Made] = []
        for index, (name, tensor) in enumerate(buffers):
            content = self.contents.of(tensor)
            if index >= len(call.buffers) or call.buffers[index] != content:
                owner = self.names.owner_of(tensor)
                label = owner[1] if owner else f"{call.path}.{name}" if call.path else name
                made.append((Role.BUFFER, behind + index, label, content, "", changed_edge(tensor)))
        return made

    @silently
    def abandon(self, call: OpenCall) -> None:
        """End a call that raised."""
        if call.wanted:
            call.arguments = {**call.arguments, "raised": True}
            self.rows.add_ended(call)
        call.let_go()

    def await_results(self, call: OpenCall) -> None:
        """Leave a call open whose results come when the script waits for them."""
        self._later.add(call)
        for _, tensor in call.inputs:
            self.contents.changed(tensor)

    def results_came(self, call: OpenCall) -> None:
        """End such a call, where it is of the step that is open."""
        if call in self._later:
            self._later.discard(call)
            for _, tensor in call.inputs:
                self.contents.changed(tensor)
            self.end(call, ())

    def _end_without_results(self) -> None:
        """End those whose results nobody has waited for in the step."""
        for call in self._later:
            self.gaps.add(
                NotSeen(f"what {call.op} brings", "the step ends before it is waited for")
            )
            if call.wanted:
                self.rows.add_ended(call)
            call.let_go()
        self._later.clear()

    def retract(self, call: OpenCall) -> None:
        """Undo a call that turned out not to deal in tensors."""
        self.rows.retract(call)

    def _tap(self, call: OpenCall, outputs: Sequence[NamedTensor]) -> None:
        for _, tensor in outputs:
            if tensor.requires_grad:
                break
        else:
            return
        call.outputs = tuple(map(_NAME, outputs))
        # Of calls in each other, all that comes is told before anything that leaves.
        at_once = call.parent < 0 and not self._below_nodes
        self._long_graphs.met(watch(call, outputs, self.pending, may_be_at_once=at_once))

    @silently
    def gradients_came(
        self, call: OpenCall, places: Positions, arrived: Sequence[torch.Tensor | None]
    ) -> None:
        """Hook before a node runs: gradients have arrived at outputs of a call."""
        if self.rows.step == call.step and not self.gradients_are_batched:
            self.rows.is_of_the_step(call)
            for place, index in places:
                gradient = arrived[place]
                if gradient is not None:
                    self._came(call, index, gradient)

    @silently
    def gradients_left(
        self,
        call: OpenCall,
        places: Positions,
        sent: Sequence[torch.Tensor | None],
        _: object,
    ) -> None:
        """Hook after a node has run: a call has sent all of its gradient to inputs."""
        if self.rows.step == call.step and not self.gradients_are_batched:
            self.rows.is_of_the_step(call)
            for place, index in places:
                gradient = sent[place]
                if gradient is not None:
                    self._left(call, index, gradient)

    @silently
    def gradient_left(self, call: OpenCall, index: int, gradient: torch.Tensor) -> None:
        """The same, of one input whose gradient came in parts."""
        if self.rows.step == call.step and not self.gradients_are_batched:
            self.rows.is_of_the_step(call)
            self._left(call, index, gradient)

    @silently
    def gradients_passed(
        self,
        call: OpenCall,
        sent: Sequence[torch.Tensor | None],
        arrived: Sequence[torch.Tensor | None],
    ) -> None:
        """Both at once, of the one node that a call has made."""
        if self.rows.step == call.step and not self.gradients_are_batched:
            self.rows.is_of_the_step(call)
            for place, index in call.arriving:
                gradient = arrived[place]
                if gradient is not None:
                    self._came(call, index, gradient)
            for place, index in call.leaving:
                gradient = sent[place]
                if gradient is not None:
                    self._left(call, index, gradient)

    def _came(self, call: OpenCall, index: int, gradient: torch.Tensor) -> None:
        number = self.contents.of(gradient)
        if call.known:
            self._derivations.came(call, index, number)
        name = call.outputs[index]
        self.rows.add_gradient(
            call, Role.GRAD_OUTPUT, index, name, number, index, layout_of(gradient)
        )

    def _left(self, call: OpenCall, index: int, gradient: torch.Tensor) -> None:
        label, role = call.labels[index], Role.GRAD_INPUT
        formula = self._derivations.gradient(call, index) if call.known else None
        number = self.contents.of(gradient, formula)
        if index in call.parameters:
            role = Role.PARAM_GRAD
            self._derivations.sent(call, label, number)
        self.rows.add_gradient(call, role, index, label, number, -1 - index, layout_of(gradient))

    def backward_ended(self) -> None:
        """Settle gradients of which parts did not come, and hold on to no part of the graph."""
        self.pending.settle()
        self.edges.forget()
        self._long_graphs.forget()

    def loss(self, tensor: torch.Tensor, *, accumulates: bool = True) -> None:
        """Record the tensor that backward starts from; `accumulates` tells that gradients go to `.grad`."""
        arguments = {} if accumulates else {GIVES_GRADIENTS: True}
        self.updates.begin_pass()
        call = self.rows.plain_call(CallKind.LOSS, Phase.FORWARD, "", "loss", (), arguments)
        content, edge = self.contents.of(tensor), edge_number(tensor)
        self.rows.add_record(call, Phase.FORWARD, Role.LOSS, 0, "loss", content, edge=edge)
        self.rows.add_call(call)


_NAME, _TENSOR, _VERSION = itemgetter(0), itemgetter(1), attrgetter("_version")


def _versions_of(tensors: Sequence[NamedTensor]) -> Sequence[int]:
    """How often each was written to, -1 of those that do not count it."""
    try:
        return [*map(_VERSION, map(_TENSOR, tensors))]
    except RuntimeError:  # inference tensors count none; to ask each first would take as long again
        return [-1 if is_inference(tensor) else tensor._version for _, tensor in tensors]


def _outs(kind: CallKind, inputs: Sequence[NamedTensor]) -> frozenset[int]:
    """Which arguments an operator only writes to: `out=` is not read."""
    if kind is not CallKind.OPERATOR:
        return NO_NUMBERS
    found = frozenset(
        index for index, (name, _) in enumerate(inputs) if f"{name}.".startswith("kwargs.out.")
    )
    return found or NO_NUMBERS
