"""What is known of two set-ups, aspect by aspect: same, differs, unknown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum

from lockstep.core.finding import SetupDifference
from lockstep.wings.check.setups.aspects import Aspect, aspects


class State(str, Enum):
    """Whether two set-ups are alike in one aspect."""

    SAME = "same"
    DIFFERS = "differs"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of one aspect.

    Parameters
    ----------
    differences
        What differs, each once for all ranks.
    unknown
        Why it is not known, or not wholly; "" where it is.
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
    """Gathers what is known, over ranks and steps."""

    _differences: dict[str, dict[str, SetupDifference]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    _unknown: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def differ(self, aspect: str, *differences: SetupDifference) -> None:
        """Something of an aspect differs."""
        for one in differences:
            self._differences[aspect].setdefault(str(one), one)

    def not_known(self, aspects_: Iterable[str], why: str) -> None:
        """Something of these aspects is not known."""
        for aspect in aspects_:
            self._unknown.setdefault(aspect, why)

    def answers(self) -> list[Answer]:
        """Every aspect, the most harmful first."""
        return [
            Answer(
                aspect, tuple(self._differences.get(name, {}).values()), self._unknown.get(name, "")
            )
            for name, aspect in aspects().items()
        ]
