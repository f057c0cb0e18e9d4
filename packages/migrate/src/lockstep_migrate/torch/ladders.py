"""A script's own ladder of devices: `cuda` if it is there, else `mps`, else `cpu`; and its flags such as `--no-mps`.

Its rungs may stand in several functions: a name such as `use_mps` or `mps_available` asks for the device, too.

A question for CUDA that becomes one for any accelerator would answer for the lower rungs too, and take their choice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lockstep.plugin import accelerators
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.unit import Unit

_OTHERS = "|".join(one.name for one in accelerators() if one.name not in ("cuda", "xla"))
_ASKING = re.compile(
    rf"torch\.(?:backends\.)?({_OTHERS})\.(?:is_available|is_built)\Z"
    rf"|(?:.*\.)?(?:has|is|no|use|with)_(?:torch_)?({_OTHERS})(?:_available)?\Z"
    rf"|(?:.*\.)?({_OTHERS})_(?:is_)?available\Z"
)
_CUDA = "torch.cuda.is_available"
_RULE = "names/ladder"


def find_ladders(unit: Unit) -> None:
    """Claim each question for CUDA that stands in one ladder with a question for another device."""
    scopes = unit.scopes
    asked: dict[ast.AST, str] = {
        node: device
        for node in scopes.of(ast.Attribute, ast.Name)
        if (device := _device_asked(scopes.name(node) or _last(node)))
    }
    if not asked:
        return
    for node in scopes.of(ast.Attribute, ast.Name):
        if scopes.name(node) == _CUDA and not unit.is_claimed(node):
            others = sorted(set(_others(unit, node, asked)))
            if others:
                _claim(unit, node, others)


def _device_asked(name: str) -> str:
    match = _ASKING.match(name)
    return next(filter(None, match.groups())) if match else ""


def _claim(unit: Unit, node: ast.AST, others: list[str]) -> None:
    target, call = unit.target, unit.scopes.call_of(node)
    if target.device and target.device not in others:
        return  # a rung of its own
    if target.device:
        unit.keep(node, _RULE, "the script chooses the target's device itself")
    elif call is None:
        unit.list(node, _RULE, "is asked beside another device, and passed on as a value")
    else:
        names = ", ".join(f'"{device}"' for device in others)
        kind, there = unit.fill("{type}"), unit.fill("torch.accelerator.is_available()")
        text = f"({there} and {kind} not in ({names},))"
        reason = "any accelerator but those that the script chooses itself"
        unit.rewrite(node, _RULE, reason, [Edit(unit.scopes.span(call), text)])


def _others(unit: Unit, node: ast.AST, asked: dict[ast.AST, str]) -> Iterator[str]:
    """The devices that the rest of the ladder asks for."""
    names = _holders(unit, asked)
    for place in _places(unit, node):
        for rung in _rungs(unit, place):
            for inner in ast.walk(rung):
                if inner in asked:
                    yield asked[inner]
                elif _last(inner) in names:
                    yield names[_last(inner)]


def _last(node: ast.AST) -> str:
    """The last name of a chain; empty for anything else."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


def _holders(unit: Unit, asked: dict[ast.AST, str]) -> dict[str, str]:
    """What variables, attributes and functions of the module are called that hold the answer about a device."""
    return {
        name: device for question, device in asked.items() for name in _given_to(unit, question)
    }


def _given_to(unit: Unit, question: ast.AST) -> list[str]:
    """The names that the answer goes to, unless it only chooses among others: a variable, a function's result."""
    statement = unit.scopes.statement(question)
    if any(isinstance(above, ast.IfExp) for above in unit.scopes.ancestors(question)):
        return []
    if isinstance(statement, ast.Return):
        function = unit.scopes.scope(question).node
        return [function.name] if isinstance(function, ast.FunctionDef) else []
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [_last(target) for target in targets if isinstance(target, ast.Name | ast.Attribute)]


def _places(unit: Unit, node: ast.AST) -> Iterator[ast.AST]:
    """Where a question is asked: itself, and each use of what holds its answer."""
    yield node
    names = _given_to(unit, node)
    for use in unit.scopes.of(ast.Name, ast.Attribute) if names else ():
        if _last(use) in names and isinstance(getattr(use, "ctx", None), ast.Load):
            yield use


def _rungs(unit: Unit, node: ast.AST) -> Iterator[ast.AST]:
    """The other rungs of the ladder that a question is part of.

    Its branches, statements around one that leaves, and what else is handed over or listed together with its answer.
    """
    below: ast.AST = node
    for above in unit.scopes.ancestors(node):
        if isinstance(above, ast.IfExp):
            yield from (part for part in (above.test, above.orelse) if part is not below)
        elif isinstance(above, ast.If) and above.test is below:
            yield from above.orelse
            yield from _beside(unit, above)
        elif isinstance(above, ast.Tuple | ast.List | ast.Dict | ast.Call | ast.keyword):
            yield from (part for part in ast.iter_child_nodes(above) if part is not below)
        if isinstance(above, ast.stmt):
            yield from _given_again(unit, above)
            return
        below = above


def _beside(unit: Unit, rung: ast.If) -> Iterator[ast.AST]:
    """The `if` that a rung is an `elif` of, and where it returns, the statements of its block that return too."""
    above = unit.scopes.parents[rung]
    while isinstance(above, ast.If) and rung in above.orelse:
        yield above.test
        rung, above = above, unit.scopes.parents[above]
    block = getattr(above, "body", [])
    for other in block if _leaves(rung) else ():
        if other is not rung and (_leaves(other) or isinstance(other, ast.Return)):
            yield other


def _given_again(unit: Unit, statement: ast.stmt) -> Iterator[ast.AST]:
    """The tests of a block that one after the other give the same variable a device."""
    given = _assigned(statement)
    block = getattr(unit.scopes.parents[statement], "body", [])
    for other in block if given and isinstance(block, list) else ():
        if other is not statement and isinstance(other, ast.If) and given & _assigned(other):
            yield other.test


def _assigned(statement: ast.stmt) -> set[str]:
    """The variables that a statement, or the body of an `if`, assigns."""
    body = statement.body if isinstance(statement, ast.If) else [statement]
    targets = (target for one in body if isinstance(one, ast.Assign) for target in one.targets)
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _leaves(statement: ast.AST) -> bool:
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return)
