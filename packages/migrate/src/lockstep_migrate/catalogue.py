"""The effect of each rule in words, for `lockstep migrate rules` and reports."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources

from lockstep_migrate.advice.words import all_words
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.torch.table import Action, Entry, table_of


@dataclass(frozen=True, slots=True)
class RuleWords:
    """A rule and what it does."""

    rule: str
    words: str


class Catalogue:
    """All rules that hold for one target.

    target: The device that scripts are written for.
    """

    def __init__(self, target: MigrationTarget) -> None:
        names = {entry.rule: _words(entry) for entry in table_of(target).entries}
        self._words = {**rule_words(), **dict(sorted(names.items()))}

    def __iter__(self) -> Iterator[RuleWords]:
        """Every rule, by topic, the tables of names last."""
        return (RuleWords(rule, words) for rule, words in self._words.items())

    def words(self, rule: str) -> str:
        """What a rule does; for an identifier that is not known, what its topic does, or nothing."""
        while rule:
            if rule in self._words:
                return self._words[rule]
            rule = rule.rpartition("/")[0]
        return ""


@lru_cache(maxsize=1)
def rule_words() -> Mapping[str, str]:
    """What each rule does that no table of names holds: those of `rules.csv`, and those of advice."""
    text = (resources.files(__package__) / "rules.csv").read_text(encoding="utf-8")
    written = {row["rule"]: row["words"] for row in csv.DictReader(text.splitlines())}
    advice = {rule: words.summary for rule, words in all_words().items()}
    return dict(sorted({**written, **advice}.items()))


def _words(entry: Entry) -> str:
    verb = {
        Action.RENAME: f"becomes {entry.becomes}",
        Action.DIFFERS: f"becomes {entry.becomes}, which does not mean the same",
        Action.SIMILAR: f"becomes {entry.becomes} with --similar, which is a risk",
        Action.LIST: f"is listed; instead: {entry.becomes}" if entry.becomes else "is listed",
        Action.KEEP: "is kept",
        Action.ALIAS: f"is the same as {entry.becomes}",
    }[entry.action]
    return f"{entry.name} {verb}: {entry.reason}" if entry.reason else f"{entry.name} {verb}"
