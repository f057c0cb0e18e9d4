"""Rows of a step that may turn out to be none, kept until it is certain.

What comes before the first backward may be anything: the norm of the parameters for a log, a dry run, a copy of the
weights. It is set aside once the training begins behind it, and taken back where a gradient reaches it after all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch

from lockstep.capture.tensors.memory import WeakStorages
from lockstep.core.site import CallKind
from lockstep.store.encoding import Row

_KIND, _NUMBER = 2, 7
"""Where a row of `schema.CALLS` holds them; its call number stands first."""

_AT_ONCE = 1024


class RowSink(Protocol):
    """Where rows go; `RankWriter` is the real one."""

    def add_module(self, row: Row) -> None: ...

    def add_call(self, row: Row) -> None: ...

    def add_records(self, rows: list[Row]) -> None: ...


@dataclass(slots=True)
class HeldRows:
    """Rows in the order they came."""

    modules: list[Row] = field(default_factory=list)
    calls: list[Row] = field(default_factory=list)
    records: list[Row] = field(default_factory=list)

    def add_module(self, row: Row) -> None:
        """Hold a row of `schema.MODULES`."""
        self.modules.append(row)

    def add_call(self, row: Row) -> None:
        """Hold a row of `schema.CALLS`."""
        self.calls.append(row)

    def add_records(self, rows: list[Row]) -> None:
        """Hold rows of `schema.RECORDS`."""
        self.records += rows

    def hand_on(self, sink: RowSink) -> None:
        """Give everything to `sink`, and hold nothing any more."""
        for add, rows in ((sink.add_module, self.modules), (sink.add_call, self.calls)):
            for row in rows:
                add(row)
            rows.clear()
        for start in range(0, len(self.records), _AT_ONCE):  # the writer cuts its chunks in between
            sink.add_records(self.records[start : start + _AT_ONCE])
        self.records = []

    def split_off_set_up(self) -> HeldRows:
        """Take out what is said of modules and initial parameters."""
        calls = [row for row in self.calls if row[_KIND] == CallKind.INIT.value]
        identities = {row[0] for row in calls}
        records = [row for row in self.records if row[0] in identities]
        found = HeldRows(list(self.modules), calls, records)
        self.modules.clear()
        self.calls = [row for row in self.calls if row[0] not in identities]
        self.records = [row for row in self.records if row[0] not in identities]
        return found

    def number_anew(self, number: Callable[[Row], int]) -> None:
        """Give every call the number that `number` finds for it."""
        self.calls = [(*row[:_NUMBER], number(row), *row[_NUMBER + 1 :]) for row in self.calls]


class TopResults:
    """The results of outermost calls, in a step that may turn out to be none."""

    def __init__(self) -> None:
        self._has_calls = False
        self._results = WeakStorages()
        self._lock = threading.Lock()

    def forget(self) -> None:
        """A step begins, or was set aside."""
        self._has_calls = False
        self._results.clear()

    def add(self, results: Iterable[torch.Tensor]) -> None:
        """A call outside of all others has ended."""
        with self._lock:
            self._has_calls = True
            for tensor in results:
                self._results.add(tensor)

    def are_gone(self) -> bool:
        """Whether nothing is left of all that was computed so far."""
        with self._lock:
            return self._has_calls and self._results.are_gone()
