"""What each rule does, in words: for `lockstep migrate rules`, and for the help of reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.wings.migrate import advice, distributed, tensorflow
from lockstep.wings.migrate.files import config, framework, native, notebook, shell
from lockstep.wings.migrate.hookspecs import MigrationTarget
from lockstep.wings.migrate.torch import (
    kernels,
    keywords,
    leftovers,
    methods,
    profiler,
    strings,
    user_rules,
    visible_device,
)
from lockstep.wings.migrate.torch.table import Action, Entry, table_of

_TOPICS = (
    kernels.RULES,
    keywords.RULES,
    leftovers.RULES,
    methods.RULES,
    profiler.RULES,
    strings.RULES,
    user_rules.RULES,
    shell.RULES,
    notebook.RULES,
    config.RULES,
    native.RULES,
    tensorflow.RULES,
    advice.RULES,
    distributed.RULES,
    visible_device.RULES,
    framework.RULES,
)


@dataclass(frozen=True, slots=True)
class RuleWords:
    """A rule and what it does."""

    rule: str
    words: str


class Catalogue:
    """All rules that hold for one target.

    Parameters
    ----------
    target
        The device that scripts are written for.
    """

    def __init__(self, target: MigrationTarget) -> None:
        topics = {rule: words for topic in _TOPICS for rule, words in topic.items()}
        names = {entry.rule: _words(entry) for entry in table_of(target).entries}
        self._words = {**dict(sorted(topics.items())), **dict(sorted(names.items()))}

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


def _words(entry: Entry) -> str:
    verb = {
        Action.RENAME: f"becomes {entry.becomes}",
        Action.SIMILAR: f"becomes {entry.becomes} with --similar, which is a risk",
        Action.LIST: f"is listed; instead: {entry.becomes}" if entry.becomes else "is listed",
        Action.KEEP: "is kept",
        Action.ALIAS: f"is the same as {entry.becomes}",
    }[entry.action]
    return f"{entry.name} {verb}: {entry.reason}" if entry.reason else f"{entry.name} {verb}"
