"""The words of each piece of advice: targets, reason, source, and how equal its form is."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

_ANY = "*"


@dataclass(frozen=True, slots=True)
class Words:
    """One piece of advice.

    rule: Its identifier, such as `advice/drop-last`.
    targets: Names of the targets that it holds for; `*` for all.
    written: Those of them for which `--advice-apply` writes it; `*` for all.
    summary: What it is about, in a line.
    why: Why the other form is faster.
    source: Who says so.
    equality: How equal the other form is, and what it changes.
    """

    rule: str
    targets: tuple[str, ...]
    written: tuple[str, ...]
    summary: str
    why: str
    source: str
    equality: str

    def holds_for(self, target: str) -> bool:
        """Whether the advice is given for a target."""
        return _ANY in self.targets or target in self.targets

    def is_written_for(self, target: str) -> bool:
        """Whether `--advice-apply` writes it for a target."""
        return _ANY in self.written or target in self.written

    @property
    def reason(self) -> str:
        """All of it in one sentence."""
        return f"{self.why} ({self.source}); {self.equality}"


def read_table(name: str) -> list[list[str]]:
    """The rows of a table of this wing, without its comments."""
    text = (resources.files(__package__) / name).read_text(encoding="utf-8")
    return list(csv.reader(line for line in text.splitlines() if not line.startswith("#")))


@lru_cache(maxsize=1)
def all_words() -> Mapping[str, Words]:
    """Every piece of advice by its identifier."""
    return {
        rule: Words(rule, tuple(targets.split(";")), tuple(written.split(";")), *words)
        for rule, targets, written, *words in read_table("advice.csv")
    }
