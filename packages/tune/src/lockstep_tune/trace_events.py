"""Ranges of a trace on the threads of the host: which lies in which, and what each inherits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lockstep_tune.marks import AGAIN, EVALUATION, LINE, MODULE
from lockstep_tune.profile import Phase

_PYTHON = re.compile(r"(.+)\((\d+)\): ")
_LIBRARY = re.compile(
    r"site-packages|dist-packages|lib/python3|^<|^torch/|^(threading|contextlib|runpy)\.py"
)
_MODULE_OF_PYTHON = "nn.Module: "
_BACKWARD = "autograd::engine::evaluate_function"
_MARKS = (LINE, MODULE, EVALUATION, AGAIN)


@dataclass(slots=True)
class Event:
    """One range on a thread of the host."""

    name: str
    kind: str
    start: float
    end: float
    thread: Any
    arguments: Mapping[str, Any]
    parent: Event | None = None
    inner: float = 0.0
    device: float = 0.0
    inner_device: float = 0.0
    python: float = 0.0
    allocated: float = 0.0
    module: str = ""
    source: str = ""
    phase: Phase = Phase.FORWARD
    sequence: int = -1
    stack: int = -1
    evaluates: int = 0
    again: str = ""
    like: Event | None = None

    @property
    def took(self) -> float:
        """Microseconds."""
        return self.end - self.start

    @property
    def is_operator(self) -> bool:
        """Whether it is an operator or a named range, and no mark."""
        return self.kind != "python_function" and not self.name.startswith(_MARKS)


def is_range(event: Mapping[str, Any], kinds: frozenset[str]) -> bool:
    """Return whether an event is a range of one of these kinds, with its times."""
    return (
        event.get("ph") == "X"
        and event.get("cat") in kinds
        and isinstance(event.get("ts"), (int, float))
        and isinstance(event.get("dur", 0), (int, float))
    )


def host_event(event: Mapping[str, Any]) -> Event:
    """Return an event of the trace as a range."""
    start = float(event["ts"])
    arguments = event.get("args")
    return Event(
        str(event.get("name", "")), str(event["cat"]), start, start + float(event.get("dur", 0.0)),
        event.get("tid"), arguments if isinstance(arguments, dict) else {},
    )  # fmt: skip


def nest(ranges: list[Event]) -> None:
    """Sort the ranges of a thread by time and note which lies in which; marks take no time."""
    ranges.sort(key=lambda one: (one.start, -one.end))
    stack: list[Event] = []
    for one in ranges:
        while stack and stack[-1].end <= one.start:
            stack.pop()
        if stack:
            one.parent = stack[-1]
            outer: Event | None = stack[-1]
            while one.is_operator and outer is not None and not outer.is_operator:
                outer = outer.parent
            if one.is_operator and outer is not None:
                outer.inner += min(one.end, outer.end) - one.start
        stack.append(one)


def inherit(event: Event) -> None:
    """Take phase, module and line from the range around, and change them by what this one is."""
    outer = event.parent
    if outer is not None:
        event.phase, event.module, event.source = outer.phase, outer.module, outer.source
        event.sequence = outer.sequence
        event.stack, event.evaluates, event.again = outer.stack, outer.evaluates, outer.again
    name = event.name
    if name.startswith(LINE):
        at, _, file = name.removeprefix(LINE).partition(":")
        line, _, stack = at.partition("@")
        event.source, event.stack = f"{file}:{line}", int(stack or -1)
    elif name.startswith(EVALUATION):
        event.evaluates = int(name.removeprefix(EVALUATION))
    elif name.startswith(AGAIN):
        line, _, file = name.removeprefix(AGAIN).partition(":")
        event.again = f"{file}:{line}"
    elif name.startswith(MODULE):
        event.module = name.removeprefix(MODULE).partition(":")[2]
    elif event.kind == "python_function":
        found = _PYTHON.match(name)
        if name.startswith(_MODULE_OF_PYTHON):
            own = name.removeprefix(_MODULE_OF_PYTHON)
            event.module = f"{event.module}.{own}" if event.module else own
        elif found is not None and not _LIBRARY.search(found[1]):
            event.source = f"{found[1]}:{found[2]}"
    elif name.startswith(_BACKWARD):
        event.phase = Phase.BACKWARD
        event.sequence = int(event.arguments.get("Sequence number", -1))
    elif name.startswith("Optimizer."):
        event.phase = Phase.OPTIMIZER
    elif name.startswith("enumerate(DataLoader)"):
        event.phase = Phase.DATA


def parent_name(event: Event) -> str:
    """Return the operator that calls this one, "" for none."""
    outer = event.parent
    while outer is not None and not outer.is_operator:
        outer = outer.parent
    return "" if outer is None else outer.name


def step_of(event: Event, steps: list[Event]) -> Event | None:
    """Return the step in which a range begins."""
    return next((one for one in steps if one.start <= event.start < one.end), None)
