"""Calls and records of one rank as rows, numbered in the order of time."""

from __future__ import annotations

import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

import torch

from lockstep.capture.contents import version_of
from lockstep.capture.gradients import WatchedInput
from lockstep.capture.leaves import NamedTensor
from lockstep.capture.names import ModuleNames
from lockstep.capture.stacks import Stacks
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.writer import RankWriter


@dataclass(slots=True)
class Place:
    """Where the code is: the module call around it, or the inside of a custom autograd function (`opaque`)."""

    call_id: int
    path: str
    module_class: str
    module: torch.nn.Module | None
    stack: int
    opaque: bool = False


@dataclass(slots=True)
class OpenCall:
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
    inputs: list[NamedTensor]
    labels: list[str]
    parameters: frozenset[int]
    versions: list[int]
    edges: list[WatchedInput]
    since: int
    wanted: bool
    counted: tuple[object, ...]
    unread: frozenset[int] = frozenset()
    contents: list[tuple[int, int]] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    known: dict[str, int] = field(default_factory=dict)
    """Contents that what follows may be computed from, by name; see `Derivations`."""
    occurrences: Counter[tuple[Role, int]] = field(default_factory=Counter)

    def let_go(self) -> None:
        """Drop the tensors: gradient hooks keep the call for as long as the graph lives."""
        self.inputs, self.edges = [], []


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
        self._names = names
        self._stacks = Stacks(border)
        self._next_call = 0
        self._next_sequence = 0
        self._numbers: Counter[tuple[object, ...]] = Counter()
        self._lock = threading.RLock()

    def begin_step(self, step: int) -> None:
        """Start a step: call numbers start anew."""
        self.step = step
        self.call_count = 0
        self._numbers.clear()

    def end_step(self) -> None:
        """No step is open any more."""
        self.step = -1

    def plain_call(
        self,
        kind: CallKind,
        phase: Phase,
        path: str,
        op: str,
        key: tuple[str, ...],
        arguments: dict[str, Any] | None = None,
    ) -> OpenCall:
        """Begin what is no call of the model: data, a loss, an update; `key` tells such apart."""
        return self.open(kind, None, op, [], arguments or {}, path, "", phase, False, True, key)

    def open(
        self,
        kind: CallKind,
        place: Place | None,
        op: str,
        inputs: list[NamedTensor],
        arguments: dict[str, Any],
        path: str,
        module_class: str,
        phase: Phase,
        recomputed: bool,
        wanted: bool,
        key: tuple[str, ...] = (),
    ) -> OpenCall:
        """Begin a call: number it among those of its operator at its module in this step."""
        owners = [self._names.owner_of(tensor) for _, tensor in inputs]
        counted = (kind, phase, path, op, recomputed, *key)
        with self._lock:
            number = self._numbers[counted]
            self._numbers[counted] += 1
            identity, self._next_call = self._next_call, self._next_call + 1
            self.call_count += 1
            stack, frames = self._stacks.here(-1 if place is None else place.stack)
            if frames is not None:
                self._writer.add_stack(stack, frames)
        return OpenCall(
            id=identity,
            step=self.step,
            kind=kind,
            phase=phase,
            path=path,
            module_class=module_class,
            op=op,
            number=number,
            parent=-1 if place is None else place.call_id,
            sequence=self.tick(),
            stack=stack,
            arguments=arguments,
            recomputed=recomputed,
            inputs=inputs,
            labels=[
                owner[1] if owner else name for owner, (name, _) in zip(owners, inputs, strict=True)
            ],
            parameters=frozenset(
                index
                for index, (owner, (_, tensor)) in enumerate(zip(owners, inputs, strict=True))
                if owner is not None and tensor.requires_grad
            ),
            versions=[version_of(tensor) for _, tensor in inputs],
            edges=[],
            since=0,
            wanted=wanted,
            counted=counted,
        )

    def retract(self, call: OpenCall) -> None:
        """Undo a call that turned out not to deal in tensors."""
        with self._lock:
            self._numbers[call.counted] -= 1
            self.call_count -= 1

    def tick(self) -> int:
        """The next sequence number."""
        with self._lock:
            self._next_sequence += 1
            return self._next_sequence

    def add_record(
        self,
        call: OpenCall,
        phase: Phase,
        role: Role,
        index: int,
        name: str,
        content: int,
        occurrence: int = 0,
    ) -> None:
        """Add a record of what happens now."""
        with self._lock:
            sequence = self.tick()
            self._writer.add_record(
                (call.id, phase.value, role.value, index, name, sequence, occurrence, content, "")
            )

    def add_inputs(self, call: OpenCall) -> None:
        """Add the records of what went into a call, with the sequence numbers of their time."""
        for index, (sequence, content) in enumerate(call.contents):
            if index not in call.unread:
                role, label = Role.INPUT.value, call.labels[index]
                argument = call.inputs[index][0]
                argument = "" if argument == label else argument
                row = (
                    call.id,
                    call.phase.value,
                    role,
                    index,
                    label,
                    sequence,
                    0,
                    content,
                    argument,
                )
                with self._lock:
                    self._writer.add_record(row)

    def add_call(self, call: OpenCall) -> None:
        """Add a call that has ended."""
        with self._lock:
            self._writer.add_call(
                (
                    call.id,
                    call.step,
                    call.kind.value,
                    call.phase.value,
                    call.path,
                    call.module_class,
                    call.op,
                    call.number,
                    call.parent,
                    call.sequence,
                    call.stack,
                    json.dumps(call.arguments),
                    call.recomputed,
                )
            )
