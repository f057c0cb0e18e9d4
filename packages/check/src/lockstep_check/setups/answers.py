"""The answer for each aspect of two set-ups: same, differs, unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from lockstep.compare import SetupDifference, WhatNext
from lockstep_check.setups.aspects import Aspect, aspects


class State(str, Enum):
    """Whether two set-ups are alike in one aspect."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer for one aspect.

    differences: What differs, each once for all ranks.
    unknown: Why it is not known, or not wholly; "" where it is.
    """

    aspect: Aspect
    differences: tuple[SetupDifference, ...]
    unknown: str

    @property
    def state(self) -> State:
        """A difference is one, also where more is unknown."""
        if self.differences:
            return State.DIFFERS
        return State.UNKNOWN if self.unknown else State.SAME


@dataclass(slots=True)
class Answers:
    """Gathers what is known, over ranks and steps; `steps` are those whose calls and batches were looked at.

    `alone` tells of steps and ranks that one run alone has, `what_next` what to type then.
    """

    _differences: dict[str, dict[str, SetupDifference]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _names: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    _unknown: dict[str, str] = field(default_factory=dict)
    _begins: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    alone: list[str] = field(default_factory=list)
    what_next: WhatNext | None = None

    @property
    def differs(self) -> bool:
        """Whether the set-ups differ in anything that counts."""
        return any(one.state is State.DIFFERS and one.aspect.counts for one in self.answers())

    def differ(self, aspect: str, *differences: SetupDifference, place: int = 0) -> None:
        """Note a difference of an aspect, first seen this many steps after the first one."""
        for one in differences:
            self._differences[aspect].setdefault(str(one), one)
            self._names[aspect].add(one.name)
        if differences:
            self._begins[aspect] = min(place, self._begins.get(aspect, place))

    def not_known(self, aspects_: Iterable[str], why: str) -> None:
        """Something of these aspects is not known."""
        for aspect in aspects_:
            self._unknown.setdefault(aspect, why)

    def take(self, others: Answers) -> None:
        """Take what others have gathered."""
        for aspect, found in others._differences.items():
            self.differ(aspect, *found.values())
        for aspect, why in others._unknown.items():
            self.not_known([aspect], why)

    def take_new(self, others: Answers, when: str) -> None:
        """Take of what others have gathered what is told of nothing here yet, and say when it begins."""
        for aspect, found in others._differences.items():
            new = [one for one in found.values() if one.name not in self._names[aspect]]
            later = [replace(one, name=f"{one.name}, {when}") for one in new]
            self.differ(aspect, *later, place=len(self.steps))
            self._names[aspect].update(one.name for one in new)
        for aspect, why in others._unknown.items():
            self.not_known([aspect], why)

    def _of(self, aspect: str) -> Iterable[SetupDifference]:
        return self._differences.get(aspect, {}).values()

    def answers(self) -> list[Answer]:
        """Return every aspect: what began to differ first, as others may follow from it, then the most harmful first.

        What does not count comes behind.
        """
        found = [
            Answer(
                aspect, tuple(self._differences.get(name, {}).values()), self._unknown.get(name, "")
            )
            for name, aspect in aspects().items()
        ]
        return sorted(found, key=self._order)

    def _order(self, answer: Answer) -> tuple[bool, int]:
        """Return the place of an answer, those of one place staying as they are."""
        aspect = answer.aspect
        return not aspect.counts, self._begins.get(aspect.name, 0)
