"""What a user's rules say of a dotted name, and what became of the module's imports by them."""

from __future__ import annotations

import ast
from collections import defaultdict
from dataclasses import dataclass

from lockstep.wings.migrate.engine.scopes import Binding, Bound
from lockstep.wings.migrate.engine.unit import Unit
from lockstep.wings.migrate.plan import Edit, Span
from lockstep.wings.migrate.torch.user_rules import (
    ArgumentRule,
    FunctionRule,
    ModuleRule,
    UserRules,
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that holds for the first `length` parts of a dotted name."""

    length: int
    rule: FunctionRule | ModuleRule

    @property
    def moves(self) -> bool:
        """Whether the new name is not just another last part."""
        return isinstance(self.rule, FunctionRule) and "." in self.rule.new

    @property
    def identifier(self) -> str:
        return identifier_of(self.rule)

    @property
    def reason(self) -> str:
        old = self.rule.old if isinstance(self.rule, FunctionRule) else self.rule.path
        return f"your rule: {old} is {self.rule.result}"


class Names:
    """What the rules say of names, and what became of the module's imports."""

    def __init__(self, unit: Unit, rules: UserRules) -> None:
        self.unit = unit
        self.scopes = unit.scopes
        self.rules = rules
        self.local: dict[Binding, str] = {}
        """Imports whose name in the module changes."""
        self.changed: dict[Binding, ast.AST] = {}
        """Imports that were changed, with the statement."""
        self._by_path: dict[str, list[FunctionRule | ModuleRule]] = defaultdict(list)
        self._bare: dict[str, FunctionRule] = {}
        for function in rules.functions:
            if "." in function.old:
                self._by_path[function.old].append(function)
            else:
                self._bare[function.old] = function
        for module in rules.modules:
            self._by_path[module.path].append(module)
        self._given: dict[str, str] = {}
        self._imported_roots: set[str] = set()
        self.own = _own_members(unit)

    def hits(self, name: str) -> list[Hit]:
        """Every rule that holds for a dotted name or what it begins with, the longest last."""
        if name.startswith("."):
            return []
        parts = name.split(".")
        found = [
            Hit(length, rule)
            for length in range(1, len(parts) + 1)
            for rule in self._by_path.get(".".join(parts[:length]), ())
        ]
        bare = self._bare.get(parts[-1])
        if bare and not any(hit.length == len(parts) for hit in found):
            found.append(Hit(len(parts), bare))
        moved = max((hit.length for hit in found if hit.moves), default=0)
        return [hit for hit in found if hit.length > moved or (hit.moves and hit.length == moved)]

    def bare_rule(self, name: str) -> FunctionRule | None:
        """The rule for a bare name."""
        return self._bare.get(name)

    def result(self, name: str) -> str:
        """A dotted name after all rules."""
        parts = name.split(".")
        for hit in self.hits(name):
            if hit.moves:
                parts[: hit.length] = [""] * (hit.length - 1) + [hit.rule.new]
            else:
                parts[hit.length - 1] = hit.rule.new
        return ".".join(part for part in parts if part)

    def is_whole_chain(self, node: ast.Name | ast.Attribute) -> bool:
        """Whether a chain of names goes no further than this node."""
        return isinstance(node.ctx, ast.Load) and not isinstance(
            self.scopes.parents[node], ast.Attribute
        )

    def may_rename(self, binding: Binding, new: str, qualified: str) -> bool:
        """Whether an import may be called `new` in the module, and every use of it too."""
        scope = self.scopes.scope(binding.node)
        alone = self.scopes.bindings(binding.name, scope) == (binding,)
        free = self._given.get(new, qualified) == qualified and not self.scopes.is_taken(new)
        # Without a use, or named in a string such as `__all__`, somebody else may import it from here.
        used = bool(self.scopes.uses(binding)) and not self._is_quoted(binding.name)
        if not (alone and free and used):
            return False
        self._given[new] = qualified
        return True

    def can_spell(self, name: str, at: ast.AST) -> bool:
        """Whether the first part of a dotted name stands for itself at a place, or is free to be imported."""
        root = name.split(".")[0]
        found = self.scopes.bindings(root, self.scopes.scope(at))
        if not found:
            return not self.scopes.is_taken(root)
        return all(item.kind is Bound.IMPORT and item.qualified == root for item in found)

    def import_edits(self, name: str, at: ast.AST) -> list[Edit]:
        """What imports the first part of a dotted name, unless something does."""
        root = name.split(".")[0]
        found = self.scopes.bindings(root, self.scopes.scope(at))
        if found or root in self._imported_roots:
            return []
        self._imported_roots.add(root)
        return [self._import_edit(f"import {_module_of(name)}")]

    def _import_edit(self, line: str) -> Edit:
        """Insert an import in front of the module's first one, or of its first statement."""
        body = [node for node in self.scopes.tree.body if not _must_be_first(node)]
        imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
        at = self.scopes.span((imports or body)[0]).start
        return Edit(Span(at, at), line + self.scopes.source.line_end)

    def _is_quoted(self, name: str) -> bool:
        return any(
            isinstance(node, ast.Constant) and node.value == name for node in self.scopes.nodes
        )


def is_own_object(names: Names, node: ast.expr) -> bool:
    """Whether an expression is the object or class that the file is defining."""
    if not isinstance(node, ast.Name):
        return False
    found = names.scopes.bindings(node.id, names.scopes.scope(node))
    return node.id in ("self", "cls") or any(
        isinstance(binding.node, ast.ClassDef) for binding in found
    )


def identifier_of(rule: ArgumentRule | FunctionRule | ModuleRule) -> str:
    if isinstance(rule, ArgumentRule):
        return f"user/ArgsModifyRule/{rule.function}"
    if isinstance(rule, FunctionRule):
        return f"user/FuncNameModifyRule/{rule.old}"
    return f"user/ModuleNameModifyRule/{rule.path}"


def _own_members(unit: Unit) -> frozenset[str]:
    """Methods that classes of the file define, and attributes that it assigns."""
    found = set(unit.own.methods)
    for node in unit.scopes.nodes:
        if isinstance(node, ast.ClassDef):
            found.update(
                item.name
                for item in node.body
                if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
            )
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            found.add(node.attr)
    return frozenset(found)


def _must_be_first(node: ast.stmt) -> bool:
    """A docstring or a `__future__` import."""
    if isinstance(node, ast.ImportFrom):
        return node.module == "__future__"
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _module_of(name: str) -> str:
    """What to import for a dotted name: all before its last part that is spelled like a module."""
    parts = name.split(".")[:-1]
    for number, part in enumerate(parts):
        if part[:1].isupper():
            return ".".join(parts[:number])
    return ".".join(parts)
