"""Advice on training steps that wait for the device: `.item()`, `.cpu()`, a printed loss."""

from __future__ import annotations

import ast

from lockstep.wings.migrate.advice.advisor import Advisor
from lockstep.wings.migrate.advice.loops import TrainingLoop, inside

_READS = frozenset({"item", "tolist", "numpy", "cpu"})
_CONVERSIONS = frozenset({"float", "int", "bool"})


def find_waits(advisor: Advisor) -> None:
    """Advise once a training loop, at the first place that waits in every step."""
    for loop in advisor.training_loops:
        waits = [node for node in inside(loop.node) if _waits(loop, node)]
        if waits:
            waits.sort(key=advisor.scopes.span)
            advisor.suggest(
                "advice/synchronising-read",
                waits[0],
                "keep the tensor, as in total += loss.detach(), and read it where it is shown",
                others=waits,
            )


def _waits(loop: TrainingLoop, node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr in _READS and not node.args and not node.keywords
    if not isinstance(function, ast.Name):
        return False
    if function.id in _CONVERSIONS:
        return len(node.args) == 1 and _is_loss(loop, node.args[0])
    return function.id == "print" and any(_shows(loop, argument) for argument in node.args)


def _shows(loop: TrainingLoop, node: ast.expr) -> bool:
    """Whether printing an expression reads the value of a loss."""
    if isinstance(node, ast.JoinedStr):
        return any(
            isinstance(part, ast.FormattedValue) and _is_loss(loop, part.value)
            for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        right = node.right
        return any(_is_loss(loop, part) for part in getattr(right, "elts", [right]))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr == "format" and any(_is_loss(loop, part) for part in node.args)
    return _is_loss(loop, node)


def _is_loss(loop: TrainingLoop, node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in loop.losses
