"""The search of `lockstep bisect`: first for the switch, then for the part of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from lockstep_tune.bisecting import (
    Found,
    Outcome,
    Trial,
    TrialLog,
    any_that_differs,
    first_that_differs,
)
from lockstep_tune.differences import Differences, Levels
from lockstep_tune.switches import (
    AS_IT_IS,
    BACKENDS,
    FUSION,
    SUBSYSTEMS,
    SWITCHES,
    Ladder,
    State,
    all_on_after_all_off,
    applied,
    float32_ladder,
)


@dataclass(frozen=True, slots=True)
class Answer:
    """What was searched, the coarsest first, and what the search found.

    searched: One search after the other.
    smallest: The switches or differences that must be off, or as in the reference, together for the numbers to agree.
    alone: The trial with nothing but those off.
    together: Other differences without which the found one changes nothing.
    kind: What `smallest` names, "switch" for switches of torch.
    """

    searched: tuple[Found, ...]
    smallest: tuple[str, ...] = ()
    alone: Trial | None = None
    together: tuple[str, ...] = ()
    kind: str = "switch"

    @property
    def last(self) -> Found:
        """The finest search."""
        found = [one for one in self.searched if one.first is not None]
        return found[-1] if found else self.searched[-1]


def search_ladder(ladder: Ladder, log: TrialLog) -> Answer:
    """Search one ladder: interpreters, commits."""
    return Answer((first_that_differs(ladder, log),))


def search_differences(differences: Differences, log: TrialLog) -> Answer:
    """Search what differs between two ways to run the command: all of it together, by halves."""
    path = differences.path(differences.lowest, differences.highest)
    ladder = differences.ladder(path)
    found = first_that_differs(ladder, log)
    if found.first is None and found.untold is None and differences.are_listed:
        low, high = log.run(ladder.states[0]), log.run(ladder.states[-1])
        if (low.outcome, high.outcome) == (Outcome.DIFFERS, Outcome.AGREES):
            return search_differences(differences.reversed(), log)
        found = any_that_differs(ladder, log)
    if found.first is None or len(differences.each) == 1:
        return Answer((found,), kind=differences.kind)
    return _smallest(differences, path, found, log)


def _smallest(
    differences: Differences, path: Sequence[Levels], found: Found, log: TrialLog
) -> Answer:
    """Find all differences that must be as in the reference, and those that the first of them needs."""
    lowest, highest = differences.lowest, differences.highest
    searched, put_back = [found], dict[int, int]()
    together: tuple[str, ...] = ()
    while True:
        before, after = path[found.at - 1], path[found.at]
        at = differences.changed(before, after)
        put_back[at] = before[at]
        alone = log.run(differences.state_at(_with(highest, put_back)))
        left = [one for one in range(len(lowest)) if one not in put_back]
        if alone.outcome is not Outcome.DIFFERS or not left:
            break
        path = differences.path(_with(lowest, put_back), _with(highest, put_back), left)
        found = first_that_differs(differences.ladder(path), log)
        if found.first is None:
            break
        searched.append(found)
    if len(put_back) == 1 and alone.outcome is Outcome.AGREES:
        (at,) = put_back
        together = _needed(differences, at, log)
    names = tuple(differences.each[one].name for one in put_back)
    return Answer(tuple(searched), names, alone, together, differences.kind)


def _needed(differences: Differences, at: int, log: TrialLog) -> tuple[str, ...]:
    """Names of the other differences without which one of them changes nothing."""
    changed = {at: differences.highest[at]}
    while (
        log.run(differences.state_at(_with(differences.lowest, changed))).outcome is Outcome.AGREES
    ):
        left = [one for one in range(len(differences.each)) if one not in changed]
        start = _with(differences.lowest, changed)
        path = differences.path(start, differences.highest, left)
        found = first_that_differs(differences.ladder(path), log)
        if found.first is None:
            break
        other = differences.changed(path[found.at - 1], path[found.at])
        changed[other] = differences.highest[other]
    return tuple(differences.each[one].name for one in changed if one != at)


def _with(levels: Levels, changed: Mapping[int, int]) -> Levels:
    return tuple(changed.get(at, level) for at, level in enumerate(levels))


def search_all(differences: Differences, names: Sequence[str], log: TrialLog) -> Answer:
    """Search the differing arguments of two commands, and then the switches: an argument may turn one on."""
    by_arguments = search_differences(differences, log)
    if by_arguments.searched[0].agrees_throughout or by_arguments.searched[0].untold is not None:
        return by_arguments
    by_switches = search_switches(names, log)
    searched = (*by_arguments.searched, *by_switches.searched)
    if by_switches.last.first is not None:
        return dataclasses.replace(by_switches, searched=searched)
    if by_arguments.last.first is not None:
        return by_arguments
    return dataclasses.replace(by_switches, searched=searched)


def search_switches(names: Sequence[str], log: TrialLog) -> Answer:
    """Search some switches, and then within the one that is found."""
    if names == [FUSION]:
        return search_ladder(
            dataclasses.replace(BACKENDS, name="fusion", states=BACKENDS.states[-2:]), log
        )
    known = [one for one in SWITCHES if one in names]
    found = first_that_differs(all_on_after_all_off(known), log)
    searched, smallest = [found], []
    while found.first is not None:
        culprit = known[found.at - 1]
        smallest.append(culprit)
        only = State(f"without {', '.join(sorted(smallest))}", without=tuple(sorted(smallest)))
        alone = log.run(only)
        left = [one for one in known if one not in smallest]
        if alone.outcome is not Outcome.DIFFERS or not left:
            return Answer((*searched, *_within(smallest, log)), tuple(smallest), alone)
        found = first_that_differs(all_on_after_all_off(left, smallest), log)
        searched.append(found)
        known = left
    return Answer(tuple(searched), tuple(smallest))


def _within(smallest: Sequence[str], log: TrialLog) -> list[Found]:
    """Search within a switch that alone makes the difference."""
    inner: dict[str, Callable[[TrialLog], list[Found]]] = {
        "compile": _within_compiler,
        "amp": _within_autocast,
    }
    if len(smallest) != 1 or smallest[0] not in inner:
        return []
    return inner[smallest[0]](log)


def _within_autocast(log: TrialLog) -> list[Found]:
    """The module, where it alone in float32 is enough."""
    modules = log.run(AS_IT_IS).notes
    if not modules:
        return []
    found = first_that_differs(float32_ladder(modules), log)
    if found.first is None or found.between:
        return [found]
    module = modules[found.at - 1]
    alone = log.run(State(f"module {module} in float32", float32=(module,)))
    return [found] if alone.outcome is Outcome.AGREES else []


def _within_compiler(log: TrialLog) -> list[Found]:
    """The stage of the compiler, and if that is inductor, the pass or the operator."""
    found = first_that_differs(BACKENDS, log)
    searched = [found]
    if found.first is None or found.first.state not in (AS_IT_IS.name, BACKENDS.states[-2].name):
        return searched
    for subsystem in SUBSYSTEMS:
        none = log.run(applied(subsystem, 0))
        if none.outcome is Outcome.AGREES:
            names = none.notes
            ladder = Ladder(
                subsystem,
                (
                    applied(subsystem, 0),
                    *(applied(subsystem, count, names) for count in range(1, len(names))),
                    AS_IT_IS,
                ),
                {AS_IT_IS.name: names[-1] if names else ""},
            )
            return [*searched, first_that_differs(ladder, log)]
    return searched
