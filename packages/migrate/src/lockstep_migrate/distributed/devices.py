"""Devices that the main script chooses by number: each process has to take its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from lockstep.plugin import accelerators
from lockstep_migrate.engine.arguments import called, given_device
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.context import Use, use_of
from lockstep_migrate.torch.early import device_function
from lockstep_migrate.torch.unit import Unit

_RULE = "distributed/device"
_TAKING_A_NUMBER = ("set_device", "device", "set_device_index", "device_index")
_PLACING = frozenset(one.name for one in accelerators() if one.method)
_DEVICE_OF = re.compile(rf"torch\.(?:{'|'.join(sorted(_PLACING))}|accelerator)\.(?P<name>\w+)\Z")


@dataclass(frozen=True, slots=True)
class _Number:
    """A device's number in the source.

    node: The string or the expression that holds it.
    index: The number; `None` where it is known only as the script runs.
    """

    node: ast.expr
    index: int | None

    @property
    def is_text(self) -> bool:
        """Whether it is part of a string, such as `"cuda:3"`."""
        return isinstance(self.node, ast.JoinedStr) or (
            isinstance(self.node, ast.Constant) and isinstance(self.node.value, str)
        )


def _device_numbers(unit: Unit) -> Iterator[_Number]:
    """Every place of a module that chooses a device by number: `"cuda:3"`, `set_device(3)`, `.cuda(3)`."""
    words = "|".join(filter(None, ("cuda", unit.target.device)))
    pattern = re.compile(rf"(?:{words}):(\d+)\Z")
    for node in unit.scopes.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = pattern.match(node.value)
            if match and not isinstance(unit.scopes.parents[node], ast.JoinedStr):
                yield _Number(node, int(match[1]))
        elif isinstance(node, ast.JoinedStr):
            if re.match(rf"(?:{words}):\{{", _body(unit, node)):
                yield _Number(node, None)
        elif _is_put_together(node, words):
            yield _Number(node, None)
        elif isinstance(node, ast.Call):
            given = _number_argument(unit, node)
            if given is not None:
                yield _Number(given, _value(given))


def _drop_number(unit: Unit, number: _Number, reason: str) -> bool:
    """Take the number out of what names a device, so that it means the current one; whether that is possible."""
    mapping = _mapping(unit, number.node)
    if mapping is not None:
        edits = [Edit(unit.scopes.span(mapping), unit.fill("{device}"))]
    else:
        edits = _without_number(unit, number.node) if number.is_text else []
    if not edits:
        return False
    unit.rewrite(number.node, _RULE, reason, edits, span=unit.scopes.span(mapping or number.node))
    if mapping is not None:
        unit.settle(ast.walk(mapping), number.node)
    return True


def _is_inside_lambda(unit: Unit, number: _Number) -> bool:
    """Whether another rule may put something else in the place of all around a number."""
    return any(isinstance(above, ast.Lambda) for above in unit.scopes.ancestors(number.node))


def _mapping(unit: Unit, node: ast.AST) -> ast.Lambda | None:
    """The `lambda storage, location: storage.cuda(3)` around a number, whose whole is a device."""
    call = unit.scopes.parents[node]
    above = unit.scopes.parents.get(call)
    if not isinstance(above, ast.Lambda) or above.body is not call:
        return None
    holder = unit.scopes.parents[above]
    return above if isinstance(holder, ast.keyword) and holder.arg == "map_location" else None


def _without_number(unit: Unit, node: ast.expr) -> list[Edit]:
    pieces = unit.scopes.pieces(node)
    use = use_of(unit.scopes, node)
    if len(pieces) != 1 or use not in (Use.VALUE, Use.KEY) or unit.is_scripted(node):
        return []
    if not unit.target.device:
        return [Edit(unit.scopes.span(node), f"{device_function(unit, node)}()")]
    unit.header.need_import_for([unit.target.module])
    body = pieces[0].body
    return [Edit(Span(body.start, body.end), unit.target.device)]


def _is_put_together(node: ast.AST, words: str) -> TypeGuard[ast.expr]:
    """Whether an expression makes a device's text: `"cuda:%d" % n`, `"cuda:{}".format(n)`, `"cuda:" + str(n)`."""
    if isinstance(node, ast.BinOp):
        endings = {ast.Mod: r"%(?:\(\w+\))?[dis]", ast.Add: ""}
        start, ending = node.left, endings.get(type(node.op))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        start, ending = node.func.value, r"\{[^{}]*\}" if node.func.attr == "format" else None
    else:
        return False
    if ending is None or not isinstance(start, ast.Constant) or not isinstance(start.value, str):
        return False
    return re.match(rf"(?:{words}):{ending}\Z", start.value) is not None


def _number_argument(unit: Unit, call: ast.Call) -> ast.expr | None:
    match = _DEVICE_OF.match(unit.scopes.name(call.func))
    if match and match["name"] in _TAKING_A_NUMBER:
        given = given_device(call)
    elif unit.scopes.name(call.func) == "torch.device" and len(call.args) == 2:
        given = call.args[1]
    elif isinstance(call.func, ast.Attribute) and call.func.attr in _PLACING and not match:
        given = given_device(call)
    else:
        return None
    is_own = isinstance(given, ast.Constant) and not isinstance(given.value, int)
    return None if is_own or isinstance(given, ast.Starred | ast.JoinedStr) else given


def _value(node: ast.expr) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    return None


def _body(unit: Unit, node: ast.JoinedStr) -> str:
    pieces = unit.scopes.pieces(node)
    return unit.scopes.source.text[pieces[0].body.start : pieces[0].body.end] if pieces else ""


def bind_devices(unit: Unit, local_rank: str) -> None:
    """Let device 0 be the process's own; other numbers are listed.

    A script that is started alone has local rank 0, so that its device stays what it was.
    """
    for number in _device_numbers(unit):
        if unit.is_claimed(number.node) or _is_own(number, local_rank) or _goes(unit, number):
            continue
        if number.index == 0 and _bind(unit, number, local_rank):
            continue
        unit.note(
            number.node,
            _RULE,
            "every process would take this device",
            f"{local_rank}, which is 0 in a script that is started alone",
        )


def _bind(unit: Unit, number: _Number, local_rank: str) -> bool:
    reason = "each process has a device of its own"
    if _drop_number(unit, number, reason):
        return True
    if number.is_text or _is_inside_lambda(unit, number):
        return False
    unit.rewrite(number.node, _RULE, reason, [Edit(unit.scopes.span(number.node), local_rank)])
    return True


def _goes(unit: Unit, number: _Number) -> bool:
    """Whether `.cuda(0)` becomes a device without a number: tensors of the target have no method for it."""
    call = unit.scopes.parents[number.node]
    moves = isinstance(call, ast.Call) and called(call) == "cuda" and number.index == 0
    return moves and bool(unit.target.device) and not unit.target.method


def _is_own(number: _Number, local_rank: str) -> bool:
    return isinstance(number.node, ast.Name) and number.node.id == local_rank
