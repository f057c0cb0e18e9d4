"""Choices of other libraries that only CUDA has, and that do not name it: `attn_implementation="flash_attention_2"`."""

from __future__ import annotations

import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

from lockstep_migrate.hookspecs import MigrationTarget

_ALTERNATIVE = re.compile(r"(?:\([^()]*\)|[^()|])+")
_PATH = re.compile(r"(?:\w+\\\.)+")
"""The beginning of a pattern for a dotted name: all but the last name."""


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


def may_choose(text: str) -> bool:
    """Whether a text may hold one of the choices: those name no device, so nothing else leads to them."""
    return any(package in text and rest.search(text) for package, rest in _hints())


@functools.cache
def _hints() -> tuple[tuple[str, re.Pattern[str]], ...]:
    """Of each row the package that its dotted name begins with, empty for other rows, and the rest of its pattern."""
    found: dict[tuple[str, str], None] = {}
    for kind in ("text", "value", "keyword", "method", "name", "default"):
        for pattern in (choice.pattern.pattern for choice in choices(kind)):
            dotted = kind in ("name", "default")
            for part in _ALTERNATIVE.findall(pattern) if dotted else [pattern]:
                package = part.partition("\\.")[0] if dotted else ""
                found[package, _PATH.sub("", part) if dotted else part] = None
    return tuple((package, re.compile(rf"(?<!\w)(?:{rest})(?!\w)")) for package, rest in found)


def chosen(target: MigrationTarget, key: str, value: str) -> Choice | None:
    """The row that a setting `key: value` of a file meets."""
    found = [one for kind in ("text", "value") for one in choices(kind) if one.fits(target, value)]
    if value.lower() in ("true", "yes", "on"):
        found += [one for one in choices("keyword") if one.fits(target, key)]
    return found[0] if found else None
