"""Choices of other libraries that only CUDA has, and that do not name it: `attn_implementation="flash_attention_2"`."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

from lockstep_migrate.hookspecs import MigrationTarget


@dataclass(frozen=True, slots=True)
class Choice:
    """A row of `choices.csv`."""

    pattern: re.Pattern[str]
    reason: str
    instead: str
    only: str
    """The targets that lack it; empty for all."""

    def fits(self, target: MigrationTarget, value: str) -> bool:
        """Whether a value is this choice, and the target lacks it."""
        lacking = not self.only or target.name in self.only.split()
        return lacking and self.pattern.fullmatch(value) is not None


@functools.cache
def choices(kind: str) -> tuple[Choice, ...]:
    """The rows of a kind: a `text` or `value` that is chosen, a `keyword` that is true, a `name`, a `method`.

    `default` is a function that takes CUDA unless its call says which device.
    """
    text = (resources.files(__package__) / "choices.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(
        Choice(re.compile(row["pattern"]), row["reason"], row["instead"], row["only"])
        for row in rows
        if row["kind"] == kind
    )


def chosen(target: MigrationTarget, key: str, value: str) -> Choice | None:
    """The row that a setting `key: value` of a file meets."""
    found = [one for kind in ("text", "value") for one in choices(kind) if one.fits(target, value)]
    if value.lower() in ("true", "yes", "on"):
        found += [one for one in choices("keyword") if one.fits(target, key)]
    return found[0] if found else None
