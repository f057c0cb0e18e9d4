"""Traces as torch.profiler writes them, a line of Python for each range."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep_tune.marks import BESIDE, LINE, MODULE, STEP, TRACE


@dataclass
class MadeTrace:
    """A trace of one thread: `step` opens a step, `call` adds a range at the current time.

    Times are in microseconds. `line` and `module` are the marks that calls of the marked step are in.
    """

    now: float = 1000.0
    events: list[dict[str, Any]] = field(default_factory=list)
    number: int = 0
    beside: dict[str, Any] = field(default_factory=dict)

    def step(self, number: int, calls: Any, *, gap: float = 0.0) -> None:
        """A step: everything that `calls(self)` adds."""
        began = self.now
        calls(self)
        self.now += gap
        self.range(f"{STEP}{number}", began, self.now - began, "user_annotation")

    def marked_step(self, number: int, calls: Any) -> None:
        """A step whose calls carry marks of lines and modules."""
        self._marks = True
        self.step(number, calls)
        self._marks = False

    _marks: bool = False

    def call(
        self,
        name: str,
        took: float,
        *,
        line: str = "7:/train.py",
        module: str = "",
        python: float = 1.0,
        shapes: list[Any] | None = None,
        strides: list[Any] | None = None,
        types: list[str] | None = None,
        given: list[str] | None = None,
        sequence: int | None = None,
        kind: str = "cpu_op",
        inside: Any = None,
    ) -> None:
        """An operator after `python` microseconds of Python; `inside(self)` adds what it calls."""
        self.now += python
        began = self.now
        arguments: dict[str, Any] = {"Input Dims": shapes or [[8, 8]]}
        arguments["Input type"] = types or ["float"]
        if strides is not None:
            arguments["Input Strides"] = strides
        if given is not None:
            arguments["Concrete Inputs"] = given
        if sequence is not None:
            arguments["Sequence number"] = sequence
        at = len(self.events)
        if inside is not None:
            marks, self._marks = self._marks, False
            inside(self)
            self._marks = marks
            self.now = max(self.now, began + took)
        else:
            self.now = began + took
        took = self.now - began
        if self._marks:
            if module:
                self.range(f"{MODULE}Linear:{module}", began - 0.4, took + 0.8, "cpu_op", at)
            self.range(f"{LINE}{line}", began - 0.2, took + 0.4, "cpu_op", at)
        self.range(name, began, took, kind, at, arguments)

    def range(
        self,
        name: str,
        start: float,
        took: float,
        kind: str,
        at: int | None = None,
        arguments: dict[str, Any] | None = None,
    ) -> None:
        """One event."""
        self.number += 1
        arguments = {"External id": self.number, **(arguments or {})}
        event = {
            "ph": "X", "cat": kind, "name": name, "ts": start, "dur": took, "pid": 1, "tid": 1, "args": arguments,
        }  # fmt: skip
        self.events.insert(len(self.events) if at is None else at, event)

    def write(self, folder: Path) -> Path:
        """A folder as `lockstep profile -o` leaves it for a rank."""
        folder.mkdir(parents=True)
        with gzip.open(folder / TRACE, "wt") as file:
            json.dump({"traceEvents": self.events}, file)
        (folder / BESIDE).write_text(json.dumps({"device": "cpu", "compiles": [], **self.beside}))
        return folder
