"""Running the calls of a recorded step again, one after the other, and counting what came of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from lockstep.recordings import AT_BOUNDARY, Call, RankRecording, is_chosen
from lockstep.rerun import (
    RECORDED,
    RUNS_AGAIN,
    Again,
    Answers,
    CannotReplay,
    RerunsApart,
    results_of,
)
from lockstep.terminal import Progress
from lockstep_audit.tally import Tally


@dataclass(frozen=True, slots=True)
class SiteChoice:
    """Which calls are audited; all where nothing is given.

    only: Patterns on module paths and operators, or sites as they are printed.
    """

    only: tuple[str, ...] = ()

    def wants(self, call: Call) -> bool:
        """Whether a call is chosen."""
        site = call.site
        return not self.only or any(is_chosen(pattern, site) for pattern in self.only)


class Auditor:
    """Audits steps of recordings into one tally.

    choice: Which calls.
    memory_bytes: What the process may take.
    answers: Makes who runs calls again, for so many bytes; in a process apart by default.
    """

    def __init__(
        self,
        choice: SiteChoice,
        *,
        memory_bytes: int,
        answers: Callable[[int], Answers] = RerunsApart,
    ) -> None:
        self.tally = Tally()
        self.choice = choice
        self._memory_bytes = memory_bytes
        self._make = answers
        self.open_recording()

    def open_recording(self) -> None:
        """Expect another recording from now on, though it may lie at the same place."""
        self._answers = self._make(self._memory_bytes)

    def prepare(self) -> None:
        """Start what runs calls again, where that is a process of its own; it takes some seconds."""
        if isinstance(self._answers, RerunsApart):
            with suppress(CannotReplay):  # each call that is to be run again says so
                self._answers.prepare()

    def step(
        self,
        rank: RankRecording,
        number: int,
        told: Progress,
        *,
        name: str = "",
        may_go_on: Callable[[], bool] | None = None,
    ) -> None:
        """Audit what was recorded of one step; `name` stands for the rank's own.

        `may_go_on` is asked before each call, and may take its time; once it says no, the rest of the step is left.
        With it calls come in another order: one of each operator first, so that what is left has been seen in part.

        Raises CorruptError if a file is damaged.
        """
        calls = [
            call
            for call in rank.calls(number)
            if call.kind in RUNS_AGAIN and self.choice.wants(call) and results_of(call)
        ]
        compiled = _compiled(rank)
        operators = {call.site.op for call in calls}
        for what in compiled - operators if not self.choice.only else ():
            self.tally.not_judged[what, AT_BOUNDARY] += 1
        calls = calls if may_go_on is None else _each_operator_first(calls)
        for position, call in enumerate(calls):
            if may_go_on is not None and not may_go_on():
                self.tally.calls_left += len(calls) - position
                return
            told(str(call.site), position, len(calls))
            self._call(replace(call, rank=name or call.rank), compiled)

    def _call(self, call: Call, compiled: frozenset[str]) -> None:
        if call.site.op in compiled:
            self.tally.add_refusal(call, AT_BOUNDARY)
            return
        try:
            results = self._answers.ask(Again(call, None, "", 0))
            if any(one.maker == RECORDED and not one.sound for r in results for one in r.held):
                results = self._answers.ask(Again(call, None, "", 1))
        except (CannotReplay, MemoryError) as error:
            self.tally.add_refusal(call, str(error) or "it takes too much memory")
        else:
            self.tally.add(call, results)


def _each_operator_first(calls: list[Call]) -> list[Call]:
    """The first call of each operator, then the second ones, and so on."""
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int]] = []
    for call in calls:
        turns.append((seen[call.site.op], len(turns)))
        seen[call.site.op] += 1
    return [calls[number] for _, number in sorted(turns)]


def _compiled(rank: RankRecording) -> frozenset[str]:
    """Names of functions that were compiled."""
    return frozenset(gap.compiled for gap in rank.manifest.not_seen if gap.compiled)
