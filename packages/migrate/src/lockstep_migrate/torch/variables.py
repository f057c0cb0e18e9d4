"""Environment variables of CUDA and NCCL in Python: `os.environ["CUDA_VISIBLE_DEVICES"] = "0"`.

A variable is renamed where the target has one that reads the same values. What is given or compared decides: `-1`, an
empty text and names of cards (`GPU-...`, `MIG-...`) are CUDA's own, and another device reads them otherwise.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from lockstep_migrate.engine.arguments import argument, called
from lockstep_migrate.files.surroundings import (
    COMPUTED,
    FOREIGN,
    Variable,
    surroundings,
)
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.context import Use, use_of
from lockstep_migrate.torch.integers import is_number
from lockstep_migrate.torch.unit import Unit

VARIABLE = re.compile(
    r"(?:CUDA|NCCL|TORCH_NCCL|CUBLAS|TORCH_CUDA)_\w+\Z|PYTORCH_CUDA_ALLOC_CONF\Z"
    r"|NVIDIA_(?:(?:VISIBLE|DRIVER|DISABLE|REQUIRE)_\w+|TF32_OVERRIDE)\Z"
)
_RULE = "strings/environment"
_SETTING = frozenset({"setdefault", "putenv", "setenv", "pop", "get", "getenv"})


def find_variables(unit: Unit) -> None:
    """Claim every environment variable that is named as a text or as a keyword."""
    for text in unit.scopes.of(ast.Constant):
        if isinstance(text.value, str) and VARIABLE.match(text.value) and not unit.is_claimed(text):
            pieces = unit.scopes.pieces(text)
            place = pieces[0].body if len(pieces) == 1 else unit.scopes.span(text)
            _claim(unit, text, text.value, place, list(_values(unit, text)))
    for item in unit.scopes.of(ast.keyword):
        if item.arg and VARIABLE.match(item.arg):
            start = unit.scopes.span(item).start
            place = Span(start, start + len(item.arg))
            _claim(unit, item, item.arg, place, [item.value])


def _values(unit: Unit, node: ast.expr, steps: int = 2) -> Iterator[ast.expr]:
    """What the variable is given, or its value compared with; through a name that holds the variable's, too."""
    parent = unit.scopes.parents[node]
    if isinstance(parent, ast.Dict) and node in parent.keys:
        yield parent.values[parent.keys.index(node)]
    elif isinstance(parent, ast.Tuple) and parent.elts[0] is node:
        yield from parent.elts[1:]
    elif isinstance(parent, ast.Call) and called(parent) in _SETTING:
        given = argument(parent, "value", 1)
        yield from [given] if given is not None else []
        yield from _compared(unit, parent)
    elif isinstance(parent, ast.Subscript):
        above = unit.scopes.parents[parent]
        if isinstance(above, ast.Assign) and parent in above.targets:
            yield above.value
        yield from _compared(unit, parent)
    elif isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name) and steps:
        for binding in unit.scopes.bindings(parent.targets[0].id, unit.scopes.scope(node)):
            for use in unit.scopes.uses(binding):
                yield from _values(unit, use, steps - 1)


def _compared(unit: Unit, node: ast.AST) -> Iterator[ast.expr]:
    parent = unit.scopes.parents[node]
    if isinstance(parent, ast.Compare):
        yield from (side for side in (parent.left, *parent.comparators) if side is not node)
    elif isinstance(parent, ast.Match):
        patterns = (inner for case in parent.cases for inner in ast.walk(case.pattern))
        yield from (inner.value for inner in patterns if isinstance(inner, ast.MatchValue))
    elif isinstance(parent, ast.Attribute) and parent.attr in ("startswith", "endswith"):
        call = unit.scopes.call_of(parent)
        yield from call.args if call else []


def _parts(unit: Unit, value: ast.expr, steps: int = 3) -> Iterator[ast.expr]:
    """What a value may be: both sides of a choice, what a variable holds, a default."""
    inner: Iterable[ast.expr | None] = ()
    if isinstance(value, ast.IfExp):
        inner = (value.body, value.orelse)
    elif isinstance(value, ast.BoolOp | ast.Tuple | ast.List | ast.Set):
        inner = value.values if isinstance(value, ast.BoolOp) else value.elts
    elif isinstance(value, ast.Name):
        found = unit.scopes.bindings(value.id, unit.scopes.scope(value))
        inner = [binding.value for binding in found]
    elif isinstance(value, ast.Call):
        inner = (
            value.args[1:] if called(value) in _SETTING else value.args * (called(value) == "str")
        )
    yield value
    for one in inner if steps else ():
        if one is not None:
            yield from _parts(unit, one, steps - 1)


def _claim(unit: Unit, node: ast.AST, name: str, place: Span, values: list[ast.expr]) -> None:
    new = unit.target.environment.get(name, "")
    known = surroundings().variable(name, unit.target)
    if isinstance(node, ast.Constant) and use_of(unit.scopes, node) is Use.TEXT:
        unit.keep(node, "strings/text", Use.TEXT.value)
    elif not new:
        about = f"the variable {known.about}" if known else "is read by CUDA's libraries"
        replacement = known.replacement(unit.target) if known else ""
        plain = [
            isinstance(one, ast.Constant) and not (known and _is_foreign(one, known))
            for one in values
        ]
        if replacement.startswith("remove") and values and all(plain):
            told = replacement.partition(": ")[2] or "nothing reads it"
            unit.keep(node, _RULE, f"needs nothing there: {told}")
        else:
            unit.list(node, _RULE, about, replacement=replacement)
    elif known and any(
        _is_foreign(part, known) for value in values for part in _parts(unit, value)
    ):
        unit.list(node, _RULE, FOREIGN.format(new=new))
    else:
        computed = [
            value
            for value in values
            if not isinstance(value, ast.Constant) and not _is_numbers(unit, value)
        ]
        differs = bool(computed) and bool(known and known.values)
        reason = COMPUTED.format(new=new) if differs else "the target's own name"
        unit.header.need_import_for([unit.target.module])
        unit.rewrite(node, _RULE, reason, [Edit(place, new)], differs=differs)


def _is_foreign(value: ast.expr, variable: Variable) -> bool:
    """Whether a text, or a negative number, is one that the target's variable reads otherwise."""
    text = getattr(value, "value", None)
    negative = isinstance(value, ast.UnaryOp) and bool(variable.values)
    return negative or (isinstance(text, str) and variable.is_foreign(text))


def _is_numbers(unit: Unit, value: ast.expr) -> bool:
    """Whether a value is made of numbers: `str(rank)`, `f"{rank}"`, `",".join(map(str, ranks))`."""
    if isinstance(value, ast.Call) and called(value) == "str" and value.args:
        return is_number(unit.scopes, value.args[0])
    if isinstance(value, ast.JoinedStr):
        fields = [part.value for part in value.values if isinstance(part, ast.FormattedValue)]
        return all(is_number(unit.scopes, one) for one in fields)
    return False
