"""A script's own ladder of devices: `cuda` if it is there, else `mps`, else `cpu`; and its flags such as `--no-mps`.

A question for CUDA that becomes one for any accelerator would answer for the lower rungs too, and take their choice.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lockstep.wings.migrate.plan import Edit
from lockstep.wings.migrate.torch.unit import Unit

_ASKING = re.compile(
    r"torch\.(?:backends\.)?(mps|xpu|npu|hpu)\.(?:is_available|is_built)\Z"
    r"|(?:.*\.)?is_(?:torch_)?(mps|xpu|npu|hpu)_available\Z"
)
_CUDA = "torch.cuda.is_available"
_RULE = "names/ladder"


def find_ladders(unit: Unit) -> None:
    """Claim each question for CUDA that stands in one ladder with a question for another device."""
    scopes = unit.scopes
    asked: dict[ast.AST, str] = {
        node: device
        for node in scopes.of(ast.Attribute, ast.Name)
        if (device := _device_asked(scopes.name(node) or getattr(node, "id", "")))
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
    return (match[1] or match[2]) if match else ""


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
    scopes = unit.scopes
    names = [node]
    statement = scopes.statement(node)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        names += [
            read
            for binding in scopes.bindings(statement.targets[0].id, scopes.scope(node))
            for read in scopes.uses(binding)
        ]
    variables = {
        target.id: device
        for question, device in asked.items()
        if isinstance(given := scopes.statement(question), ast.Assign)
        for target in given.targets
        if isinstance(target, ast.Name)
    }
    for name in names:
        for rung in _rungs(unit, name):
            for inner in ast.walk(rung):
                if inner in asked:
                    yield asked[inner]
                elif isinstance(inner, ast.Name) and inner.id in variables:
                    yield variables[inner.id]


def _rungs(unit: Unit, node: ast.AST) -> Iterator[ast.AST]:
    """The other rungs of the ladder that a question is part of: its branches, and statements around one that leaves."""
    below: ast.AST = node
    for above in unit.scopes.ancestors(node):
        if isinstance(above, ast.IfExp):
            yield from (part for part in (above.test, above.orelse) if part is not below)
        elif isinstance(above, ast.If) and above.test is below:
            yield from above.orelse
            yield from _beside(unit, above)
        if isinstance(above, ast.stmt):
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
    given = _assigned(rung)
    for other in block:  # one after the other gives the same variable a device
        if other is not rung and isinstance(other, ast.If) and given & _assigned(other):
            yield other.test


def _assigned(statement: ast.If) -> set[str]:
    """The variables that the body of an `if` assigns."""
    targets = (
        target for one in statement.body if isinstance(one, ast.Assign) for target in one.targets
    )
    return {target.id for target in targets if isinstance(target, ast.Name)}


def _leaves(statement: ast.AST) -> bool:
    return isinstance(statement, ast.If) and isinstance(statement.body[-1], ast.Return)
