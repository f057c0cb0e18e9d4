"""Sentences that keep their data: code reads `facts`, people the sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of one sentence; a field that does not apply is empty or None.

    why: What kind it is.
    side, rank, step: The run ("reference" or "candidate") and the rank that it is about, and the first step.
    names: What it is about: tensors, files, ranks, steps.
    count, of: How many, of how many.
    at: Where the first of them is; of what is trained, which quantity it is.
    reference, candidate: What each run has there.
    reason: What is known of why.
    numbers: Other numbers by name, with the unit in the name; without one they are dimensionless.
    """

    why: Enum
    side: str = ""
    rank: str = ""
    step: int | None = None
    names: tuple[str, ...] = ()
    count: int | None = None
    of: int | None = None
    at: str = ""
    reference: str = ""
    candidate: str = ""
    reason: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)


class Untyped(str, Enum):
    """The kind of a sentence that is known as a text alone."""

    TOLD = "told"


class Told(str):
    """A sentence that keeps its data in `facts`; a plain text is taken as it is."""

    __slots__ = ("facts",)
    facts: Facts

    def __new__(cls, why: Enum | str, **fields: Any) -> Self:
        """Make the sentence of some facts."""
        facts = Facts(why, **fields) if isinstance(why, Enum) else Facts(Untyped.TOLD, reason=why)
        made = super().__new__(cls, worded(facts))
        made.facts = facts
        return made

    @classmethod
    def of(cls, sentence: str) -> Self:
        """Return a sentence with its data; a plain one has none."""
        return sentence if isinstance(sentence, cls) else cls(sentence)


_WORDS: dict[Enum, Callable[[Facts], str]] = {Untyped.TOLD: lambda facts: facts.reason}


def register(words: Mapping[Any, Callable[[Facts], str]]) -> None:
    """Register how kinds of facts are said."""
    _WORDS.update(words)


def worded(facts: Facts) -> str:
    """Return the sentence of some facts."""
    return _WORDS[facts.why](facts)


def some(count: int | None, one: str, many: str) -> str:
    """Return a count with its noun."""
    return f"{count} {one if count == 1 else many}"


def verb(facts: Facts, one: str, many: str) -> str:
    """Return the form of a verb that goes with the names."""
    return many if len(facts.names) > 1 else one
