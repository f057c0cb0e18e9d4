"""Advice on single expressions: copies of transposed views, slices with a step, masks, shapes that depend on values."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lockstep_migrate.advice.advisor import Advisor
from lockstep_migrate.advice.training import inside, training_loops
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.plan import Edit

_SHUFFLES = listed_names("shuffles")
_SHUFFLE = re.compile(r"channel_?shuffle|shuffle_?channel", re.IGNORECASE)
_SELECTED = (
    "x.index_select(1, torch.arange(x.shape[1], dtype=torch.int32, device=x.device)"
    ".view(groups, -1).t().flatten())"
)
_SELECTED_IN_PLACE = (
    "x.flatten(1, 2).index_select(1, torch.arange(x.shape[1] * x.shape[2], dtype=torch.int32, device=x.device)"
    ".view(x.shape[1], -1).t().flatten()).unflatten(1, (x.shape[2], x.shape[1]))"
)
_TRANSPOSING = frozenset({"t", "transpose", "permute", "swapaxes", "swapdims"})
_PRODUCTS = frozenset({"torch.matmul", "torch.mm", "torch.bmm", "torch.einsum"})
_METHOD_PRODUCTS = frozenset({"matmul", "mm", "bmm"})
_JOINS = frozenset({"torch.cat", "torch.concat", "torch.stack"})
_UNKNOWN_SHAPES = frozenset({"nonzero", "argwhere", "masked_select", "unique"})


def find_expressions(advisor: Advisor) -> None:
    """Advise on every such expression of the module."""
    for call in advisor.scopes.of(ast.Call):
        _advise_shuffle(advisor, call)
        _advise_strided(advisor, call)
    products: Iterator[ast.Call | ast.BinOp] = advisor.scopes.of(ast.Call, ast.BinOp)
    for product in products:
        for operand in _operands(advisor.scopes, product):
            _advise_operand(advisor, operand)
    _advise_shapes(advisor)


def _advise_shuffle(advisor: Advisor, call: ast.Call) -> None:
    """torch's own channel shuffle, or the transposition in a function or module that is called one."""
    if advisor.scopes.name(call.func) in _SHUFFLES:
        advisor.suggest("advice/channel-shuffle-operator", call, _SELECTED)
    elif _is_method(call, {"transpose", "permute"}):
        above = advisor.scopes.ancestors(call)
        definitions = (one for one in above if isinstance(one, ast.FunctionDef | ast.ClassDef))
        if any(_SHUFFLE.search(one.name) for one in definitions):
            copy, text = _selected_in_place(advisor.scopes, call)
            if copy is None:
                advisor.suggest("advice/channel-shuffle", call, _SELECTED)
            else:
                edit = Edit(advisor.scopes.span(copy), text)
                advisor.offer("advice/channel-shuffle", call, _SELECTED, [edit])


def _selected_in_place(scopes: ModuleScopes, call: ast.Call) -> tuple[ast.Call | None, str]:
    """The copy of a transposed view, and what gives the same where it stands; None where that is not told.

    Of any `x` with three axes or more, the elements that `x.transpose(1, 2).contiguous()` copies are those that
    `index_select` takes from `x` with both axes as one.
    """
    above = scopes.ancestors(call)
    method, copy = next(above, None), next(above, None)
    is_copied = isinstance(method, ast.Attribute) and method.attr == "contiguous"
    if not (is_copied and isinstance(copy, ast.Call) and copy.func is method and not copy.args):
        return None, ""
    of_torch = scopes.name(call.func) in ("torch.transpose", "torch.permute")
    given = call.args if of_torch else [call.func.value, *call.args]  # type: ignore[attr-defined]
    tensor, axes = given[0] if given else None, [ast.unparse(one) for one in given[1:]]
    is_shuffle = axes in (["1", "2"], ["2", "1"], ["0", "2", "1", "3", "4"])
    imported = any(
        isinstance(one, ast.Import)
        and any(part.name == "torch" and not part.asname for part in one.names)
        for one in scopes.imports()
    )
    if call.keywords or not (is_shuffle and imported and isinstance(tensor, ast.Name)):
        return None, ""
    return copy, _SELECTED_IN_PLACE.replace("x.", f"{tensor.id}.")


