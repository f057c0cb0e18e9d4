"""When a value is made: at import, in a default argument, or before the script chooses its devices.

A plain text such as `"cuda"` asks nobody. What takes its place must not ask a driver there either: the answer would be
fixed before `CUDA_VISIBLE_DEVICES` is set, and a process that has asked can no longer be forked.
"""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.arguments import called, insertion
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import start_of
from lockstep_migrate.plan import Edit
from lockstep_migrate.torch.context import parameter_of
from lockstep_migrate.torch.unit import Unit

_MOVING = re.compile(r"(?:to|cuda|new_\w+)\Z")
_FORWARDING = ast.keyword | ast.IfExp | ast.BoolOp | ast.FormattedValue | ast.JoinedStr | ast.BinOp
_SETTING = frozenset({"setdefault", "putenv", "setenv"})
_STORED = frozenset({"torch.device", "torch.set_default_device"})


def device_function(unit: Unit, node: ast.AST) -> str:
    """Return the function that gives the device at a place: one that asks no driver, if it is too early to ask."""
    name = "default_device" if is_early(unit, node) else "device"
    return f"{unit.header.helper}.{name}"


def backend_function(unit: Unit, node: ast.AST) -> str:
    """Return the function that gives the collective backend at a place."""
    name = "default_backend" if is_early(unit, node) else "backend"
    return f"{unit.header.helper}.{name}"


def is_early(unit: Unit, node: ast.AST) -> bool:
    """Whether a value is made at a place where no driver may be asked yet."""
    if _is_used_at_once(unit.scopes, node):
        return False
    if _default_of(unit.scopes, node) is not None:
        return True
    owner = _owner(unit.scopes, node)
    if isinstance(owner, ast.ClassDef):
        return True
    if isinstance(owner, ast.Module) and unit.is_imported:
        return True
    return unit.forks or (unit.chooses_cards and not _is_chosen_before(unit, node))


def lazy_default(unit: Unit, node: ast.expr, text: str) -> list[Edit]:
    """Return the edits that turn a function's default into None and ask in its body; none if that cannot be done."""
    scopes = unit.scopes
    whole, parent = node, scopes.parents[node]
    if (
        isinstance(parent, ast.Call)
        and scopes.name(parent.func) == "torch.device"
        and len(parent.args) == 1
    ):
        whole, parent = parent, scopes.parents[parent]
    function = scopes.parents.get(parent)
    if not isinstance(parent, ast.arguments) or not isinstance(
        function, ast.FunctionDef | ast.AsyncFunctionDef
    ):
        return []
    name = parameter_of(parent, whole)
    first = function.body[min(1, len(function.body) - 1) if ast.get_docstring(function) else 0]
    span = scopes.span(whole)
    start = start_of(scopes, first)
    line_start = scopes.source.line_start(start)
    indent = scopes.source.text[line_start:start]
    only_documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
    if not name or only_documented or indent.strip() or _means_none(function, name):
        return []
    inner = scopes.span(node)
    value = (
        scopes.source.text[span.start : inner.start]
        + text
        + scopes.source.text[inner.end : span.end]
    )
    line_end = scopes.source.line_end
    asking = f"if {name} is None:{line_end}{indent}    {name} = {value}{line_end}{indent}"
    return [Edit(span, "None"), insertion(start, asking)]


def _means_none(function: ast.AST, name: str) -> bool:
    """Whether a function tests a parameter for being None or empty, which means something of its own there."""
    for node in ast.walk(function):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
            if none and any(getattr(side, "id", "") == name for side in sides):
                return True
        tested = (
            node.values if isinstance(node, ast.BoolOp)
            else [node.operand] if isinstance(node, ast.UnaryOp)
            else [node.test] if isinstance(node, ast.If | ast.IfExp | ast.While)
            else []
        )  # fmt: skip
        if any(getattr(one, "id", "") == name for one in tested):
            return True
    return False


def _is_used_at_once(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a value goes straight into a call that starts the device in any case: `x.to("cuda")`."""
    below = node
    for above in scopes.ancestors(node):
        if isinstance(above, ast.Call) and below is not above.func:
            name = scopes.name(above.func)
            if name not in _STORED:
                method = isinstance(above.func, ast.Attribute) and not name
                moves = method and _MOVING.match(called(above)) is not None
                return name.startswith("torch.") or moves
            if name != "torch.device":
                return False
        elif (isinstance(above, ast.IfExp) and below is above.test) or not isinstance(
            above, _FORWARDING
        ):
            return False
        below = above
    return False


def _default_of(scopes: ModuleScopes, node: ast.AST) -> ast.arguments | None:
    """The parameters of a function or lambda in whose defaults a node stands."""
    for above in scopes.ancestors(node):
        if isinstance(above, ast.arguments):
            return above
        if isinstance(above, ast.stmt | ast.Lambda):
            return None
    return None


def _owner(scopes: ModuleScopes, node: ast.AST) -> ast.AST:
    """The module, class or function whose code runs when a node is evaluated."""
    scope = scopes.scope(node)
    while scope.parent is not None and isinstance(
        scope.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
    ):
        scope = scope.parent
    return scope.node


def _is_chosen_before(unit: Unit, node: ast.AST) -> bool:
    """Whether the devices were chosen earlier in the same function, or earlier at the top of the module."""
    scopes = unit.scopes
    owners = {_owner(scopes, node), scopes.tree}
    start = scopes.span(node).start
    return any(
        isinstance(text.value, str)
        and unit.chooses(text.value)
        and _is_set(scopes, text)
        and scopes.span(text).start < start
        and _owner(scopes, text) in owners
        for text in scopes.of(ast.Constant)
    )


def _is_set(scopes: ModuleScopes, text: ast.Constant) -> bool:
    """Whether an environment variable gets a value where its name stands; a text about it sets nothing."""
    parent = scopes.parents[text]
    if isinstance(parent, ast.Subscript):
        return isinstance(parent.ctx, ast.Store)
    if isinstance(parent, ast.Call):
        return called(parent) in _SETTING
    return isinstance(parent, ast.Dict) and isinstance(scopes.parents[parent], ast.Call)
