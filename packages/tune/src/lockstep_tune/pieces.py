"""The time of the thread that trains, cut into pieces of which each belongs to a stack of the script's lines."""

from __future__ import annotations

import bisect
import statistics
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep_tune.marks import STEP
from lockstep_tune.profile import COLLECTIVE, Phase, Piece
from lockstep_tune.trace_events import Event

_FEW = 3.0
"""A gap of less than so many usual ones is Python on its way to the next operator."""
_MISSED = 3.0
"""In so many times what lies between two samples, one is missing because a call holds the interpreter."""


def pieces_of(
    steps: Sequence[Event],
    timed: Sequence[Event],
    outermost: Sequence[Event],
    beside: Mapping[str, Any],
) -> tuple[Piece, ...]:
    """Return the pieces of the timed steps; none where the trace knows no stacks.

    steps, timed: All steps, and those whose times count.
    outermost: Operators that Python calls on the thread that trains, in order of time.
    beside: What was noted beside the trace: stacks and samples of the interpreter.
    """
    stacks = beside.get("stacks")
    if not stacks or not timed:
        return ()
    return _Cutting(steps, timed, stacks, beside).pieces(outermost)


class _Cutting:
    """Cuts steps into operators and the gaps between them, and gives each its stack."""

    def __init__(
        self,
        steps: Sequence[Event],
        timed: Sequence[Event],
        stacks: Sequence[Mapping[str, Any]],
        beside: Mapping[str, Any],
    ) -> None:
        self._steps, self._stacks = steps, stacks
        self._timed = {id(one): at for at, one in enumerate(timed)}
        self._every_us = float(beside.get("samples_every_us", 0.0))
        self._validates = set(beside.get("validates", ()))
        self._samples: dict[int, list[tuple[float, int]]] = defaultdict(list)
        starts = {int(one.name.removeprefix(STEP)): one for one in steps}
        for number, offset, stack in beside.get("samples", ()):
            if number in starts:
                step = starts[number]
                self._samples[id(step)].append((step.start + offset, stack))
        self._collective: set[tuple[Any, ...]] = set()
        self._found: dict[tuple[Any, ...], tuple[list[float], list[float]]] = {}

    def pieces(self, outermost: Sequence[Event]) -> tuple[Piece, ...]:
        """Return the pieces, those of one stack in one."""
        gaps: list[tuple[Event, float, float, Event | None]] = []
        for step in self._steps:
            inside = [one for one in outermost if step.start <= one.start < step.end]
            before = step.start
            for one in inside:
                gaps.append((step, before, max(one.start, before), one))
                before = max(before, one.end)
                if id(step) in self._timed:
                    self._add_operator(step, one)
            gaps.append((step, before, max(step.end, before), None))
        self._add_gaps(gaps)
        training = {
            key[:2] for key in self._found if key[2]
        } | self._collective  # `loss.backward` at its line, say
        return tuple(
            Piece(
                lines, calls, tuple(us),
                tuple(0.0 if (lines, calls) in training else one for one in python_us), trains, evaluates,
            )
            for (lines, calls, trains, evaluates), (us, python_us) in self._found.items()
        )  # fmt: skip

    def _add_operator(self, step: Event, one: Event) -> None:
        stack = one.stack
        if stack < 0:
            seen = Counter(stack for _, stack in self._between(step, one.start, one.end))
            stack = seen.most_common(1)[0][0] if seen else -1
        evaluates = one.evaluates in self._validates
        trains = one.phase in (Phase.BACKWARD, Phase.OPTIMIZER) or (
            bool(one.module) and not one.evaluates
        )
        key = self._key(stack, trains=trains, evaluates=evaluates)
        if COLLECTIVE.match(one.name):
            self._collective.add(key[:2])
        self._add(step, key, one.took, 0.0)

    def _add_gaps(self, gaps: Sequence[tuple[Event, float, float, Event | None]]) -> None:
        """Give each gap to the stacks that were sampled in it; short ones without a sample as in other steps."""
        took = [end - start for step, start, end, _ in gaps if id(step) in self._timed]
        usual = statistics.median(took) if took else 0.0
        shares = [self._shares(*gap) for gap in gaps]
        pooled: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
        for (*_, following), found in zip(gaps, shares, strict=True):
            for stack, us in found.items():
                pooled[_same(following)][stack] += us
        for (step, start, end, following), found in zip(gaps, shares, strict=True):
            if id(step) not in self._timed:
                continue
            is_short = _FEW * usual < end - start < _MISSED * self._every_us
            if not found and is_short:
                found = pooled[_same(following)]
            if not found:
                found = {-1 if following is None else following.stack: 1.0}
            whole = sum(found.values()) or 1.0
            more_us = max(end - start - usual, 0.0)
            for stack, share in found.items():
                key = self._key(stack)
                self._add(step, key, (end - start) * share / whole, more_us * share / whole)

    def _shares(
        self, step: Event, start: float, end: float, following: Event | None
    ) -> dict[int, float]:
        """Return microseconds by stack: those until a sample are its own, as are those after the last one.

        A call that holds the interpreter is sampled as it lets go, and not at all if that is within an operator of it:
        a long time without a sample is of the call that makes the following operator.
        """
        found: dict[int, float] = defaultdict(float)
        before, last = start, -1
        for time, stack in self._between(step, start, end):
            found[stack] += time - before
            before, last = time, stack
        if found:
            is_held = end - before > _MISSED * self._every_us
            if is_held and following is not None and following.stack >= 0:
                last = following.stack
            found[last] += end - before
        return found

    def _between(self, step: Event, start: float, end: float) -> list[tuple[float, int]]:
        """Return the samples of a time."""
        samples = self._samples[id(step)]
        first = bisect.bisect_left(samples, (start, -1))
        return samples[first : bisect.bisect_left(samples, (end, -1))]

    def _key(self, stack: int, *, trains: bool = False, evaluates: bool = False) -> tuple[Any, ...]:
        """What is one piece: a stack, what its innermost line calls, and what is done there."""
        if stack < 0:
            return (), "", trains, evaluates
        told = self._stacks[stack]
        return tuple(map(tuple, told["lines"])), told["calls"], trains, evaluates

    def _add(self, step: Event, key: tuple[Any, ...], us: float, python_us: float) -> None:
        at, count = self._timed[id(step)], len(self._timed)
        all_us, all_python_us = self._found.setdefault(key, ([0.0] * count, [0.0] * count))
        all_us[at] += us
        all_python_us[at] += python_us


def _same(following: Event | None) -> int:
    """What tells a gap from others of a step: the operator that follows, as it is in the marked step."""
    return 0 if following is None else id(following.like or following)
