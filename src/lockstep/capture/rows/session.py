"""Turn the calls that the taps see into rows of one rank's recording.

The taps (`interception`) know when something is called; the recorder knows which step it is; this module knows what a
call looks like on disk.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch.nn.parameter import is_lazy

from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.collectives import fills, is_collective, writes
from lockstep.capture.calls.gradients import (
    EdgeFinder,
    PendingSums,
    first_sequence_number,
    graph_node,
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
    plain_attributes,
    tensors_in,
    values_refused,
)
from lockstep.capture.calls.open_call import NO_NUMBERS, OpenCall
from lockstep.capture.calls.unseen_work import OutOfSight
from lockstep.capture.modules.module_paths import Adopted, ModuleNames, class_name, is_wrapper
from lockstep.capture.rows.gaps import gap_of
from lockstep.capture.rows.rows import Made, Rows
from lockstep.capture.rows.source_lines import NamedLine
from lockstep.capture.settings.wrapper_options import wrapper_options
from lockstep.capture.silence import silently
from lockstep.capture.taps.long_graphs import LongGraphs
from lockstep.capture.tensors.contents import UNRECORDED, Contents
from lockstep.capture.tensors.derivations import Derivations
from lockstep.capture.tensors.memory import part_indexed
from lockstep.capture.updates.hand_updates import HandUpdates
from lockstep.core.formulas import Formula
from lockstep.core.manifest import TOKENS, Event, NotSeen
from lockstep.core.records import ARRIVED_IN, BEGAN_ANEW, COMPUTED_OUT_OF_SIGHT
from lockstep.core.selection import SiteFilter
from lockstep.core.site import CallKind, Phase, Role
from lockstep.devices.methods import equal, is_floating_point, numel, untyped_storage
from lockstep.store.writer import RankWriter

_UNINITIALIZED = re.compile(r"(^|[._])empty([._]|$)")
"""Operators that give memory as they find it."""


_SILENT = re.compile("batch_norm|instance_norm")
"""Operators that write to buffers without counting it as a version."""

_PARTIAL = re.compile("index|scatter|masked|put|diagonal")
"""Operators that may leave elements of what they write to as they are."""


class _Effects(NamedTuple):
    """What an operator may do besides what autograd counts, by its name."""

    gives_memory: bool
    writes_silently: bool
    is_collective: bool
    may_draw: bool


@cache
def _effects_of(op: str) -> _Effects:
    silent = _SILENT.search(op) is not None
    gives = _UNINITIALIZED.search(op) is not None
    return _Effects(gives, silent, is_collective(op), may_draw(op))


_LATEST_READ = 8
"""How many of the tensors that Python has read are kept as what a tensor from outside may follow from."""


class Session:
    """Emits calls, records and contents of one rank to its writer.

    Parameters
    ----------
    writer
        Takes the rows.
    save
        "stats", "sketch" or "tensors".
    sites
        Which sites are wanted.
    names
        Names of modules and parameters.
    operators
        Whether operators are recorded (levels api and aten); if not, tensors between modules are unseen.
    below_nodes
        Whether what autograd's nodes call is recorded too (level aten).
    parameter_name
        Name of a parameter that no module owns, by its optimizer, or None.
    watch_parameters
        Is told of new parameters, whose gradients are to be listened to; by None, that any may be new.
    trained
        Gives the identities of the parameters that optimizers hold.
    idle
        Gives those whose optimizers have never stepped.
    fail
        Takes an error of our own that must not reach the training.
    border
        See `capture.rows.stacks.Stacks`.
    out_of_sight
        What the model has computed where no step was open.
    optimizer_state
        Whether an optimizer's state is recorded beside its parameters.
    sketch_parameters
        With `save` "stats": whether parameters have sketches all the same.
    for_rules, finite_alone
        Whether rules on numbers are all that it is recorded for, and which of these they ask for; see `Contents`.
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
    ) -> None:
        self.writer = writer
        self.names = names
        self.contents = Contents(
            writer, save, trust_versions=operators, sketch_parameters=sketch_parameters,
            trust_results=for_rules, finite_alone=finite_alone,
        )  # fmt: skip
        self._derivations = Derivations(self.contents)
        self.pending = PendingSums()
        self.edges = EdgeFinder()
        self.attributes = KeptAttributes()
        self._long_graphs = LongGraphs()
        self.events: list[Event] = []
        self.not_seen: list[NotSeen] = []
        self.wrappers: dict[str, str] = {}
        self._sites = sites
        self.wants = sites.wants
        self._operators, self._below_nodes = operators, below_nodes
        self._parameter_name = parameter_name
        self._watch_parameters = watch_parameters
        self.fail = fail
        self._rows = Rows(writer, border)
        self._trained, self._idle = trained, idle
        self._hand_updates = HandUpdates(self._rows, self.contents)
        self._init_done: set[int] = set()
        self._has_ended_a_step = False
        self._out_of_sight = out_of_sight
        self._optimizer_state = optimizer_state
        self._for_rules = for_rules
        self._summed_in: dict[int, int] = {}
        self._later: set[OpenCall] = set()
        self._read_by_python: deque[int] = deque(maxlen=_LATEST_READ)

    @property
    def call_count(self) -> int:
        """How many calls the open step has had."""
        return self._rows.call_count

    # --- steps ---------------------------------------------------------------------------------------------------

    def begin_step(self, step: int) -> None:
        """Start a step: call numbers and identities start anew."""
        self._rows.begin_step(step)
        self._read_by_python.clear()
        self._summed_in.clear()
        self.names.refresh()
        self._remember_parameters()
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
        self._rows.is_certain()

    def set_aside(self) -> None:
        """Set aside the rows since the step was opened; `begin_step` starts it again.

        In the first step that goes for names and initial parameters too: a checkpoint may have been loaded since.
        """
        self._later.clear()
        self.pending.settle()
        self._forget_identities()
        self._rows.set_aside(keep_set_up=self._has_ended_a_step)
        if not self._has_ended_a_step:
            self.names.start_anew()
            self.attributes.forget()
            self._init_done.clear()

    def end_step(self) -> None:
        """End the step."""
        self._end_without_results()
        self.pending.settle()
        self._forget_identities()
        self._hand_updates.forget()
        self._rows.end_step()
        for gap in values_refused():
            self.note_gap(gap)
        self._has_ended_a_step = True

    def _forget_identities(self) -> None:
        self.edges.forget()
        self._long_graphs.forget()
        self.contents.forget_identities()
        self._derivations.forget()

    # --- initial parameters --------------------------------------------------------------------------------------

    def adopt(self, module: torch.nn.Module) -> None:
        """Record the tree of a root module met for the first time: its shape and its initial parameters."""
        self._describe(self.names.adopt(module))

    def adopt_child(self, module: torch.nn.Module, parent: torch.nn.Module, path: str) -> None:
        """Record a module that appeared inside a running one, whose path is given."""
        self._describe(self.names.adopt_child(module, parent, path))

    def path_of(self, module: torch.nn.Module, place: Place | None) -> str:
        """Path of a module; its tree is recorded where it is met for the first time."""
        path = self.names.path_of(module)
        if path is None:
            if place is not None and place.module is not None:
                self.adopt_child(module, place.module, place.path)
            else:
                self.adopt(module)
            self._watch_parameters(None)
            path = self.names.path_of(module) or ""
        return path

    def _describe(self, adopted: Adopted) -> None:
        for path, child in adopted.modules:
            own = [*child._parameters.values(), *child._buffers.values()]
            known = [tensor for tensor in own if tensor is not None and not is_lazy(tensor)]
            count = sum(numel(tensor) for tensor in known)
            if not is_wrapper(child):
                settings = json.dumps(plain_attributes(child))
                self._rows.add_module((path, class_name(child), count, child.training, settings))
            self._initial(path, child)
            self.note_gap(gap_of(child))
            self.wrappers.update(wrapper_options(child))

    def note_gap(self, gap: NotSeen | None) -> None:
        """Something is not seen; it is noted once."""
        if gap is not None and gap not in self.not_seen:
            self.not_seen.append(gap)

    def adopt_parameter(self, tensor: torch.Tensor, name: str | None) -> bool:
        """Name a parameter that is met outside of its module, as its module does, or by its optimizer.

        `name` is that by its optimizer, None where none holds it. Returns whether it has a name now.
        """
        if self.names.owner_of(tensor) is not None:
            return True
        holder = self.names.holder_of(tensor)
        if holder is not None and self.names.path_of(holder) is None:
            self.adopt(holder)
        elif holder is not None:
            self.names.refresh()
        elif name is not None:
            self._adopt_alone(tensor, name)
            return True
        elif tensor.requires_grad and not self._trained():
            # Without any optimizer, a leaf that takes a gradient is what the script trains.
            self._adopt_alone(tensor, self.names.name_for_alone())
            return True
        else:
            return False
        self._watch_parameters(None)
        return True

    def _adopt_alone(self, tensor: torch.Tensor, name: str) -> None:
        self.names.own(tensor, name)
        call = self._rows.plain_call(CallKind.INIT, Phase.INIT, "", "torch.nn.Parameter", ())
        self._rows.add_record(call, Phase.INIT, Role.PARAM, 0, name, self.contents.of(tensor))
        self._rows.add_call(call)
        self._watch_parameters([tensor])

    def _initial(self, path: str, module: torch.nn.Module) -> None:
        tensors: list[tuple[Role, str, torch.Tensor]] = [
            (Role.PARAM, name, tensor)
            for name, tensor in module._parameters.items()
            if tensor is not None
        ]
        tensors += [
            (Role.BUFFER, name, tensor)
            for name, tensor in module._buffers.items()
            if tensor is not None
        ]
        fresh = [
            item for item in tensors if id(item[2]) not in self._init_done and not is_lazy(item[2])
        ]
        if not fresh:
            return
        if not self._sites.wants(path, class_name(module)):
            for _, _, tensor in fresh:
                self.contents.note(tensor)
            return
        stack = self._made_at(module, fresh)
        call = self._rows.plain_call(
            CallKind.INIT, Phase.INIT, path, class_name(module), (), stack=stack
        )
        for index, (role, name, tensor) in enumerate(fresh):
            self._init_done.add(id(tensor))
            full = f"{path}.{name}" if path else name
            self._rows.add_record(call, Phase.INIT, role, index, full, self.contents.of(tensor))
        self._rows.add_call(call)

    def _made_at(
        self, module: torch.nn.Module, tensors: Sequence[tuple[Role, str, torch.Tensor]]
    ) -> int:
        """Number of the stack at which a module's buffers were registered; -1 where it begins with parameters too."""
        if any(role is not Role.BUFFER for role, _, _ in tensors):
            return -1
        told = self.names.made_at(module, (name for _, name, _ in tensors))
        return -1 if told is None else self._rows.stack_told(told, -1)

    def _remember_parameters(self) -> None:
        for tensor, path, name in list(self.names.owners.values()):
            if self._sites.wants(path, name) and not self._for_rules:
                self.contents.of(tensor)
            else:
                self.contents.note(tensor)

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
        if call.inputs:
            if call.inputs[-1][0].startswith("kwargs."):
                call.unread = _outs(call.kind, call.inputs)
            if wanted and call.phase is Phase.FORWARD:
                self._note_arrivals(call)
        self._rows.open(call)
        self._name_inputs(call)
        if wanted:
            for _, tensor in buffers:
                call.buffers = (*call.buffers, self.contents.of(tensor))
            self._take_inputs(call)
        call.since = first_sequence_number()
        return call

    def _note_arrivals(self, call: OpenCall) -> None:
        """Record what comes from outside of the step."""
        for index, (name, tensor) in enumerate(call.inputs):
            try:
                if tensor.grad_fn is not None:
                    continue
            except RuntimeError:  # see `graph_node`
                pass
            if index not in call.unread and self.names.owner_of(tensor) is None:
                self._note_arrival(tensor, name, call.path, call.op, inside=call.place is not None)

    def _name_inputs(self, call: OpenCall) -> None:
        """What inputs are called, which of them are parameters, and how often they were written to."""
        labels, versions = [], []
        for index, (name, tensor) in enumerate(call.inputs):
            owner = self.names.owner_of(tensor)
            if owner is not None:
                name = owner[1]
                if tensor.requires_grad:
                    call.parameters |= {index}
            labels.append(name)
            try:
                versions.append(tensor._version)
            except (
                RuntimeError
            ):  # inference tensors count none; to ask each first would take as long again
                versions.append(-1)
        call.labels, call.versions = (
            tuple(labels),
            versions,
        )  # a tuple of texts is nothing to collect

    def _take_inputs(self, call: OpenCall) -> None:
        """Take the contents of what goes in, how it lies, and where its gradient goes."""
        inputs, tick, contents = call.inputs, self._rows.tick, self.contents
        call.contents = taken = []
        for index, (_, tensor) in enumerate(inputs):
            sequence = tick()
            taken.append((sequence, UNRECORDED if index in call.unread else contents.of(tensor)))
        call.layouts = layouts_of(inputs)
        if contents.keeps_tensors:
            if call.kind is CallKind.MODULE or _effects_of(call.op).may_draw:
                call.random_state = random_state(inputs)
            self._derivations.begun(call)
        if call.grad:
            call.edges = edges = []
            for index, (_, tensor) in enumerate(inputs):
                if tensor.requires_grad:
                    node = graph_node(tensor)
                    edge = (
                        self.edges.leaf_edge(tensor) if node is None else (node, tensor.output_nr)
                    )
                    if edge is not None:
                        edges.append((index, edge))

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
        changed = self._changed_by(call, effects, part)
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
            self._rows.add_ended(call, made)
            self._tap(call, outputs)
        else:
            for _, tensor in outputs:
                self.contents.note(tensor)
        call.let_go()

    def _note_drawn(self, call: OpenCall, before: torch.Tensor) -> None:
        """Keep the state of the generator before a call that drew from it."""
        now = random_state(call.inputs)
        if now is not None and not equal(now, before):
            call.drawn = self.contents.of(before)

    def _changed_by(self, call: OpenCall, effects: _Effects, part: object) -> list[int]:
        """Which inputs the call wrote to."""
        changed = []
        for index, (name, tensor) in enumerate(call.inputs):
            try:
                version = tensor._version
            except (
                RuntimeError
            ):  # inference tensors count none; to ask each first would take as long again
                version = -1
            if version != call.versions[index]:
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
        made = [
            (Role.OUTPUT, index, name, self.contents.of(tensor, formula), layout_of(tensor))
            for index, (name, tensor) in enumerate(outputs)
        ]
        returned = {id(tensor) for _, tensor in outputs} if changed else ()
        for index in changed:
            name, tensor = call.inputs[index]
            if id(tensor) not in returned:
                label = call.labels[index]
                role = Role.OUTPUT if label == name else Role.BUFFER
                made.append((role, len(outputs) + index, label, self.contents.of(tensor), ""))
        return made

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
                made.append((Role.BUFFER, behind + index, label, content, ""))
        return made

    @silently
    def abandon(self, call: OpenCall) -> None:
        """End a call that raised."""
        if call.wanted:
            call.arguments = {**call.arguments, "raised": True}
            self._rows.add_ended(call)
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
            self.note_gap(
                NotSeen(f"what {call.op} brings", "the step ends before it is waited for")
            )
            if call.wanted:
                self._rows.add_ended(call)
            call.let_go()
        self._later.clear()

    def retract(self, call: OpenCall) -> None:
        """Undo a call that turned out not to deal in tensors."""
        self._rows.retract(call)

    def _tap(self, call: OpenCall, outputs: Sequence[NamedTensor]) -> None:
        for _, tensor in outputs:
            if tensor.requires_grad:
                break
        else:
            return
        call.outputs = tuple([name for name, _ in outputs])
        # Of calls in each other, all that comes is told before anything that leaves.
        at_once = call.parent < 0 and not self._below_nodes
        self._long_graphs.met(watch(call, outputs, self.pending, may_be_at_once=at_once))

    @silently
    def gradient_came(self, call: OpenCall, index: int, gradient: torch.Tensor) -> None:
        """The gradient of output `index` has arrived at a call."""
        if self._rows.step == call.step:
            self._rows.is_of_the_step(call)
            self._came(call, index, gradient)

    @silently
    def gradient_left(self, call: OpenCall, index: int, gradient: torch.Tensor) -> None:
        """A call has sent all of its gradient to input `index`."""
        if self._rows.step == call.step:
            self._rows.is_of_the_step(call)
            self._left(call, index, gradient)

    @silently
    def gradients_passed(
        self,
        call: OpenCall,
        sent: Sequence[torch.Tensor | None],
        arrived: Sequence[torch.Tensor | None],
    ) -> None:
        """Both at once, of the one node that a call has made."""
        if self._rows.step == call.step:
            self._rows.is_of_the_step(call)
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
        self._rows.add_gradient(
            call, Role.GRAD_OUTPUT, index, name, number, index, layout_of(gradient)
        )

    def _left(self, call: OpenCall, index: int, gradient: torch.Tensor) -> None:
        label, role = call.labels[index], Role.GRAD_INPUT
        formula = self._derivations.gradient(call, index) if call.known else None
        number = self.contents.of(gradient, formula)
        if index in call.parameters:
            role = Role.PARAM_GRAD
            self._derivations.sent(call, label, number)
        self._rows.add_gradient(call, role, index, label, number, -1 - index, layout_of(gradient))

    def backward_ended(self) -> None:
        """Settle gradients of which parts did not come, and hold on to no part of the graph."""
        self.pending.settle()
        self.edges.forget()
        self._long_graphs.forget()

    # --- loss, gradients, optimizer ------------------------------------------------------------------------------

    def loss(self, tensor: torch.Tensor) -> None:
        """Record the tensor that backward starts from."""
        call = self._rows.plain_call(CallKind.LOSS, Phase.FORWARD, "", "loss", ())
        self._rows.add_record(call, Phase.FORWARD, Role.LOSS, 0, "loss", self.contents.of(tensor))
        self._rows.add_call(call)

    def accumulated(self, parameter: torch.Tensor) -> None:
        """Record a parameter's gradient after one backward has added to it."""
        owner = self.names.owner_of(parameter)
        if (
            owner is None
            or parameter.grad is None
            or not self._sites.wants(owner[0], "accumulate_grad")
        ):
            return
        anew = self._for_rules and self._began_anew(parameter)
        call = self._rows.plain_call(
            CallKind.GRADIENT, Phase.BACKWARD, owner[0], "accumulate_grad", (owner[1],),
            {BEGAN_ANEW: True} if anew else {},
        )  # fmt: skip
        number = self.contents.of(parameter.grad, self._derivations.sum_of_sent(owner[1]))
        self._derivations.summed(owner[1], number)
        laid = layout_of(parameter.grad)
        self._rows.add_record(
            call, Phase.BACKWARD, Role.PARAM_GRAD, 0, owner[1], number, layout=laid
        )
        self._rows.add_call(call)
        self._hand_updates.accumulated(parameter, *owner, number)

    def _began_anew(self, parameter: torch.Tensor) -> bool:
        """Whether a gradient that is there lies in other memory than the one that it would have been added to."""
        assert parameter.grad is not None
        storage = untyped_storage(
            parameter.grad
        )._cdata  # pinned by its content, so given to no other in this step
        before = self._summed_in.get(id(parameter), storage)
        self._summed_in[id(parameter)] = storage
        return bool(before != storage)

    def stack_here(self) -> int:
        """Number of the call stack that several updates begin at."""
        return self._rows.stack_here()

    def stack_told(self, told: Sequence[tuple[str, int, str]], around: int) -> int:
        """Number of a call stack that is told, see `Rows.stack_told`."""
        return self._rows.stack_told(told, around)

    def named_lines(self) -> list[NamedLine]:
        """The lines that call stacks name, the most wanted ones first."""
        return self._rows.named_lines()

    def before_update(
        self,
        optimizer: torch.optim.Optimizer,
        op: str,
        options: dict[str, Any],
        parameter: torch.Tensor,
        *,
        stack: int,
        with_gradient: bool,
    ) -> OpenCall | None:
        """Record one parameter, its gradient and its state as the optimizer gets them.

        `options` are those of its group, as JSON values; `stack` is what `stack_here` gave; `with_gradient` is false
        where the optimizer computes the gradient itself, by a closure.
        """
        self._hand_updates.optimizer_updates(parameter)
        path, name = self.names.owner_of(parameter) or ("", "parameter")
        if not self._sites.wants(path, op):
            return None
        call = self._rows.plain_call(
            CallKind.OPTIMIZER, Phase.OPTIMIZER, path, op, (name,), options, stack
        )
        call.known = known = {}
        content = known["param"] = self.contents.of(parameter)
        laid = layout_of(parameter)
        self._rows.add_record(call, Phase.OPTIMIZER, Role.PARAM, 0, name, content, layout=laid)
        if with_gradient and parameter.grad is not None:
            content = known["grad"] = self.contents.exactly(parameter.grad)
            laid = layout_of(parameter.grad)
            self._rows.add_record(
                call, Phase.OPTIMIZER, Role.PARAM_GRAD, 0, name, content, layout=laid
            )
        known |= self._state(call, Role.STATE, optimizer, parameter, name, {})
        return call

    def after_update(
        self, optimizer: torch.optim.Optimizer, call: OpenCall, parameter: torch.Tensor
    ) -> None:
        """Record what the optimizer made of it."""
        _, name = self.names.owner_of(parameter) or ("", "parameter")
        self.contents.changed(parameter)
        formulas = self._derivations.update(call)
        content = self.contents.of(parameter, formulas.get("param"))
        self._rows.add_record(call, Phase.OPTIMIZER, Role.PARAM_AFTER, 0, name, content)
        self._state(call, Role.STATE_AFTER, optimizer, parameter, name, formulas)
        self._rows.add_call(call)

    def _state(
        self,
        call: OpenCall,
        role: Role,
        optimizer: torch.optim.Optimizer,
        parameter: torch.Tensor,
        name: str,
        formulas: Mapping[str, Formula],
    ) -> dict[str, int]:
        """Record what an optimizer keeps of a parameter; returns the contents by their names."""
        known = {}
        state = (optimizer.state.get(parameter) or {}) if self._optimizer_state else {}
        for index, (key, tensor) in enumerate(tensors_in(dict(state), "")):
            if role is Role.STATE_AFTER:
                self.contents.changed(tensor)
                self.contents.written(tensor)
            key = key.removeprefix(".")
            content = known[key] = self.contents.of(tensor, formulas.get(key))
            laid = layout_of(tensor)
            self._rows.add_record(
                call, Phase.OPTIMIZER, role, index, f"{name}|{key}", content, layout=laid
            )
        return known

    # --- rows ----------------------------------------------------------------------------------------------------

    def _note_arrival(
        self, tensor: torch.Tensor, name: str, path: str, op: str, *, inside: bool
    ) -> None:
        if graph_node(tensor) is not None or self.names.owner_of(tensor) is not None:
            return
        if isinstance(tensor, torch.nn.Parameter) and self.names.stands_in(tensor):
            return
        if tensor.requires_grad and self.adopt_parameter(tensor, self._parameter_name(tensor)):
            return
        if (inside and not self._operators) or self.contents.known(tensor):
            return
        if self.adopt_parameter(tensor, None):
            return
        computed = self._out_of_sight.has_made([tensor])
        options: dict[str, Any] = {}
        if computed or self._out_of_sight.was_read:
            options[COMPUTED_OUT_OF_SIGHT] = computed
        if inside:
            options[ARRIVED_IN] = path
        call = self._rows.plain_call(CallKind.DATA, Phase.DATA, "", "batch", (), options)
        for index, content in enumerate(self._read_by_python):
            self._rows.add_record(call, Phase.DATA, Role.INPUT, index, "read by Python", content)
        where = f"{name} of {path or op}"
        self._rows.add_record(
            call, Phase.DATA, Role.OUTPUT, 0, where, self.contents.arrived(tensor)
        )
        self._rows.add_call(call)

    def note_tokens(self, told: Mapping[str, torch.Tensor]) -> None:
        """Record which tokens the model is given next."""
        call = self._rows.plain_call(CallKind.DATA, Phase.DATA, "", TOKENS, ())
        for index, (name, tensor) in enumerate(told.items()):
            content = self.contents.of(tensor)
            self._rows.add_record(call, Phase.DATA, Role.OUTPUT, index, name, content)
        self._rows.add_call(call)

    def read_by_python(self, tensor: torch.Tensor) -> None:
        """Python takes the numbers of a tensor: what arrives later in this step may follow from them."""
        if self._operators and is_floating_point(tensor):
            content = self.contents.of(tensor)
            if content in self._read_by_python:
                self._read_by_python.remove(content)
            self._read_by_python.append(content)


def _outs(kind: CallKind, inputs: Sequence[NamedTensor]) -> frozenset[int]:
    """Which arguments an operator only writes to: `out=` is not read."""
    if kind is not CallKind.OPERATOR:
        return NO_NUMBERS
    found = frozenset(
        index for index, (name, _) in enumerate(inputs) if f"{name}.".startswith("kwargs.out.")
    )
    return found or NO_NUMBERS