def _operands(scopes: ModuleScopes, node: ast.Call | ast.BinOp) -> list[ast.expr]:
    """The factors of a matrix product."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right] if isinstance(node.op, ast.MatMult) else []
    if scopes.name(node.func) in _PRODUCTS:
        return list(node.args)
    if isinstance(node.func, ast.Attribute) and node.func.attr in _METHOD_PRODUCTS:
        return [node.func.value, *node.args]
    return []


def _advise_operand(advisor: Advisor, operand: ast.expr) -> None:
    if not _is_method(operand, {"contiguous"}):
        return
    inner = operand.func.value  # type: ignore[attr-defined]
    if _is_method(inner, _TRANSPOSING) or getattr(inner, "attr", "") in ("T", "mT"):
        advisor.suggest("advice/transposed-operand", operand, advisor.scopes.text(inner))


def _advise_strided(advisor: Advisor, node: ast.Call) -> None:
    parts = getattr(node.args[0], "elts", []) if node.args else []
    strided = [part for part in parts if _has_step(part)]
    # Fewer slices with a step in one result are no pattern.
    if len(strided) < 2 or advisor.scopes.name(node.func) not in _JOINS:
        return
    if _is_forward(advisor.scopes, node):
        focus = len(strided) == len(parts) == 4
        general = "a view with an axis of the step's size, or index_select"
        form = "torch_npu.contrib.module.Focus" if focus else general
        advisor.suggest("advice/strided-slices", node, form)


def _has_step(node: ast.expr) -> bool:
    node = node.operand if isinstance(node, ast.UnaryOp) else node
    steps = [
        part.step.value
        for part in (ast.walk(node.slice) if isinstance(node, ast.Subscript) else ())
        if isinstance(part, ast.Slice) and isinstance(part.step, ast.Constant)
    ]
    return any(isinstance(step, int) and step > 1 for step in steps)


def _advise_shapes(advisor: Advisor) -> None:
    """Masks and results of unknown shape, in training loops and in the `forward` of modules."""
    scopes = advisor.scopes
    hot = {node: loop for loop in training_loops(scopes) for node in inside(loop)}
    places: dict[ast.AST | None, list[ast.AST]] = {}
    nodes: Iterator[ast.Subscript | ast.Call] = scopes.of(ast.Subscript, ast.Call)
    for node in nodes:
        if not (node in hot or _is_forward(scopes, node)):
            continue
        if _has_unknown_shape(scopes, node):
            places.setdefault(hot.get(node) or scopes.function(node), []).append(node)
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Compare):
            statement = scopes.parents[node]
            if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
                name, mask, value = map(scopes.text, (node.value, node.slice, statement.value))
                text = f"{name} = torch.where({mask}, {value}, {name})"
                advisor.suggest("advice/masked-assignment", statement, text)
    for found in places.values():
        found.sort(key=scopes.span)
        text = "torch.where or a mask that is multiplied"
        advisor.suggest("advice/dynamic-shape", found[0], text, others=found)


def _has_unknown_shape(scopes: ModuleScopes, node: ast.Subscript | ast.Call) -> bool:
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Compare)
    name = scopes.name(node.func)
    if name.startswith("torch."):
        last = name.removeprefix("torch.")
        return last in _UNKNOWN_SHAPES or (last == "where" and len(node.args) == 1)
    # What is imported, such as `np.unique`, takes what is on the host.
    return _is_method(node, _UNKNOWN_SHAPES) and not name


def _is_method(node: ast.expr, names: set[str] | frozenset[str]) -> bool:
    """Whether an expression calls something of one of these names by a dot."""
    function = getattr(node, "func", None)
    return isinstance(function, ast.Attribute) and function.attr in names


def _is_forward(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a node runs in the `forward` of a module of torch."""
    function = scopes.function(node)
    if function is None or function.name not in ("forward", "__call__"):
        return False
    owner = scopes.parents.get(function)
    bases = owner.bases if isinstance(owner, ast.ClassDef) else []
    return any(scopes.text(base).endswith("Module") for base in bases)
