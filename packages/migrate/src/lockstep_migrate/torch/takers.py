"""Who gets a value, and whose function is called: the packages beside torch that a script hands something over to."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator

from lockstep_migrate.engine.arguments import called
from lockstep_migrate.engine.scopes import Bound
from lockstep_migrate.engine.statements import assigned_to
from lockstep_migrate.engine.tree import is_own_attribute
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.torch.unit import Unit

OF_TORCH = frozenset({"torch", "torchvision", "torchaudio"})
NO_DEVICES = listed_names("no devices")
ANY_DEVICE = listed_names("any device")
_HOLDING = (
    ast.Dict, ast.List, ast.Tuple, ast.Set, ast.keyword, ast.IfExp, ast.Starred, ast.BinOp,
    ast.FormattedValue, ast.JoinedStr,
)  # fmt: skip
_ASKING = frozenset({"get", "getenv", "pop"})
"""Functions that return their second argument if there is nothing else."""
_STEPS = 3


def takers(unit: Unit, value: ast.AST, steps: int = _STEPS) -> Iterator[ast.AST]:
    """The calls, comparisons and assignments that take a value: at once, inside of others or by a variable."""
    below, parent = value, unit.scopes.parents[value]
    while isinstance(parent, _HOLDING) or (
        isinstance(parent, ast.Call)
        and below is not parent.func
        and (called(parent) == "dict" or (called(parent) in _ASKING and below in parent.args[1:]))
    ):
        below, parent = parent, unit.scopes.parents[parent]
    if isinstance(parent, ast.Compare | ast.Assign | ast.AnnAssign) or (
        isinstance(parent, ast.Call) and below is not parent.func
    ):
        yield parent
    if isinstance(parent, ast.Assign | ast.AnnAssign) and steps:
        for use in _uses(unit, parent):
            yield from takers(unit, use, steps - 1)


def _uses(unit: Unit, statement: ast.Assign | ast.AnnAssign) -> Iterator[ast.Name]:
    """Where a variable is read that a statement assigns, or an entry of which it sets."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    for target in targets:
        base = target.value if isinstance(target, ast.Subscript) else target
        if isinstance(base, ast.Name):
            for binding in unit.scopes.bindings(base.id, unit.scopes.scope(base)):
                yield from (use for use in unit.scopes.uses(binding) if use is not base)


def called_names(unit: Unit, function: ast.expr, steps: int = _STEPS) -> Iterator[str]:
    """The dotted names that a called function may have by the imports; of a method, what made its object has."""
    chain: list[str] = []
    node = function
    while isinstance(node, ast.Attribute | ast.Call):
        if is_own_attribute(node):
            for value in assigned_to(unit.scopes, node) if steps else ():
                if isinstance(value, ast.Call):
                    yield from called_names(unit, value.func, steps - 1)
        chain = [node.attr, *chain] if isinstance(node, ast.Attribute) else []
        node = node.value if isinstance(node, ast.Attribute) else node.func
    if not isinstance(node, ast.Name):
        return
    for binding in unit.scopes.bindings(node.id, unit.scopes.scope(node)):
        if binding.kind is Bound.IMPORT:
            yield ".".join((binding.qualified, *chain))
        elif isinstance(binding.value, ast.Call) and steps:
            yield from called_names(unit, binding.value.func, steps - 1)


def package_of(unit: Unit, name: str) -> str:
    """The package that a dotted name is of; empty for the project's, Python's and torch's, and a relative import."""
    root = name.split(".")[0]
    known = root in unit.own.modules or root in sys.stdlib_module_names
    return "" if known or root in OF_TORCH | NO_DEVICES else root


def library_called(unit: Unit, function: ast.expr) -> str:
    """The package whose function is called, or whose object's method; empty for the project, Python and torch."""
    return package_of(unit, next(called_names(unit, function), ""))


def library_of_object(unit: Unit, node: ast.expr) -> str:
    """The package whose call gives an object, at once or by a variable; empty for those that give torch's own."""
    values = [node]
    if isinstance(node, ast.Name):
        found = unit.scopes.bindings(node.id, unit.scopes.scope(node))
        values = [one.value or node for one in found]
    calls = [library_called(unit, one.func) for one in values if isinstance(one, ast.Call)]
    library = calls[0] if calls and len(calls) == len(values) else ""
    return "" if library in ANY_DEVICE else library


def library_of(unit: Unit, setting: ast.expr) -> str:
    """The package that is given a setting; "torch" for torch, empty if it is none."""
    for taker in takers(unit, setting):
        if isinstance(taker, ast.Call):
            of_torch = unit.scopes.name(taker.func).startswith("torch.")
            if library := "torch" if of_torch else library_called(unit, taker.func):
                return library
    return ""
