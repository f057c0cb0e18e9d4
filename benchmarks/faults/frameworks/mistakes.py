"""What a porting mistake is: where it goes, how it alters a script, and which answers name it."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from score import is_near

from frameworks.script import Script
from frameworks.ways import WAYS, Way
from lockstep.core.finding import Comparison, Kind, Origin

Place = str
"""Path of a module, "" where a mistake is in none."""

_WRAPPERS = re.compile(
    r"^(base_model\.model\.|model\.(?=model\.|transformer\.|bert\.|vit\.|blocks\.|stages\.))"
)


@dataclass(frozen=True)
class Answers:
    """Which first origins name a mistake; one that fits any of these does.

    Parameters
    ----------
    near
        One in or next to the module where the mistake is, in any of `near_phases` (all where empty).
    phases
        One in these phases, whatever module it names.
    calls
        One that names a call of these, or says in its reason that a run lacks it.
    words
        One whose reason has one of these words.
    kinds
        One of these kinds.
    uniform
        A precision change that has a member in the module counts too.
    """

    near: bool = True
    near_phases: tuple[str, ...] = ()
    phases: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    uniform: bool = False

    def fits(self, found: Comparison, place: Place, *, compiled: bool = False) -> bool:
        """Whether a comparison's first answer names the mistake.

        With `compiled` the module may be one that holds the place: a compiled module is one site.
        """
        if self.uniform and any(
            _near(member.module, place) for change in found.uniform for member in change.members
        ):
            return True
        if not found.origins:
            return False
        first = found.origins[0]
        return self._fits(first, place) or (compiled and _is_region_around(first, place))

    def _fits(self, origin: Origin, place: Place) -> bool:
        phase, text = origin.phase.value, origin.reason.lower()
        named = re.split(r"[^a-z0-9_]+", f"{origin.op} {text}".lower())
        return (
            (self.near and _near(origin.module, place) and phase in (self.near_phases or (phase,)))
            or phase in self.phases
            or any(call in named for call in self.calls)
            or any(word in text for word in self.words)
            or origin.kind in self.kinds
        )


def _near(named: str, planted: str) -> bool:
    """Next to the planted module; a wrapper's own attribute may stand in front."""
    if not planted:
        return not named
    return is_near(named, planted) or is_near(_WRAPPERS.sub("", named), planted)


def _is_region_around(origin: Origin, place: Place) -> bool:
    """Whether an origin is a compiled module that holds the place."""
    if "OptimizedModule" not in origin.op and "compiled" not in origin.reason:
        return False
    holds = not origin.module or f"{place}.".startswith(f"{origin.module}.")
    return holds and origin.phase.value in ("forward", "backward")


@dataclass(frozen=True)
class Mistake:
    """One kind of porting mistake.

    Parameters
    ----------
    name
        As printed in the table.
    plant
        Alters a script that is otherwise sound, at a place.
    answers
        Which answers name it.
    at
        Kind of place (`Subject.places`), "" where it is in no module.
    fits
        Which ways and models may have it.
    prepare
        Alters reference and candidate alike, where the mistake needs a situation that not every script meets.
    share
        How many cases are drawn of it.
    """

    name: str
    plant: Callable[[Script, Place], None]
    answers: Answers
    at: str = ""
    fits: Callable[[Way, Any], bool] = lambda way, subject: True
    prepare: Callable[[Script, Place], None] | None = None
    share: int = 5


MISTAKES: dict[str, Mistake] = {}


def register(mistake: Mistake) -> Mistake:
    """Add a kind of mistake."""
    assert mistake.name not in MISTAKES, mistake.name
    MISTAKES[mistake.name] = mistake
    return mistake


def settings_of(mistake: Mistake) -> list[tuple[Way, Any]]:
    """All ways and models that may have a mistake."""
    from frameworks.ways import subjects_of

    return [
        (way, subject)
        for way in WAYS.values()
        for subject in subjects_of(way)
        if mistake.fits(way, subject) and (not mistake.at or mistake.at in subject.places)
    ]


def drawn(mistake: Mistake, seed: int) -> list[tuple[Way, Any, Place]]:
    """The cases of a mistake: ways first, so that each turns up before any comes twice."""
    stream = random.Random(f"{seed}/{mistake.name}")
    found = settings_of(mistake)
    stream.shuffle(found)
    chosen: list[tuple[Way, Any]] = []
    while found and len(chosen) < mistake.share:
        counts = [_used(chosen, way.name, subject.name) for way, subject in found]
        chosen.append(found.pop(counts.index(min(counts))))
    return [
        (way, subject, stream.choice(subject.places[mistake.at]) if mistake.at else "")
        for way, subject in chosen
    ]


def _used(chosen: Sequence[tuple[Way, Any]], way: str, subject: str) -> tuple[int, int]:
    return sum(one.name == way for one, _ in chosen), sum(one.name == subject for _, one in chosen)
