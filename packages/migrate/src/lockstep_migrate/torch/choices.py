"""Choices of other libraries that only CUDA has, which names none: `attn_implementation="flash_attention_2"`."""

from __future__ import annotations

import ast
import csv
import functools
import re
from dataclasses import dataclass
from importlib import resources

from lockstep_migrate.engine.arguments import is_constant, keyword
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.libraries import libraries
from lockstep_migrate.torch.unit import Unit

_RULE = "libraries/choice"
_GPU = "Lightning's word for CUDA and for Apple's GPU"


@dataclass(frozen=True, slots=True)
class _Choice:
    pattern: re.Pattern[str]
    reason: str
    instead: str


def find_choices(unit: Unit) -> None:
    """Claim the choices, and what Lightning is told of its accelerator."""
    for text in unit.scopes.of(ast.Constant):
        value = text.value if isinstance(text.value, str) else ""
        for choice in _choices("text") if value else ():
            if choice.pattern.fullmatch(value):
                unit.list(text, _RULE, choice.reason, choice.instead)
    for item in unit.scopes.of(ast.keyword):
        for choice in _choices("keyword") if is_constant(item.value, True) else ():
            if choice.pattern.fullmatch(item.arg or ""):
                unit.list(item, _RULE, choice.reason, choice.instead)
    for pairs in unit.scopes.of(ast.Dict):
        for key, setting in zip(pairs.keys, pairs.values, strict=True):
            for choice in _choices("keyword") if key and is_constant(setting, True) else ():
                if key and choice.pattern.fullmatch(str(getattr(key, "value", ""))):
                    unit.list(key, _RULE, choice.reason, choice.instead)
    for call in unit.scopes.of(ast.Call):
        given = keyword(call, "accelerator")
        if (
            given is not None
            and isinstance(given.value, ast.Constant)
            and given.value.value == "gpu"
        ):
            _claim_lightning(unit, call, given.value)


def _claim_lightning(unit: Unit, call: ast.Call, given: ast.Constant) -> None:
    """`Trainer(accelerator="gpu")`."""
    library = next((m.name for m in unit.scopes.meanings(call.func) if m.name in libraries()), "")
    if not library:
        return
    word, pieces = unit.target.libraries.get(library, ""), unit.scopes.pieces(given)
    if word and len(pieces) == 1:
        unit.rewrite(given, _RULE, f"{_GPU}: the device's own word", [Edit(pieces[0].body, word)])
    else:
        unit.list(given, _RULE, libraries()[library])


@functools.cache
def _choices(kind: str) -> tuple[_Choice, ...]:
    text = (resources.files(__package__) / "choices.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return tuple(
        _Choice(re.compile(row["pattern"]), row["reason"], row["instead"])
        for row in rows
        if row["kind"] == kind
    )
