"""The reason for a finding or an origin: clauses with their data, which together make a sentence."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise


class About(str, Enum):
    """The subject of a clause of a reason."""

    CAUSE = "cause"
    CLASS = "class"
    ENTERED = "entered"
    LEFT = "left"
    EVIDENCE = "evidence"
    SETTING = "setting"
    UNTRIED = "setting not tried"
    LONE_CALL = "call of one run alone"
    COMPILED = "compiled code"
    RANDOM = "random stream"
    UNSEEDED = "no seed set"
    EQUAL = "equal"
    WITHIN = "within its tolerance"
    INHERITED = "inherited"
    CHOICE = "chosen differently"
    ALONE = "in one run alone"
    BESIDE = "nothing trained depends on it"
    LATER = "judged by what is computed from it"
    UNKNOWN = "not known"
    OPEN = "could not be judged"


@dataclass(frozen=True, slots=True)
class Clause:
    """One thing that a reason says.

    about: What it is about.
    words: How it is said.
    name: The setting, module or tensor that it is about, or "".
    reference, candidate: What each run has there, as printed, or "".
    difference: How far apart the two are, relative; None where that is not known.
    """

    about: About
    words: str
    name: str = ""
    reference: str = ""
    candidate: str = ""
    difference: float | None = None


class Reason(str):
    """A reason as it is printed; code reads its `clauses`.

    Examples
    --------
    >>> reason = Reason(Clause(About.SETTING, "p is 0.1 in the reference and 0.2 in the candidate", "p"), "so it is")
    >>> print(reason)
    p is 0.1 in the reference and 0.2 in the candidate; so it is
    >>> [clause.name for clause in reason.clauses]
    ['p', '']
    """

    __slots__ = ("clauses",)
    clauses: tuple[Clause, ...]

    def __new__(cls, *parts: Clause | str) -> Reason:
        """Put clauses and other reasons together; plain words are a cause."""
        clauses = tuple(clause for part in parts for clause in _clauses_of(part))
        made = super().__new__(cls, _sentence(clauses))
        made.clauses = clauses
        return made

    def without(self, *about: About) -> tuple[Clause, ...]:
        """Its clauses but for those about something."""
        return tuple(one for one in self.clauses if one.about not in about)

    def of(self, about: About) -> tuple[Clause, ...]:
        """Its clauses about something."""
        return tuple(one for one in self.clauses if one.about is about)


def _clauses_of(part: Clause | str) -> tuple[Clause, ...]:
    if isinstance(part, Clause):
        return (part,)
    if isinstance(part, Reason):
        return part.clauses
    return (Clause(About.CAUSE, part),)


def _sentence(clauses: tuple[Clause, ...]) -> str:
    words = clauses[0].words if clauses else ""
    for before, one in pairwise(clauses):
        is_one = (before.about, one.about) == (About.ENTERED, About.LEFT)
        mark = ": " if before.about is About.RANDOM else ", " if is_one else "; "
        words += f"{mark}{one.words}"
    return words
