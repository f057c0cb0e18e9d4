"""Devices with a number, where the target has one device: `"cuda:" + str(rank)`, `f"{device}:{rank}"`."""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.arguments import called, does_something
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.context import Use, use_of
from lockstep_migrate.torch.unit import Unit

ONE_DEVICE = "there is one device, number 0"
_NUMBER_BEHIND = re.compile(r"(?:%s|\{\w*\})?:(?:%[sdi]|\{[^{}]*\})?\Z")


def claim_one_device(
    unit: Unit, node: ast.expr, rule: str, whole: ast.expr, text: str = ""
) -> None:
    """A device with a computed number where there is one device: rewritten unless the text itself counts."""
    text = text or f'"{unit.target.device}"'
    given = [part for part in ast.iter_child_nodes(whole) if isinstance(part, ast.expr)]
    given = [part for part in given if not isinstance(part, ast.Attribute)]  # "...".format
    fixed = all(isinstance(part, ast.Constant) or unit.scopes.name(part) for part in given)
    fixed |= any(isinstance(part, ast.IfExp) for part in ast.walk(whole))
    fixed |= any(_is_for_this_alone(unit.scopes, part) for part in ast.walk(whole))
    if use_of(unit.scopes, whole) is not Use.VALUE or fixed or any(map(does_something, given)):
        unit.list(node, rule, ONE_DEVICE, text)
        return
    span = unit.scopes.span(whole)
    unit.rewrite(node, rule, ONE_DEVICE, [Edit(span, text)], span=span, differs=True)
    unit.settle(ast.walk(whole), node)


def _is_for_this_alone(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a function assigns a variable for this place alone, so that it would be left unused."""
    if not isinstance(node, ast.Name) or scopes.function(node) is None:
        return False
    found = scopes.bindings(node.id, scopes.scope(node))
    return any(one.value is not None and len(scopes.uses(one)) == 1 for one in found)


def joined(scopes: ModuleScopes, node: ast.expr) -> ast.expr:
    """The whole text that a device's type and a number are put together to: `"cuda" + ":" + str(rank)`; else the node.

    Also `f"{'cuda'}:{rank}"`, `"{}:{}".format("cuda", rank)`, `"%s:%d" % ("cuda", rank)`,
    `":".join(["cuda", str(rank)])`.
    """
    whole = node
    while isinstance(above := scopes.parents[whole], ast.expr) and _puts_together(scopes, above):
        whole = above
    parts = [part for part in ast.walk(whole) if isinstance(part, ast.Constant)]
    numbered = any(
        isinstance(part.value, str) and _NUMBER_BEHIND.match(part.value) for part in parts
    )
    return whole if numbered and isinstance(whole, ast.expr) else node


def is_numbered_later(scopes: ModuleScopes, node: ast.expr) -> bool:
    """Whether a variable holds the device's type and a number is put behind it: `f"{device}:{rank}"`."""
    statement = scopes.statement(node)
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    uses = (
        use for binding in scopes.bindings(name, scopes.scope(node)) for use in scopes.uses(binding)
    )
    longer = (one.target for one in scopes.of(ast.AugAssign) if isinstance(one.op, ast.Add))
    return any(joined(scopes, use) is not use for use in uses) or any(
        getattr(target, "id", "") == name for target in longer
    )


def _puts_together(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether an expression makes a longer text of its parts, or chooses among them."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Add | ast.Mod)
    if isinstance(node, ast.Call):
        text = node.func.value if isinstance(node.func, ast.Attribute) else None
        return called(node) in ("format", "join") and isinstance(text, ast.Constant)
    if isinstance(node, ast.Tuple | ast.List):
        above = scopes.parents[node]
        return isinstance(above, ast.BinOp | ast.Call) and _puts_together(scopes, above)
    return isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.IfExp)
