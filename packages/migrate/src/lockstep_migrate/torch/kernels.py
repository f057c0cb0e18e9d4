"""Kernels written in Triton: each is one place that needs work, however many names of Triton it uses."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import decorator_names
from lockstep_migrate.plan import Span
from lockstep_migrate.torch.unit import Unit

_DECORATORS = ("triton.jit", "triton.runtime.jit", "triton.experimental.gluon.jit")


def find_kernels(unit: Unit) -> None:
    """Claim every function that Triton compiles."""
    for node in unit.scopes.of(ast.FunctionDef):
        if _is_kernel(unit.scopes, node):
            at = unit.scopes.source.text.index(node.name, unit.scopes.span(node).start)
            unit.list(
                node,
                "kernels/triton",
                f"the Triton kernel {node.name}: needs a Triton for the device, and tuning there",
                replacement="the operators of torch that it stands for, compiled by torch.compile",
                span=Span(at, at + len(node.name)),
            )


def is_inside_kernel(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a node is in the body of a function that Triton compiles, or in what decorates one."""
    function = scopes.function(node)
    if function is not None and _is_kernel(scopes, function):
        return True
    below = node
    for above in scopes.ancestors(node):
        if isinstance(above, ast.FunctionDef) and below in above.decorator_list:
            return _is_kernel(scopes, above)
        below = above
    return False


def _is_kernel(scopes: ModuleScopes, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(name in _DECORATORS for name in decorator_names(scopes, node))
