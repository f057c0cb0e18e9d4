"""The search for the first bad step: the steps in which it may be, and those to look at next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Bracket:
    """A sound step, and a later one that is bad, or may be.

    sound: The last step known to agree, -1 for none.
    bad: The first step that is bad or may be.
    is_shown: Whether a pair of recordings shows that it is bad.
    likely: Steps to look at first.
    untold: Steps that could not be judged.
    """

    sound: int
    bad: int
    is_shown: bool = False
    likely: tuple[int, ...] = ()
    untold: frozenset[int] = frozenset()

    @property
    def between(self) -> tuple[int, ...]:
        """The steps between the two that could not be judged."""
        return tuple(step for step in sorted(self.untold) if self.sound < step < self.bad)


@dataclass(frozen=True, slots=True)
class Judged:
    """The answer of one pair of recordings.

    sound: Steps that agree.
    bad: The first step that does not, None for none.
    is_recorded: Whether the pair holds this step, and not a row of the step log alone.
    likely, untold: As `Bracket` has them.
    """

    sound: tuple[int, ...] = ()
    bad: int | None = None
    is_recorded: bool = True
    likely: tuple[int, ...] = ()
    untold: tuple[int, ...] = ()


def bracket_of(given: Judged, trained: int | None) -> Bracket | None:
    """Return where to search, None where two recordings leave nothing to search.

    Parameters
    ----------
    given
        Their answer.
    trained
        How many steps both trainings had; None where that is not known.

    Examples
    --------
    >>> bracket_of(Judged(sound=(0, 1, 20, 21), bad=40), 60)
    Bracket(sound=21, bad=40, is_shown=True, likely=(), untold=frozenset())
    """
    if given.bad is not None:
        sound = max((step for step in given.sound if step < given.bad), default=-1)
        return Bracket(sound, given.bad, given.is_recorded, given.likely)
    if not given.sound or trained is None or trained - 1 <= max(given.sound):
        return None
    return Bracket(max(given.sound), trained - 1, likely=given.likely)


def probes(bracket: Bracket, count: int) -> tuple[int, ...]:
    """Return the steps to look at next, none where the search is over.

    Parameters
    ----------
    bracket
        Where the first bad step may be.
    count
        How many steps at most, of which two are those that a step log points to.

    Examples
    --------
    >>> probes(Bracket(sound=21, bad=40, is_shown=True), 4)
    (25, 28, 32, 36)
    """
    if bracket.sound >= bracket.bad:
        return ()
    inside = [
        step for step in range(bracket.sound + 1, bracket.bad) if step not in bracket.untold
    ]  # fmt: skip
    first = [step for step in bracket.likely if step in set(inside)][: count - 1]
    if not (bracket.is_shown or bracket.bad in bracket.untold):
        first.append(bracket.bad)
    others = [step for step in inside if step not in first]
    return tuple(sorted([*first, *_spread(others, count - len(first))]))


def narrowed(bracket: Bracket, judged: Judged) -> Bracket:
    """Return the bracket after looking at some of its steps."""
    bad, is_shown, likely = bracket.bad, bracket.is_shown, tuple[int, ...]()
    if judged.bad is not None and (judged.bad <= bad):
        bad, is_shown, likely = judged.bad, judged.is_recorded, judged.likely
        if bad == bracket.bad:
            is_shown |= bracket.is_shown
    known = [bracket.sound, *judged.sound]
    last = bad if judged.bad is None and not is_shown else bad - 1
    sound = max((step for step in known if step <= last), default=-1)
    return Bracket(sound, bad, is_shown, likely, bracket.untold | frozenset(judged.untold))


def search(
    bracket: Bracket, look: Callable[[Bracket, tuple[int, ...]], Judged], count: int
) -> Bracket:
    """Look at steps until no step is left between the sound one and the bad one."""
    while chosen := probes(bracket, count):
        bracket = narrowed(bracket, look(bracket, chosen))
    return bracket


def most_rounds(bracket: Bracket, count: int) -> int:
    """Return how often `search` looks at most, if every step can be judged."""
    rounds, now = 0, replace(bracket, untold=frozenset())
    while chosen := probes(now, count):
        edges = [now.sound, *chosen, now.bad]
        gaps = [after - before for before, after in pairwise(edges)]
        low = max(range(len(gaps)), key=gaps.__getitem__)
        now = Bracket(edges[low], edges[low + 1], is_shown=True)
        rounds += 1
    return rounds


def _spread(steps: Sequence[int], count: int) -> list[int]:
    """So many of the steps, with gaps as equal as can be."""
    if len(steps) <= count:
        return list(steps)
    return [steps[len(steps) * place // (count + 1)] for place in range(1, count + 1)]
