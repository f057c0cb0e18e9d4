"""Devices that are given as bare numbers: `x.to(0)`, `torch.zeros(2, device=rank)`, `torch.device(local_rank)`.

Before torch 2.6 such a number is CUDA's; since then it is that of the accelerator that torch was built for.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lockstep_migrate.engine.arguments import (
    argument_end,
    argument_start,
    called,
    insertion,
    keyword,
    wrapped,
)
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import assigned_to
from lockstep_migrate.engine.tree import is_own_attribute
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.early import device_function
from lockstep_migrate.torch.unit import SCRIPTED, Unit
from lockstep_migrate.torch.vocabulary import WORDS

_TELLING = re.compile(
    r"(?:.*_)?(?:rank|gpus?|(?:gpu|device|dev|cuda)_?(?:ids?|idx|index|num|no))\Z", re.IGNORECASE
)
"""Names that hold the number of a device in public scripts; what they hold cannot be told from the name alone."""
_GIVING = frozenset({"int", "get_rank", "current_device", "get_device", "device_count", "getpid"})
_MAKERS = re.compile(r"new_\w+|(?:to|set_default_device)\Z")
_RULE = "devices/number"
_REASON = "a bare number is CUDA's before torch 2.6, and the accelerator's since"


def find_integers(unit: Unit) -> None:
    """Claim every bare number that stands where a device does."""
    for call in unit.scopes.of(ast.Call):
        for given in _devices(unit, call):
            known = is_number(unit.scopes, given)
            if not unit.is_claimed(given) and (known or _TELLING.match(_last_name(given))):
                _claim(unit, call, given, known=known)


def is_number(scopes: ModuleScopes, node: ast.AST | None, depth: int = 4) -> bool:
    """Whether an expression is a whole number for all that can be told from the module."""
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Call):
        method = isinstance(node.func, ast.Attribute) and not node.args  # tensor.get_device()
        return called(node) in _GIVING and (method or called(node) != "get_device")
    if isinstance(node, ast.BinOp):
        sides = (node.left, node.right)
        text = isinstance(getattr(node.left, "value", None), str)
        return (
            not text
            and isinstance(node.op, ast.Mod | ast.Add | ast.Sub | ast.FloorDiv)
            and any(is_number(scopes, side, depth - 1) for side in sides)
        )
    if node is not None and is_own_attribute(node):
        given = assigned_to(scopes, node)
        return bool(given and depth) and all(is_number(scopes, one, depth - 1) for one in given)
    if isinstance(node, ast.Attribute):
        return any(_is_int_flag(call, node.attr) for call in scopes.of(ast.Call))
    if not isinstance(node, ast.Name) or not depth:
        return False
    bindings = scopes.bindings(node.id, scopes.scope(node))
    return bool(bindings) and all(
        is_number(scopes, binding.value, depth - 1)
        or _counts(scopes, binding.node)
        or getattr(getattr(binding.node, "annotation", None), "id", "") == "int"
        for binding in bindings
    )


def _is_int_flag(call: ast.Call, name: str) -> bool:
    """Whether a call declares `--name` as a number on the command line."""
    kind = keyword(call, "type")
    flags = [getattr(given, "value", None) for given in call.args]
    return (
        called(call) == "add_argument"
        and kind is not None
        and getattr(kind.value, "id", "") == "int"
        and any(str(flag).lstrip("-").replace("-", "_") == name for flag in flags)
    )


def _counts(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a name is the variable of a loop over a range."""
    loop = scopes.parents.get(node)
    return (
        isinstance(loop, ast.For | ast.comprehension)
        and loop.target is node
        and isinstance(loop.iter, ast.Call)
        and called(loop.iter) == "range"
    )


def _devices(unit: Unit, call: ast.Call) -> Iterator[ast.expr]:
    """What a call takes for a device."""
    name, last = unit.scopes.name(call.func), called(call)
    is_torch = name.startswith("torch.")
    first = last in ("to", "set_default_device") or name == "torch.device"
    if call.args and first and (is_torch or not name) and len(call.args) < 3:
        yield from _branches(unit, call.args[0])
    words = ("device", "map_location") if is_torch else ("device",)
    if is_torch or (isinstance(call.func, ast.Attribute) and _MAKERS.match(last)):
        given = [item.value for word in words if (item := keyword(call, word))]
        given += _unpacked(unit.scopes, call)
        yield from (branch for value in given for branch in _branches(unit, value))


