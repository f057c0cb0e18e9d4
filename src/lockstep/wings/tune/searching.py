"""The search of `lockstep bisect`: first for the switch, then for the part of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from lockstep.wings.tune.bisecting import Found, Outcome, Trial, TrialLog, first_that_differs
from lockstep.wings.tune.switches import (
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
    """The searched switches, the coarsest first, and those that must be off together for the numbers to agree."""

    searched: tuple[Found, ...]
    smallest: tuple[str, ...] = ()
    alone: Trial | None = None

    @property
    def last(self) -> Found:
        """The finest search."""
        found = [one for one in self.searched if one.first is not None]
        return found[-1] if found else self.searched[-1]


def search_ladder(ladder: Ladder, log: TrialLog) -> Answer:
    """Search one ladder: a variable, interpreters, commits."""
    return Answer((first_that_differs(ladder, log),))


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
