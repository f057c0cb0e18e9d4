"""Calls and records of one rank as rows, numbered in the order of time."""

from __future__ import annotations

import itertools
import json
import sys
import threading
from collections.abc import Iterable, Sequence
from operator import is_
from types import CodeType
from typing import Any

from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.rows.held_rows import HeldRows, RowSink
from lockstep.capture.source_code.source_lines import NamedLine
from lockstep.capture.source_code.stacks import Stacks
from lockstep.core.site import CallKind, Phase, Role
from lockstep.store.encoding import Row
from lockstep.store.writer import RankWriter

Made = tuple[Role, int, str, int, str, int | None]
"""Role, index, name, content, layout and edge of what a call made or changed."""


class Rows:
    """Numbers calls and records and hands them to the writer.

    writer: Takes the rows.
    border: See `Stacks`.

    step: The step that is open, -1 between steps.
    call_count: How many calls it has had.
    tick: Gives the next sequence number.
    """

    def __init__(self, writer: RankWriter, border: CodeType) -> None:
        self.step = -1
        self.call_count = 0
        self._writer = writer
        self._sink: RowSink = writer
        self._held = HeldRows()
        self._aside: list[HeldRows] = []
        self._first_call = 0
        self._stacks = Stacks(border)
        self._next_call = 0
        self.tick = itertools.count(1).__next__
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

    def is_of_the_step(self, call: OpenCall) -> None:
        """A gradient has reached a call: where it was set aside, all of that is of the step."""
        if not self._aside or call.id >= self._first_call:
            return
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
        call = OpenCall(kind, op, None, path, "", (), arguments or {}, phase, stack=stack)
        self.open(call, key)
        return call

    def stack_here(self) -> int:
        """Number of the call stack at this place."""
        with self._lock:
            stack, frames = self._stacks.here(-1, sys._getframe())
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

    def open(self, call: OpenCall, key: tuple[str, ...] = ()) -> None:
        """Begin a call: number it among those of its operator at its module in this step."""
        counted = (call.kind._value_, call.phase._value_, call.path, call.op, call.recomputed, *key)
        place = call.place
        call.step = self.step
        with self._lock:
            call.number = number = self._numbers.get(counted, 0)
            self._numbers[counted] = number + 1
            call.id, self._next_call = self._next_call, self._next_call + 1
            self.call_count += call.kind is not CallKind.FUNCTION_BODY
            if call.stack < 0:
                around = -1 if place is None else place.stack
                call.stack, frames = self._stacks.here(around, call.frame or sys._getframe())
                call.frame = None
                if frames is not None:
                    self._writer.add_stack(call.stack, frames)
        if place is not None:
            call.parent = place.call_id
        call.sequence = self.tick()

    def retract(self, call: OpenCall) -> None:
        """Undo a call that turned out not to deal in tensors."""
        with self._lock:
            kind, phase = call.kind._value_, call.phase._value_
            self._numbers[kind, phase, call.path, call.op, call.recomputed] -= 1
            self.call_count -= call.kind is not CallKind.FUNCTION_BODY

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
        edge: int | None = None,
    ) -> None:
        """Add a record of what happens now."""
        told = (
            phase._value_,
            role._value_,
            index,
            name,
            self.tick(),
            occurrence,
            content,
            "",
            layout,
            edge,
        )
        self._sink.add_records([(call.id, *told)])

    def add_gradient(
        self,
        call: OpenCall,
        role: Role,
        index: int,
        name: str,
        content: int,
        counted: int,
        layout: str,
    ) -> None:
        """Add a gradient that a call gets or sends now; `counted` tells output or input from all others of the call."""
        occurrences = call.occurrences
        if occurrences is None:
            occurrences = call.occurrences = {}
        occurrence = occurrences.get(counted, 0)
        occurrences[counted] = occurrence + 1
        self.add_record(call, Phase.BACKWARD, role, index, name, content, occurrence, layout)

    def add_ended(self, call: OpenCall, made: Iterable[Made] = ()) -> None:
        """Add a call that has ended, what went into it, numbered when it was taken, and what came of it."""
        phase, role, identity = call.phase._value_, Role.INPUT._value_, call.id
        rows: list[Row] = []
        for index, (sequence, content) in enumerate(call.contents):
            if index not in call.unread:
                label, argument = call.labels[index], call.inputs[index][0]
                argument = "" if argument == label else argument
                laid, edge = call.layouts[index], call.edge_numbers[index]
                rows.append(
                    (
                        identity,
                        phase,
                        role,
                        index,
                        label,
                        sequence,
                        0,
                        content,
                        argument,
                        laid,
                        edge,
                    )
                )
        for kind, index, name, content, laid, edge in made:
            rows.append(
                (
                    identity,
                    phase,
                    kind._value_,
                    index,
                    name,
                    self.tick(),
                    0,
                    content,
                    "",
                    laid,
                    edge,
                )
            )
        if rows:
            self._sink.add_records(rows)
        self.add_call(call)

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
                self._text(call) if call.arguments else "{}",
                call.recomputed,
                call.conditions,
                call.drawn,
            )
        )

    def _text(self, call: OpenCall) -> str:
        """Arguments of a call as JSON; those of its module, or its optimizer, are mostly the same each time."""
        arguments = call.arguments
        latest = self._latest_text
        if arguments is not latest[0]:
            site = (call.path, call.op)
            kept = self._texts.get(site)
            if kept is None or not (arguments is kept[0] or _are_the_same(arguments, kept[0])):
                kept = self._texts[site] = (arguments, json.dumps(arguments))
            latest = self._latest_text = (arguments, kept[1])
        return latest[1]


def _are_the_same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    """Whether two mappings hold the very same objects; equal ones may read differently (1, 1.0, True)."""
    return list(left) == list(right) and all(map(is_, left.values(), right.values()))