def _branches(unit: Unit, given: ast.expr) -> Iterator[ast.expr]:
    """What a device may be: the parts of `0 if there else "cpu"`, also where a variable holds it."""
    if isinstance(given, ast.IfExp):
        yield from (given.body, given.orelse)
        return
    yield given
    if isinstance(given, ast.Name):
        for binding in unit.scopes.bindings(given.id, unit.scopes.scope(given)):
            value = binding.value
            sides = [value.body, value.orelse] if isinstance(value, ast.IfExp) else []
            if any(_is_device(unit.scopes, side) for side in sides):
                yield from (side for side in sides if is_number(unit.scopes, side))


def _is_device(scopes: ModuleScopes, node: ast.expr) -> bool:
    """Whether an expression is a device as it stands: `"cpu"`, `torch.device("cpu")`."""
    made = isinstance(node, ast.Call) and scopes.name(node.func) == "torch.device"
    return made or isinstance(getattr(node, "value", None), str)


def _unpacked(scopes: ModuleScopes, call: ast.Call) -> Iterator[ast.expr]:
    """The device in a dictionary that a call takes its keywords from: `torch.ones(2, **{"device": 0})`."""
    for item in call.keywords:
        given: list[ast.expr | None] = [item.value] if item.arg is None else []
        if given and isinstance(item.value, ast.Name):
            found = scopes.bindings(item.value.id, scopes.scope(item.value))
            given = [binding.value for binding in found]
        for one in given:
            if (
                isinstance(one, ast.Call)
                and called(one) == "dict"
                and (named := keyword(one, "device"))
            ):
                yield named.value
            elif isinstance(one, ast.Dict):
                pairs = zip(one.keys, one.values, strict=True)
                yield from (v for k, v in pairs if getattr(k, "value", None) == "device")


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Subscript) and is_index(node.slice):
        node = node.value
    return getattr(node, "attr", "") or getattr(node, "id", "")


def is_index(node: ast.AST) -> bool:
    """Whether an expression is a whole number as it stands."""
    return isinstance(node, ast.Constant) and type(node.value) is int


def _claim(unit: Unit, call: ast.Call, given: ast.expr, *, known: bool) -> None:
    scopes, device = unit.scopes, unit.target.device
    span = scopes.span(given)
    if given in call.args:
        span = Span(argument_start(scopes, call, given), argument_end(scopes, call, given))
    text = scopes.source.text[span.start : span.end]
    if not device and unit.is_scripted(given):
        unit.list(given, _RULE, SCRIPTED)
    elif not device and not known and not WORDS.search(scopes.source.text):
        unit.keep(given, _RULE, "a bare number is the accelerator's since torch 2.6")
    elif not device:
        edits = wrapped(span, device_function(unit, given))
        unit.rewrite(given, _RULE, "the device of this number", edits)
    elif unit.target.single:
        current = isinstance(given, ast.Call) and called(given) == "current_device"
        if known and (text == "0" or current):
            unit.rewrite(given, _RULE, "there is one device", [Edit(span, unit.fill("{device}"))])
            unit.settle(ast.walk(given), given)
        else:
            unit.list(given, _RULE, "there is one device, number 0", f'"{device}"')
    elif not known:
        unit.list(given, _RULE, f"{_REASON}, if it is one", f'torch.device("{device}", {text})')
    elif is_index(given):
        unit.header.need_import_for([unit.target.module])
        unit.rewrite(given, _RULE, _REASON, [Edit(span, f'"{device}:{text}"')])
    else:
        made = scopes.name(call.func) == "torch.device"
        head, tail = ("", "") if made else (unit.fill("torch.device("), ")")
        unit.header.need_import_for([unit.target.module])
        edits = [insertion(span.start, f'{head}"{device}", '), insertion(span.end, tail)]
        unit.rewrite(given, _RULE, _REASON, edits)
