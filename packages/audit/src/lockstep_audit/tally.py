"""Collect the findings of an audit: results beyond their floor, and results that could not be judged."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from lockstep.recordings import AT_BOUNDARY, Call, Site
from lockstep.rerun import RECORDED, Held, Result, results_of

Place = tuple[Site, str, str]
"""A site, and the role and the name of one of its results."""


@dataclass(slots=True)
class Beyond:
    """One result of a site that is beyond its floor, over all steps and ranks.

    site, role, name: Where, and which result.
    source: `file:line` of the user's code, or "".
    worst: The recorded result that is furthest beyond.
    host: What a re-run on this machine gave from the same inputs; None where there was none.
    times: How often it was beyond.
    steps, ranks: In which.
    judged: How often it was judged.
    """

    site: Site
    role: str
    name: str
    source: str
    worst: Held
    host: Held | None = None
    times: int = 0
    steps: set[int] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)
    judged: int = 0


class Tally:
    """Counts what an audit judges; what it keeps grows with the sites, not with the steps.

    judged, calls: Results that were held against double precision, and the calls that they are of.
    beyond_times: How many of these results were beyond their floor.
    not_judged: Results that could not be, by operator and reason.
    steps, ranks: In which something was judged.
    left_out: Steps that were recorded, or could have been, and not looked at.
    calls_left: Calls of recorded steps that the budget left no time for.
    has_budget: Whether there was one.
    trained: Steps that the training had in all; 0 where that is not known.
    """

    def __init__(self) -> None:
        self.judged = self.calls = self.beyond_times = self.left_out = self.trained = 0
        self.calls_left = 0
        self.has_budget = False
        self.not_judged: Counter[tuple[str, str]] = Counter()
        self.steps: set[int] = set()
        self.ranks: set[str] = set()
        self._beyond: dict[Place, Beyond] = {}
        self._seen: Counter[Place] = Counter()

    @property
    def beyond(self) -> list[Beyond]:
        """Return the results beyond their floor, furthest first; equal ones in order of time."""
        for place, one in self._beyond.items():
            one.judged = self._seen[place]
        return sorted(self._beyond.values(), key=_rank)

    @property
    def too_little(self) -> str:
        """Why what was judged stands for less than half of the training; "" where it stands for more.

        A compiled function is one call here, however many operators it holds.
        """
        if not self.judged:
            return "nothing was judged"
        compiled = [op for op, reason in self.not_judged if reason == AT_BOUNDARY]
        if compiled:
            return f"the inside of {compiled[0]} was compiled, so it was not judged"
        missing = self.not_judged.total()
        if missing <= self.judged:
            return ""
        (op, reason), most = self.not_judged.most_common(1)[0]
        every = missing + self.judged
        return f"{missing} of {every} results could not be judged, {most} of them because {reason} ({op})"

    def add_refusal(self, call: Call, reason: str) -> None:
        """Nothing of a call could be judged."""
        self.not_judged[call.site.op, reason] += max(1, len(results_of(call)))

    def add(self, call: Call, results: list[Result]) -> None:
        """Add the judged results of a call."""
        judged = 0
        for result in results:
            recorded = next((one for one in result.held if one.maker == RECORDED), None)
            if recorded is None:
                self.not_judged[call.site.op, result.refused or "no result"] += 1
                continue
            judged += 1
            self._seen[_place(call, result)] += 1
            if not recorded.sound:
                self._add_beyond(call, result, recorded)
        self.judged += judged
        if judged:
            self.calls += 1
            self.steps.add(call.step)
            self.ranks.add(call.rank)

    def _add_beyond(self, call: Call, result: Result, recorded: Held) -> None:
        place = _place(call, result)
        host = next((one for one in result.held if one.maker != RECORDED), None)
        found = self._beyond.get(place)
        if found is None:
            found = self._beyond[place] = Beyond(*place, call.source, recorded, host)
        elif recorded.excess > found.worst.excess:
            found.worst, found.host = recorded, host
        found.times += 1
        found.steps.add(call.step)
        found.ranks.add(call.rank)
        self.beyond_times += 1


def _place(call: Call, result: Result) -> Place:
    again = f"~{result.occurrence + 1}" if result.occurrence else ""
    return call.site, result.role.value, f"{result.name}{again}"


def _rank(one: Beyond) -> float:
    return -math.inf if math.isnan(one.worst.excess) else -one.worst.excess
