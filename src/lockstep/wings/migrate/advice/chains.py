"""Chains of views: `x.view(...).transpose(1, 2).contiguous().view(...)`, in one expression or in statements."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.wings.migrate.engine.scopes import ModuleScopes
from lockstep.wings.migrate.engine.statements import siblings

_RESHAPES = frozenset({"view", "reshape"})
_SWAPS = frozenset({"transpose", "swapaxes", "swapdims"})


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """A tensor that is permuted, copied and viewed again.

    Parameters
    ----------
    result
        The last view.
    permuted
        The call that permutes.
    statements
        Statements that make only steps of the chain, in order; the one that holds the result left out.
    """

    result: ast.Call
    permuted: ast.Call
    statements: tuple[ast.stmt, ...]


def find_chains(scopes: ModuleScopes) -> Iterator[Chain]:
    """Every permutation that is made contiguous, by a call or by `reshape`, and viewed again."""
    for node in scopes.of(ast.Call):
        if not is_reshape(scopes, node):
            continue
        steps = Steps(scopes, node)
        copied = steps.back(receiver(scopes, node))
        inner = copied
        if is_method(copied, "contiguous"):
            inner = steps.back(receiver(scopes, copied))
        elif not is_method(node, "reshape", "flatten"):
            continue
        if isinstance(inner, ast.Call) and permutation(scopes, inner) is not None:
            yield Chain(node, inner, steps.passed)


class Steps:
    """Follows a chain backwards, from an expression over names that the statement just before assigns.

    Parameters
    ----------
    scopes
        The module.
    node
        Where the chain ends.
    """

    def __init__(self, scopes: ModuleScopes, node: ast.expr) -> None:
        self._scopes = scopes
        self._statement = scopes.statement(node)
        self._passed: list[ast.stmt] = []

    @property
    def passed(self) -> tuple[ast.stmt, ...]:
        """The statements that have been gone through, in the order of the text."""
        return tuple(reversed(self._passed))

    def back(self, node: ast.expr) -> ast.expr:
        """What an expression is: itself, or for a name what the statement before assigns to it for this use alone."""
        if not isinstance(node, ast.Name):
            return node
        before = self._before()
        if (
            not isinstance(before, ast.Assign)
            or len(before.targets) != 1
            or not isinstance(before.targets[0], ast.Name)
            or before.targets[0].id != node.id
            or not self._is_only_use(node)
        ):
            return node
        self._passed.append(before)
        self._statement = before
        return before.value

    def _before(self) -> ast.stmt | None:
        block = siblings(self._scopes, self._statement)
        position = block.index(self._statement)
        return block[position - 1] if position else None

    def _is_only_use(self, node: ast.Name) -> bool:
        """Whether the name is read nowhere else before it is bound again."""
        statement = self._statement
        names = [item for item in ast.walk(statement) if isinstance(item, ast.Name)]
        reads = [item for item in names if item.id == node.id and isinstance(item.ctx, ast.Load)]
        if len(reads) != 1:
            return False
        if any(item.id == node.id and isinstance(item.ctx, ast.Store) for item in names):
            return True
        ends = isinstance(statement, ast.Return)
        scope = self._scopes.scope(node)
        bindings = self._scopes.bindings(node.id, scope)
        alone = len(bindings) == 1 and len(self._scopes.uses(bindings[0])) == 1
        return ends or alone


def receiver(scopes: ModuleScopes, node: ast.expr) -> ast.expr:
    """The tensor that a call works on: what its method is called on, or the first argument of torch's function."""
    if isinstance(node, ast.Call):
        if scopes.name(node.func).startswith("torch.") and node.args:
            return node.args[0]
        if isinstance(node.func, ast.Attribute):
            return node.func.value
    return node


def is_method(node: ast.expr, *names: str) -> bool:
    """Whether an expression calls a method, or a function of torch, of one of these names."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in names
    )


def is_reshape(scopes: ModuleScopes, node: ast.expr) -> bool:
    """Whether an expression views a tensor by another shape that is written out."""
    return is_method(node, *_RESHAPES) and bool(shape_of(scopes, node))


def shape_of(scopes: ModuleScopes, node: ast.expr) -> list[ast.expr]:
    """The sizes that a view is given, one by one; empty where they cannot be seen."""
    sizes = _arguments(scopes, node)
    hidden = any(isinstance(size, ast.Starred) for size in sizes)
    # A single name may be a shape or a dtype.
    single = len(sizes) == 1 and not isinstance(sizes[0], ast.Constant | ast.UnaryOp)
    return [] if hidden or single else sizes


def permutation(scopes: ModuleScopes, node: ast.expr) -> tuple[int, ...] | None:
    """The axes that a call swaps, or the whole permutation, as it is written; `None` for any other call."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    axes = _constants(_arguments(scopes, node))
    if is_method(node, *_SWAPS):
        return axes if axes is not None and len(axes) == 2 else None
    return axes if is_method(node, "permute") else None


def swaps_groups(scopes: ModuleScopes, node: ast.Call, dimensions: int) -> bool:
    """Whether a call swaps the second and the third of so many axes, and leaves all others."""
    axes = permutation(scopes, node)
    if axes is None:
        return False
    plain = tuple(axis % dimensions for axis in axes)
    if is_method(node, "permute"):
        return plain == (0, 2, 1, *range(3, dimensions))
    return sorted(plain) == [1, 2]


def _arguments(scopes: ModuleScopes, node: ast.expr) -> list[ast.expr]:
    """The arguments behind the tensor, a tuple of them opened."""
    if not isinstance(node, ast.Call) or node.keywords:
        return []
    is_function = scopes.name(node.func).startswith("torch.")
    items = node.args[1:] if is_function else node.args
    if len(items) == 1 and isinstance(items[0], ast.Tuple | ast.List):
        return items[0].elts
    return items


def _constants(nodes: Sequence[ast.expr]) -> tuple[int, ...] | None:
    values = [value for node in nodes if (value := whole_number(node)) is not None]
    return tuple(values) if len(values) == len(nodes) else None


def whole_number(node: ast.expr) -> int | None:
    """The number that is written out here; `None` for any other expression."""
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, int) else None
