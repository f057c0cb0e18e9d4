"""Patterns of --only, --skip and --emulate that nothing matches: told as soon as one recorded step has ended."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class UnmatchedNote:
    """The note of one rank about its first recorded step.

    step: Which step that is.
    ranks: How many ranks are recorded: a pattern that another of them matches is none to be told.
    patterns: Those that matched nothing, with the nearest names.
    """

    step: int
    ranks: int
    patterns: dict[str, list[str]]

    def as_text(self) -> str:
        """On one line."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_text(cls, text: str) -> UnmatchedNote:
        """As `as_text` wrote it."""
        return cls(**json.loads(text))


def unmatched_by_all(notes: Iterable[UnmatchedNote]) -> Iterator[tuple[str, str]]:
    """Patterns that no rank has matched once all of them have ended a step, each with a sentence."""
    given = list(notes)
    for note in given:
        for pattern, near in note.patterns.items():
            if sum(pattern in other.patterns for other in given) >= note.ranks:
                yield pattern, unmatched_sentence(pattern, near, f"step {note.step}")


def unmatched_sentence(pattern: str, near: list[str], where: str) -> str:
    """Return the sentence for a pattern that matched nothing, with the nearest names."""
    hint = f"; nearest: {', '.join(near)}" if near else ""
    return f"pattern {pattern!r} matches no module and no operator of {where}{hint}"
