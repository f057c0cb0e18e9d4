"""The search: which state is the first to make a training's numbers differ, with `compare` as the judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import Any

from lockstep_tune.journal import Journal
from lockstep_tune.switches import Ladder, State


class Outcome(str, Enum):
    """The result of a trial for a state."""

    AGREES = "agrees"
    DIFFERS = "differs"
    UNTOLD = "could not be told"


@dataclass(frozen=True, slots=True)
class Trial:
    """One run of the command in one state, compared with the reference.

    state: Which, by its name.
    outcome: What `compare` says; noise is no difference.
    words: Its headline, or why it cannot say.
    short: The verdict and its place alone.
    notes: What the run told for a finer search: the modules that it called, or what a part of inductor was applied to.
    """

    state: str
    outcome: Outcome
    words: str
    notes: tuple[str, ...] = ()
    short: str = ""


Judge = Callable[[State], Trial]
"""Runs the command in a state and compares it."""


class TrialLog:
    """Every trial, a line of JSON each; those that a search before this one made are not run again.

    file: Where; None to keep none.
    subject: What is searched: the reference, the command. A log of anything else is refused.
    judge: Runs a trial.
    told: Hears of each trial.

    Raises OutputExistsError if the file is of another search. Raises CorruptError if it is no log.
    """

    def __init__(
        self,
        file: Path | None,
        subject: Sequence[str],
        judge: Judge,
        told: Callable[[Trial, bool], None] = lambda trial, known: None,
    ) -> None:
        self._judge, self._told = judge, told
        self._journal = Journal(file, subject, "bisect")
        try:
            known = [_trial(one) for one in self._journal.entries]
        except (ValueError, KeyError, TypeError) as error:
            raise self._journal.damaged(error) from error
        self._known: dict[str, Trial] = {one.state: one for one in known}
        self.trials: list[Trial] = []

    def run(self, state: State) -> Trial:
        """The outcome of a state: known, or by a run."""
        known = self._known.get(state.name)
        if known is None:
            known = self._judge(state)
            self._known[state.name] = known
            self._journal.add(_values(known))
            self._told(known, False)
        elif known not in self.trials:
            self._told(known, True)
        if known not in self.trials:
            self.trials.append(known)
        return known


def _trial(entry: dict[str, Any]) -> Trial:
    outcome, notes = Outcome(entry["outcome"]), tuple(entry["notes"])
    return Trial(entry["state"], outcome, entry["words"], notes, entry.get("short", ""))


def _values(trial: Trial) -> dict[str, object]:
    return {
        "state": trial.state,
        "outcome": trial.outcome.value,
        "words": trial.words,
        "notes": trial.notes,
        "short": trial.short,
    }


@dataclass(frozen=True, slots=True)
class Found:
    """The result of searching one ladder.

    ladder: Which.
    first: The first state that differs; None where the last one does not, or even the first one does.
    before: The last state before it that agrees.
    between: States between the two that could not be told.
    agrees_throughout: Whether the command agrees as it is.
    untold: The state at an end that could not be told, where there is nothing to search for it.
    at: Where in the ladder the first state that differs is.
    """

    ladder: Ladder
    first: Trial | None = None
    before: Trial | None = None
    between: tuple[Trial, ...] = ()
    agrees_throughout: bool = False
    untold: Trial | None = None
    at: int = 0


def first_that_differs(ladder: Ladder, log: TrialLog) -> Found:
    """Search a ladder by halves: at most 2 + log2(n) trials, and one more for each that cannot be told.

    The last state is run first, then the first one: only where they part is there something to search.
    """
    last = log.run(ladder.states[-1])
    if last.outcome is not Outcome.DIFFERS:
        told = last.outcome is Outcome.AGREES
        return Found(ladder, agrees_throughout=told, untold=None if told else last)
    first = log.run(ladder.states[0])
    if first.outcome is not Outcome.AGREES:
        return Found(ladder, untold=first if first.outcome is Outcome.UNTOLD else None)
    low, high = 0, len(ladder.states) - 1
    agreeing, differing = first, last
    untold: dict[int, Trial] = {}
    while True:
        inner = [at for at in range(low + 1, high) if at not in untold]
        if not inner:
            between = tuple(trial for at, trial in sorted(untold.items()) if low < at < high)
            return Found(ladder, differing, agreeing, between, at=high)
        at = inner[len(inner) // 2]
        trial = log.run(ladder.states[at])
        if trial.outcome is Outcome.AGREES:
            low, agreeing = at, trial
        elif trial.outcome is Outcome.DIFFERS:
            high, differing = at, trial
        else:
            untold[at] = trial


def any_that_differs(ladder: Ladder, log: TrialLog) -> Found:
    """Run every state of a ladder: the first two neighbours of which one agrees and the other differs."""
    trials = [log.run(one) for one in ladder.states]
    told = [(at, one) for at, one in enumerate(trials) if one.outcome is not Outcome.UNTOLD]
    for (low, left), (high, right) in pairwise(told):
        if left.outcome is not right.outcome:
            agreeing, differing = (left, right) if left.outcome is Outcome.AGREES else (right, left)
            between = tuple(trials[low + 1 : high])
            return Found(ladder, differing, agreeing, between, at=high)
    untold = next((one for one in trials if one.outcome is Outcome.UNTOLD), None)
    agrees = all(one.outcome is Outcome.AGREES for one in trials)
    return Found(ladder, agrees_throughout=agrees, untold=untold)
