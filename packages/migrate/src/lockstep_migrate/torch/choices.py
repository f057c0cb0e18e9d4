"""Choices of other libraries that only CUDA has, which names none: `attn_implementation="flash_attention_2"`."""

from __future__ import annotations

import ast
import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

from lockstep_migrate.engine.arguments import is_constant
from lockstep_migrate.torch.unit import Unit

_RULE = "libraries/choice"


@dataclass(frozen=True, slots=True)
class _Choice:
    pattern: re.Pattern[str]
    reason: str
    instead: str
    only: str
    """The targets that lack it; empty for all."""

    def fits(self, unit: Unit, value: str) -> bool:
        """Whether a value is this choice, and the target lacks it."""
        lacking = not self.only or unit.target.name in self.only.split()
        return lacking and self.pattern.fullmatch(value) is not None


def find_choices(unit: Unit) -> None:
    """Claim the choices."""
    for text in unit.scopes.of(ast.Constant):
        value = text.value if isinstance(text.value, str) else ""
        for choice in _choices("text") if value else ():
            if choice.fits(unit, value):
                unit.list(text, _RULE, choice.reason, choice.instead)
    for item in unit.scopes.of(ast.keyword):
        for choice in _choices("value") if isinstance(item.value, ast.Constant) else ():
            if choice.fits(unit, str(item.value.value)):  # type: ignore[attr-defined]
                unit.list(item.value, _RULE, choice.reason, choice.instead)
        for choice in _choices("keyword") if is_constant(item.value, True) else ():
            if choice.fits(unit, item.arg or ""):
                unit.list(item, _RULE, choice.reason, choice.instead)
    for name in unit.scopes.references():
        for choice in _choices("name"):
            if choice.fits(unit, unit.scopes.name(name)):
                unit.list(name, _RULE, choice.reason, choice.instead)
    for method in unit.scopes.of(ast.Attribute):
        for choice in _choices("method"):
            if choice.fits(unit, method.attr):
                unit.list(method, _RULE, choice.reason, choice.instead)
    for pairs in unit.scopes.of(ast.Dict):
        for key, setting in zip(pairs.keys, pairs.values, strict=True):
            for choice in _choices("keyword") if key and is_constant(setting, True) else ():
                if key and choice.fits(unit, str(getattr(key, "value", ""))):
                    unit.list(key, _RULE, choice.reason, choice.instead)


@functools.cache
def _choices(kind: str) -> tuple[_Choice, ...]:
    text = (resources.files(__package__) / "choices.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(
        _Choice(re.compile(row["pattern"]), row["reason"], row["instead"], row["only"])
        for row in rows
        if row["kind"] == kind
    )
