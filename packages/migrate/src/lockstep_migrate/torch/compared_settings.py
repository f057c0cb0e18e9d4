"""Settings of the project's files that code compares with the device: both change together, or neither does."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.torch.context import Use
from lockstep_migrate.torch.unit import Unit

_AROUND = (ast.Tuple, ast.List, ast.Set, ast.Dict, ast.MatchValue, ast.MatchOr, ast.match_case)
_COMPARING = (Use.TEST, Use.READ, Use.PATTERN, Use.ANNOTATION)


def compared_setting(unit: Unit, node: ast.expr, use: Use) -> str:
    """The setting of one of the project's files that the string is compared with; empty where it is none."""
    scopes = unit.scopes
    if use not in _COMPARING and not isinstance(scopes.parents[node], ast.AnnAssign):
        return ""
    above: ast.AST = scopes.parents[node]
    while isinstance(above, _AROUND):
        above = scopes.parents[above]
    sides: list[ast.expr] = []
    if isinstance(above, ast.Compare):
        sides = [above.left, *above.comparators]
    elif isinstance(above, ast.Call) and isinstance(above.func, ast.Attribute):
        sides = [above.func.value, *above.args]  # cfg.device.startswith("cuda")
    elif isinstance(above, ast.Match):
        sides = [above.subject]
    elif isinstance(above, ast.AnnAssign) and "Literal" in scopes.text(above.annotation):
        sides = [above.target]
    elif isinstance(above, ast.Subscript):  # {"cuda": 0, "cpu": 1}[cfg.device]
        parent = scopes.parents[above]
        # or: device: Literal["cuda", "cpu"]
        sides = [parent.target if isinstance(parent, ast.AnnAssign) else above.slice]
    found = (name for side in sides for name in _setting_names(scopes, side))
    return next((name for name in found if name in unit.own.configured), "")


def _setting_names(scopes: ModuleScopes, node: ast.expr, depth: int = 3) -> Iterator[str]:
    """What an expression is called: `device` of `cfg.device`, `cfg["device"]`, `cfg.get("device").type`."""
    if isinstance(node, ast.Call):
        yield from (str(given.value) for given in node.args if isinstance(given, ast.Constant))
        inner = node.args if scopes.name(node.func) == "torch.device" else [node.func]
        for part in inner if depth else ():
            yield from _setting_names(scopes, part, depth - 1)
    elif isinstance(node, ast.Subscript):
        yield str(getattr(node.slice, "value", ""))
    elif isinstance(node, ast.Attribute):
        yield node.attr
        if node.attr == "type" and depth:
            yield from _setting_names(scopes, node.value, depth - 1)
    elif isinstance(node, ast.Name):
        yield node.id
        for binding in scopes.bindings(node.id, scopes.scope(node)):
            if binding.value is not None and depth:
                yield from _setting_names(scopes, binding.value, depth - 1)
