"""Run rules over the steps of a training as they come, and report new hits."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lockstep.launch import WrittenStep
from lockstep_watch.chosen_rules import ChosenRule
from lockstep_watch.history import History
from lockstep_watch.observed import ALL_RANKS, Hit, Key, Memory, ObservedStep


@dataclass(frozen=True, slots=True)
class StepWatched:
    """A step was looked at; a number that there is none of is None."""

    rank: str
    step: int
    loss: float | None
    gradient_norm: float | None
    loss_scale: float | None
    learning_rate: float | None
    skipped: bool


@dataclass(frozen=True, slots=True)
class RuleFired:
    """Rules fire on what they have not fired on in the watched step before.

    hits: Of one rule in one step of one rank, at least one.
    """

    hits: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class Noted:
    """Rules have seen something that may be meant: of one rule in one step of one rank, at least one."""

    notes: tuple[Hit, ...]


@dataclass(frozen=True, slots=True)
class RuleSwitchedOff:
    """A rule raised, and is not asked any more."""

    rule: str
    reason: str


WatchEvent = StepWatched | RuleFired | Noted | RuleSwitchedOff


@dataclass(slots=True)
class Watched:
    """The result of watching a training.

    steps: How many were looked at, by rank.
    skipped: How many of them a gradient scaler skipped.
    by_hand: How many more the script left out itself, after their backward.
    fired: In how many steps each rule held, over all ranks.
    first: Each rule's first hit.
    notes: What may be meant, each thing once, over all ranks.
    """

    steps: Counter[str] = field(default_factory=Counter)
    skipped: int = 0
    by_hand: int = 0
    fired: Counter[str] = field(default_factory=Counter)
    first: dict[str, Hit] = field(default_factory=dict)
    notes: dict[tuple[str, str], Hit] = field(default_factory=dict)


class Watcher:
    """Looks at steps.

    rules: What they are held against.
    tell: Is given each event.

    new_notes: What the last step gave that may be meant and was not told before.
    """

    def __init__(self, rules: Sequence[ChosenRule], tell: Callable[[WatchEvent], None]) -> None:
        self.watched = Watched()
        self.new_notes: list[Hit] = []
        self._rules, self._tell = rules, tell
        self._memories: dict[str, Memory] = {}
        self._histories: dict[str, History] = {}
        self._shared: dict[Key, Any] = {}
        self._holding: dict[tuple[str, str], set[str]] = {}

    def memory_of(self, rank: str) -> Memory:
        """Return the memory of a rank's steps so far."""
        return self._memories.setdefault(rank, Memory(shared=self._shared))

    def look(self, written: WrittenStep) -> list[Hit]:
        """Hold a step against all rules; gives what is new, notes left out."""
        memory = self.memory_of(written.name)
        step = ObservedStep(written.rank, written.name, written.number, memory)
        self._count(step)
        self._tell(_told_of(step))
        history = self._histories.setdefault(written.name, History())
        history.add(step)
        new: list[Hit] = []
        self.new_notes = []
        for rule in self._rules:
            was_on = not rule.off_because
            hits = rule.hits(step)
            if was_on and rule.off_because:
                self._tell(RuleSwitchedOff(rule.name, rule.off_because))
            hits = [replace(hit, history=history.of(hit, step)) for hit in hits]
            self._note(rule.name, [hit for hit in hits if hit.is_note])
            new += self._fired(rule.name, written.name, [hit for hit in hits if not hit.is_note])
        return new

    def _count(self, step: ObservedStep) -> None:
        self.watched.steps[step.rank] += 1
        self.watched.skipped += step.is_skipped
        self.watched.by_hand += step.left_out_by_hand

    def _note(self, rule: str, notes: Sequence[Hit]) -> None:
        """Tell what was not told before, by any rank."""
        new = [hit for hit in notes if (rule, hit.subject) not in self.watched.notes]
        if new:
            self.watched.notes.update({(rule, hit.subject): hit for hit in new})
            self.new_notes += new
            self._tell(Noted(tuple(new)))

    def _fired(self, rule: str, rank: str, hits: Sequence[Hit]) -> list[Hit]:
        """Hits on what the rule has not held of in the step before; those are told.

        What holds of all ranks together is seen by whichever is looked at last, and is told once.
        """
        if any(hit.rank == ALL_RANKS for hit in hits):
            rank = ALL_RANKS
        before = self._holding.get((rule, rank), set())
        self._holding[rule, rank] = {hit.subject for hit in hits}
        self.watched.fired[rule] += bool(hits)
        new = [hit for hit in hits if hit.subject not in before]
        if new:
            self.watched.first.setdefault(rule, new[0])
            self._tell(RuleFired(tuple(new)))
        return new


def _told_of(step: ObservedStep) -> StepWatched:
    rates = step.learning_rates
    return StepWatched(
        step.rank, step.number, step.loss, step.gradient_norm, step.loss_scale,
        max(rates) if rates else None, step.is_skipped,
    )  # fmt: skip


def plain(value: float | str | None) -> float | str | None:
    """A number as JSON can hold it: NaN and inf by their names; a text as it is."""
    if value is None or isinstance(value, str) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
