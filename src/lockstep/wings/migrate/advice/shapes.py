"""Advice on shapes that depend on values: masks as indices, `nonzero`, `unique`."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep.wings.migrate.advice.advisor import Advisor
from lockstep.wings.migrate.advice.loops import inside, is_forward
from lockstep.wings.migrate.engine.scopes import Bound, ModuleScopes
from lockstep.wings.migrate.plan import Edit

_FUNCTIONS = frozenset({"torch.nonzero", "torch.argwhere", "torch.masked_select", "torch.unique"})
_METHODS = frozenset({"nonzero", "argwhere", "masked_select", "unique"})
_NO_TENSORS = frozenset(
    {"torch.load", "torch.device", "torch.Size", "torch.Generator", "torch.is_tensor"}
)


def find_shapes(advisor: Advisor) -> None:
    """Advise on masks and on results of unknown shape, in training loops and in the `forward` of modules."""
    scopes = advisor.scopes
    hot = {node: loop.node for loop in advisor.training_loops for node in inside(loop.node)}
    for statement in scopes.of(ast.Assign):
        target = _masked(statement)
        if target is not None and (
            statement in hot or is_forward(scopes, statement) or _is_tensor(scopes, target)
        ):
            _advise_mask(advisor, statement, target)
    places: dict[ast.AST | None, list[ast.AST]] = {}
    nodes: Iterator[ast.expr] = scopes.of(ast.Subscript, ast.Call)
    for node in nodes:
        if _has_unknown_shape(scopes, node) and (node in hot or is_forward(scopes, node)):
            places.setdefault(hot.get(node) or scopes.function(node), []).append(node)
    replacement = "torch.where or a mask that is multiplied"
    for found in places.values():
        found.sort(key=scopes.span)
        advisor.suggest("advice/dynamic-shape", found[0], replacement, others=found)


def _masked(node: ast.Assign) -> ast.Subscript | None:
    """`x[x < 0]` of the statement `x[x < 0] = 0`."""
    target = node.targets[0]
    is_mask = isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Compare)
    return target if is_mask and len(node.targets) == 1 else None  # type: ignore[return-value]


def _advise_mask(advisor: Advisor, statement: ast.Assign, target: ast.Subscript) -> None:
    """A mask that compares the tensor itself with a number has its shape, so that `masked_fill_` is the same."""
    scopes = advisor.scopes
    mask, value = target.slice, statement.value
    same = (
        isinstance(mask, ast.Compare)
        and len(mask.ops) == 1
        and isinstance(target.value, ast.Name)
        and scopes.text(mask.left) == target.value.id
        and _is_number(mask.comparators[0])
        and _is_number(value)
    )
    text = f"{scopes.text(target.value)}.masked_fill_({scopes.text(mask)}, {scopes.text(value)})"
    if same and _is_tensor(scopes, target):
        span = scopes.span(statement)
        advisor.offer("advice/masked-assignment", span, text, [Edit(span, text)])
    else:
        name = scopes.text(target.value)
        general = f"{name} = torch.where({scopes.text(mask)}, {scopes.text(value)}, {name})"
        advisor.suggest("advice/masked-assignment", statement, text if same else general)


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) in (int, float)


def _is_tensor(scopes: ModuleScopes, target: ast.Subscript) -> bool:
    """Whether every binding of the name that is indexed makes a tensor by a function of torch."""
    if not isinstance(target.value, ast.Name):
        return False
    bindings = scopes.bindings(target.value.id, scopes.scope(target))
    return bool(bindings) and all(
        binding.kind is Bound.ASSIGNMENT
        and isinstance(binding.value, ast.Call)
        and _makes_tensor(scopes.name(binding.value.func))
        for binding in bindings
    )


def _makes_tensor(name: str) -> bool:
    """Whether a function of torch gives one tensor: those with a module of their own mostly do not."""
    return (
        name.startswith("torch.")
        and (name.count(".") == 1 or name.startswith("torch.nn.functional."))
        and name not in _NO_TENSORS
        and name.rpartition(".")[2][:1].islower()
    )


def _has_unknown_shape(scopes: ModuleScopes, node: ast.AST) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Compare)
    if not isinstance(node, ast.Call):
        return False
    name = scopes.name(node.func)
    if name in _FUNCTIONS or (name == "torch.where" and len(node.args) == 1):
        return True
    # What is imported, such as `np.unique`, takes what is on the host.
    return isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS and not name
