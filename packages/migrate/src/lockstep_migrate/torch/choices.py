"""Choices of other libraries that only CUDA has, which names none: `attn_implementation="flash_attention_2"`."""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.arguments import is_constant
from lockstep_migrate.files.choices import choices
from lockstep_migrate.torch.unit import Unit

_SAYS_WHICH = re.compile(r"device|cuda|gpu|accelerator|\*\*")
"""What the arguments of a call have in them that choose its device, or may do so."""


def find_choices(unit: Unit) -> None:
    """Claim the choices."""
    for text in unit.scopes.of(ast.Constant):
        if isinstance(text.value, str) and text.value:
            _choose(unit, "text", text, text.value)
    for item in unit.scopes.of(ast.keyword):
        if isinstance(item.value, ast.Constant):
            _choose(unit, "value", item.value, str(item.value.value))
        if getattr(item.value, "value", True) not in (False, None):  # a variable may be true
            _choose(unit, "keyword", item, item.arg or "")
    for field in unit.scopes.of(ast.AnnAssign):
        if field.value is not None and is_constant(field.value, True):
            _choose(unit, "keyword", field.target, getattr(field.target, "id", ""))
    for name in unit.scopes.references():
        if isinstance(name.ctx, ast.Load):
            _choose(unit, "name", name, unit.scopes.name(name))
    for method in unit.scopes.of(ast.Attribute):
        _choose(unit, "method", method, method.attr)
    for call in unit.scopes.of(ast.Call):
        if not _SAYS_WHICH.search(unit.text(call)[len(unit.text(call.func)) :]):
            _choose(unit, "default", call.func, unit.scopes.name(call.func))
    for pairs in unit.scopes.of(ast.Dict):
        for key, setting in zip(pairs.keys, pairs.values, strict=True):
            if key and is_constant(setting, True):
                _choose(unit, "keyword", key, str(getattr(key, "value", "")))


def _choose(unit: Unit, kind: str, node: ast.AST, value: str) -> None:
    for choice in choices(kind):
        if choice.fits(unit.target, value):
            unit.list(node, "libraries/choice", choice.reason, choice.instead)
