"""Print a watched training: a line when a rule fires, and a summary at the end."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from lockstep.terminal import Column, counted, printable, say, table_text
from lockstep_watch.observed import Hit
from lockstep_watch.watcher import (
    Noted,
    RuleFired,
    RuleSwitchedOff,
    StepWatched,
    Watched,
    WatchEvent,
)


class Lines:
    """Prints each hit as it comes, and the latest step every few seconds."""

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._said_s = time.monotonic()

    @property
    def streams(self) -> dict[str, Any]:
        """The command prints where this process does."""
        return {}

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Nothing is left to do."""

    def told(self, event: WatchEvent) -> None:
        """Print what is new."""
        line = line_of(event)
        if line:
            self.say(line)
        elif isinstance(event, StepWatched) and self._every_s:
            now = time.monotonic()
            if now - self._said_s >= self._every_s:
                self._said_s = now
                self.say(step_line(event))

    def say(self, sentence: str) -> None:
        """Print a line."""
        say(sentence)


def line_of(event: WatchEvent) -> str | None:
    """One line, or None where there is nothing to say."""
    if isinstance(event, RuleFired):
        return fired_line(event.hits)
    if isinstance(event, Noted):
        return fired_line(event.notes)
    if isinstance(event, RuleSwitchedOff):
        return printable(f"rule {event.rule} raised {event.reason}; it is off from here on")
    return None


def fired_line(hits: Sequence[Hit]) -> str:
    """Return the line of a rule's hits in a step: the first in full, the others counted."""
    first = hits[0]
    more = f" (and {len(hits) - 1} more)" if len(hits) > 1 else ""
    note = "note: " if first.is_note else ""
    return printable(
        f"{note}step {first.step}, {first.rank}: {first.rule}: {first.words}{_place(first)}{more}"
    )


def step_line(event: StepWatched) -> str:
    """The numbers of a step."""
    parts = [f"loss {number_text(event.loss)}", f"gradient norm {number_text(event.gradient_norm)}"]
    if event.loss_scale is not None:
        parts.append(f"loss scale {event.loss_scale:g}")
    if event.skipped:
        parts.append("skipped")
    return f"step {event.step}, {event.rank}: {', '.join(parts)}"


def conclusion(watched: Watched, *, left_out: int) -> str:
    """Return the summary at the end."""
    count = max(watched.steps.values(), default=0)
    steps = counted(count, "step")
    ranks = f" of each of {len(watched.steps)} ranks" if len(watched.steps) > 1 else ""
    beside = [f"{left_out} left out"] if left_out else []
    beside += [f"{watched.skipped} skipped by the gradient scaler"] if watched.skipped else []
    beside += [f"{watched.by_hand} more left out by the script"] if watched.by_hand else []
    tail = f" ({', '.join(beside)})" if beside else ""
    notes = "".join(f"\nnote: {printable(hit.words)}" for hit in watched.notes.values())
    if not watched.first:
        return f"no rule fired in {steps}{ranks}{tail}{notes}"
    rows = [
        [hit.rule, watched.fired[rule], hit.step, hit.subject, hit.source]
        for rule, hit in sorted(watched.first.items(), key=lambda item: item[1].step)
    ]
    columns = [
        Column("rule"), Column("steps", right=True), Column("first", right=True), Column("on"), Column("line"),
    ]  # fmt: skip
    return f"{counted(len(rows), 'rule')} fired in {steps}{ranks}{tail}\n{table_text(columns, rows)}{notes}"


def _place(hit: Hit) -> str:
    parts = [] if hit.site is None else [str(hit.site)]
    parts += [hit.source] if hit.source else []
    return f" [{'; '.join(parts)}]" if parts else ""


def number_text(value: float | None) -> str:
    """A number in four digits, NaN and inf by their names."""
    if value is None:
        return "unknown"
    return f"{value:.4g}" if math.isfinite(value) else str(value)
