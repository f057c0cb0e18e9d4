"""Advice on copies that views cause: transposed views, transposed operands, slices with a step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep.wings.migrate.advice.advisor import Advisor
from lockstep.wings.migrate.advice.chains import (
    Chain,
    find_chains,
    is_method,
    permutation,
    receiver,
    shape_of,
)
from lockstep.wings.migrate.advice.loops import is_forward
from lockstep.wings.migrate.advice.shuffles import advise_operator, advise_shuffle
from lockstep.wings.migrate.engine.scopes import ModuleScopes

_PRODUCTS = frozenset({"torch.matmul", "torch.mm", "torch.bmm", "torch.einsum"})
_METHOD_PRODUCTS = ("matmul", "mm", "bmm")
_JOINS = frozenset({"torch.cat", "torch.concat", "torch.stack"})
_SLICES = 2
"""Fewer slices with a step in one result are no pattern."""


def find_views(advisor: Advisor) -> None:
    """Advise on every copy of a view that the module's tensors go through."""
    scopes = advisor.scopes
    for chain in find_chains(scopes):
        if not advise_shuffle(advisor, chain):
            _advise_transposed_view(advisor, chain)
    for call in scopes.of(ast.Call):
        advise_operator(advisor, call)
        _advise_strided(advisor, call)
    products: Iterator[ast.Call | ast.BinOp] = scopes.of(ast.Call, ast.BinOp)
    for product in products:
        for operand in _operands(scopes, product):
            _advise_operand(advisor, operand)


def _advise_transposed_view(advisor: Advisor, chain: Chain) -> None:
    """The NPU's operator takes numbers: a size of -1 would have to be worked out."""
    scopes = advisor.scopes
    sizes = shape_of(scopes, chain.result)
    axes = permutation(scopes, chain.permuted)
    if not sizes or axes is None or not is_forward(scopes, chain.result):
        return
    tensor = scopes.text(receiver(scopes, chain.permuted))
    shape = f"({', '.join(scopes.text(size) for size in sizes)})"
    order, more = f"({', '.join(map(str, axes))})", ""
    if not is_method(chain.permuted, "permute"):
        order, more = "axes", f", where axes is all of them in the order that {order} swaps"
    advisor.suggest(
        "advice/transpose-view",
        chain.result,
        f"torch_npu.npu_confusion_transpose({tensor}, {order}, {shape}, True){more}",
    )


def _operands(scopes: ModuleScopes, node: ast.Call | ast.BinOp) -> list[ast.expr]:
    """The factors of a matrix product."""
    if isinstance(node, ast.BinOp):
        return [node.left, node.right] if isinstance(node.op, ast.MatMult) else []
    if scopes.name(node.func) in _PRODUCTS:
        return list(node.args)
    if is_method(node, *_METHOD_PRODUCTS):
        return [receiver(scopes, node), *node.args]
    return []


def _advise_operand(advisor: Advisor, operand: ast.expr) -> None:
    if not is_method(operand, "contiguous"):
        return
    scopes = advisor.scopes
    inner = receiver(scopes, operand)
    transposed = is_method(inner, "t") or (
        isinstance(inner, ast.Call) and permutation(scopes, inner) is not None
    )
    if transposed or (isinstance(inner, ast.Attribute) and inner.attr in ("T", "mT")):
        advisor.suggest("advice/transposed-operand", operand, scopes.text(inner))


def _advise_strided(advisor: Advisor, node: ast.Call) -> None:
    scopes = advisor.scopes
    if not node.args or not isinstance(node.args[0], ast.Tuple | ast.List):
        return
    parts = node.args[0].elts
    strided = [part for part in parts if _has_step(part)]
    if len(strided) < _SLICES or scopes.name(node.func) not in _JOINS:
        return
    if is_forward(scopes, node):
        replacement = (
            "torch_npu.contrib.module.Focus"
            if len(strided) == len(parts) == 4
            else "a view with an axis of the step's size, or index_select"
        )
        advisor.suggest("advice/strided-slices", node, replacement)


def _has_step(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        node = node.operand
    if not isinstance(node, ast.Subscript):
        return False
    return any(
        isinstance(part, ast.Slice)
        and isinstance(part.step, ast.Constant)
        and isinstance(part.step.value, int)
        and part.step.value > 1
        for part in ast.walk(node.slice)
    )
