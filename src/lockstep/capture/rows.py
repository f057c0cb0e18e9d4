"""Calls and records of one rank as rows, numbered in the order of time."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import is_
from types import CodeType
from typing import Any

import torch

from lockstep.capture.call_places import Place
from lockstep.capture.contents import version_of
from lockstep.capture.gradients import Edge, Passing
from lockstep.capture.held_rows import HeldRows, RowSink
from lockstep.capture.leaves import NamedTensor
from lockstep.capture.module_paths import ModuleNames
from lockstep.capture.source_lines import NamedLine
from lockstep.capture.stacks import Stacks
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.encoding import Row
from lockstep.store.schema import NO_CONTENT
from lockstep.store.writer import RankWriter


@dataclass(slots=True, eq=False)
class OpenCall(Passing):
    """A call that has begun."""

    id: int
    step: int
    kind: CallKind
    phase: Phase
    path: str
    module_class: str
    op: str
    number: int
    parent: int
    sequence: int
    stack: int
    arguments: dict[str, Any]
    recomputed: bool
    inputs: Sequence[NamedTensor]
    labels: tuple[str, ...]
    parameters: frozenset[int]
    versions: Sequence[int]
    since: int
    wanted: bool
    edges: Sequence[tuple[int, Edge]] = ()
    unread: frozenset[int] = frozenset()
    contents: Sequence[tuple[int, int]] = ()
    buffers: Sequence[int] = ()
    outputs: tuple[str, ...] = ()
    """Names of what came out."""
    layouts: Sequence[str] = ()
    """How inputs lie in memory."""
    conditions: str = ""
    random_state: torch.Tensor | None = None
    """Of the generator before the call."""
    drawn: int = NO_CONTENT
    """Content of that state, where the call has drawn from it."""
    known: dict[str, int] = field(default_factory=dict)
    """Contents that what follows may be computed from, by name; see `Derivations`."""
    occurrences: dict[int, int] = field(default_factory=dict)
    """How many gradients have come, of outputs by position, and of inputs by position from -1 down."""

    def let_go(self) -> None:
        """Drop the tensors: gradient hooks keep the call for as long as the graph lives."""
        self.inputs = self.edges = self.contents = self.versions = self.layouts = ()
        self.random_state = None


_NO_PARAMETERS: frozenset[int] = frozenset()


class Rows:
    """Numbers calls and records and hands them to the writer.

    Parameters
    ----------
    writer
        Takes the rows.
    names
        Names of modules and parameters.
    border
        See `Stacks`.

    Attributes
    ----------
    step
        The step that is open, -1 between steps.
    call_count
        How many calls it has had.
    """

    def __init__(self, writer: RankWriter, names: ModuleNames, border: CodeType) -> None:
        self.step = -1
        self.call_count = 0
        self._writer = writer
        self._sink: RowSink = writer
        self._held = HeldRows()
        self._aside: list[HeldRows] = []
        self._first_call = 0
        self._names = names
        self._stacks = Stacks(border)
        self._next_call = 0
        self._sequence = itertools.count(1)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._texts: dict[tuple[str, str], tuple[dict[str, Any], str]] = {}
        self._latest_text: tuple[dict[str, Any], str] = ({}, "{}")
        self._lock = threading.Lock()

    def begin_step(self, step: int) -> None:
        """Start a step: call numbers start anew, and rows are held until the step is certain."""
        if step != self.step:
            self._aside.clear()
        self.step = step
        self.call_count = 0
        self._numbers.clear()
        self._sink, self._first_call = self._held, self._next_call

    def is_certain(self) -> None:
        """The step that is open is one: its rows are written."""
        if self._sink is self._held:
            self._sink = self._writer
            self._held.hand_on(self._writer)

    def set_aside(self, *, keep_set_up: bool) -> None:
        """Set aside the rows since the step was opened, except descriptions of modules."""
        aside, set_up = self._held, self._held.split_off_set_up()
        self._held = set_up if keep_set_up else HeldRows()
        self._aside.append(aside)
        self._sink = self._held

    def is_aside(self, call: OpenCall) -> bool:
        """Whether a call of the open step was set aside."""
        return call.id < self._first_call and bool(self._aside)

    def take_back(self) -> None:
        """A gradient has reached what was set aside: it is of the step."""
        with self._lock:
            for rows in self._aside:
                rows.number_anew(self._next_number)
                self.call_count += len(rows.calls)
                rows.hand_on(self._sink)
            self._aside.clear()

    def _next_number(self, row: Row) -> int:
        _, _, kind, phase, path, _, op, *_, recomputed, _, _ = row
        counted = (kind, phase, path, op, recomputed)
        number = self._numbers.get(counted, 0)
        self._numbers[counted] = number + 1
        return number

    def end_step(self) -> None:
        """No step is open any more."""
        self.is_certain()
        self._aside.clear()
        self.step = -1

    def plain_call(
        self,
        kind: CallKind,
        phase: Phase,
        path: str,
        op: str,
        key: tuple[str, ...],
        arguments: dict[str, Any] | None = None,
        stack: int = -1,
    ) -> OpenCall:
        """Begin what is no call of the model: data, a loss, an update; `key` tells such apart.

        `stack` is what `stack_here` gave, where many begin at one place.
        """
        options = arguments or {}
        return self.open(kind, None, op, (), options, path, "", phase, False, True, key, stack)

    def stack_here(self, place: Place | None = None) -> int:
        """Number of the call stack at this place."""
        with self._lock:
            stack, frames = self._stacks.here(-1 if place is None else place.stack)
            if frames is not None:
                self._writer.add_stack(stack, frames)
            return stack

    def stack_told(self, told: Sequence[tuple[str, int, str]], around: int) -> int:
        """Number of a call stack that is told: file, line and function, innermost first, then the stack `around`."""
        with self._lock:
            stack, frames = self._stacks.told(told, around)
            if frames is not None:
                self._writer.add_stack(stack, frames)
            return stack

    def named_lines(self) -> list[NamedLine]:
        """The lines that call stacks name, the most wanted ones first."""
        with self._lock:
            return self._stacks.named_lines()

    def open(
        self,
        kind: CallKind,
        place: Place | None,
        op: str,
        inputs: Sequence[NamedTensor],
        arguments: dict[str, Any],
        path: str,
        module_class: str,
        phase: Phase,
        recomputed: bool,
        wanted: bool,
        key: tuple[str, ...] = (),
        stack: int = -1,
    ) -> OpenCall:
        """Begin a call: number it among those of its operator at its module in this step."""
        labels, parameters = self._labels(inputs) if inputs else ((), _NO_PARAMETERS)
        counted = (kind._value_, phase._value_, path, op, recomputed, *key)
        with self._lock:
            number = self._numbers.get(counted, 0)
            self._numbers[counted] = number + 1
            identity, self._next_call = self._next_call, self._next_call + 1
            self.call_count += 1
        if stack < 0:
            stack = self.stack_here(place)
        return OpenCall(
            identity,
            self.step,
            kind,
            phase,
            path,
            module_class,
            op,
            number,
            -1 if place is None else place.call_id,
            self.tick(),
            stack,
            arguments,
            recomputed,
            inputs,
            labels,
            parameters,
            [version_of(tensor) for _, tensor in inputs],
            0,
            wanted,
        )

    def _labels(self, inputs: Sequence[NamedTensor]) -> tuple[tuple[str, ...], frozenset[int]]:
        """What inputs are called, and which of them are parameters."""
        labels: tuple[str, ...] = ()
        parameters = _NO_PARAMETERS
        for index, (name, tensor) in enumerate(inputs):
            owner = self._names.owner_of(tensor)
            labels += (name if owner is None else owner[1],)
            if owner is not None and tensor.requires_grad:
                parameters |= {index}
        return labels, parameters

    def retract(self, call: OpenCall) -> None:
        """Undo a call that turned out not to deal in tensors."""
        with self._lock:
            kind, phase = call.kind._value_, call.phase._value_
            self._numbers[kind, phase, call.path, call.op, call.recomputed] -= 1
            self.call_count -= 1

    def tick(self) -> int:
        """The next sequence number."""
        return next(self._sequence)

    def add_record(
        self,
        call: OpenCall,
        phase: Phase,
        role: Role,
        index: int,
        name: str,
        content: int,
        occurrence: int = 0,
        layout: str = "",
    ) -> None:
        """Add a record of what happens now."""
        self._sink.add_record(
            (
                call.id,
                phase._value_,
                role._value_,
                index,
                name,
                self.tick(),
                occurrence,
                content,
                "",
                layout,
            )
        )

    def add_inputs(self, call: OpenCall) -> None:
        """Add the records of what went into a call, with the sequence numbers of their time."""
        phase, role = call.phase._value_, Role.INPUT._value_
        for index, (sequence, content) in enumerate(call.contents):
            if index not in call.unread:
                label, argument = call.labels[index], call.inputs[index][0]
                argument = "" if argument == label else argument
                laid = call.layouts[index]
                self._sink.add_record(
                    (call.id, phase, role, index, label, sequence, 0, content, argument, laid)
                )

    def add_module(self, row: Row) -> None:
        """Add a row of the module tree."""
        self._sink.add_module(row)

    def add_call(self, call: OpenCall) -> None:
        """Add a call that has ended."""
        self._sink.add_call(
            (
                call.id,
                call.step,
                call.kind._value_,
                call.phase._value_,
                call.path,
                call.module_class,
                call.op,
                call.number,
                call.parent,
                call.sequence,
                call.stack,
                self._text(call),
                call.recomputed,
                call.conditions,
                call.drawn,
            )
        )

    def _text(self, call: OpenCall) -> str:
        """Arguments of a call as JSON; those of its module, or its optimizer, are mostly the same each time."""
        arguments = call.arguments
        if not arguments:
            return "{}"
        latest = self._latest_text
        if arguments is not latest[0]:
            site = (call.path, call.op)
            kept = self._texts.get(site)
            if kept is None or not _are_the_same(arguments, kept[0]):
                kept = self._texts[site] = (arguments, json.dumps(arguments))
            latest = self._latest_text = (arguments, kept[1])
        return latest[1]


def _are_the_same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether two mappings hold the very same objects; equal ones may read differently (1, 1.0, True)."""
    return list(left) == list(right) and all(map(is_, left.values(), right.values()))
