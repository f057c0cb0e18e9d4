"""Import statements under a user's rules."""

from __future__ import annotations

import ast
import re

from lockstep.wings.migrate.engine.arguments import insertion
from lockstep.wings.migrate.engine.scopes import Binding
from lockstep.wings.migrate.engine.statements import separator, without_names
from lockstep.wings.migrate.plan import Edit, Span
from lockstep.wings.migrate.torch.user.names import Hit, Names
from lockstep.wings.migrate.torch.user_rules import ModuleRule

_FROM = re.compile(r"from(\s+)([\w.]+)")


class Statement:
    """An import statement."""

    def __init__(self, names: Names, node: ast.Import | ast.ImportFrom) -> None:
        self._names = names
        self._scopes = names.scopes
        self._node = node
        self._edits: list[Edit] = []
        self._hits: list[Hit] = []
        self._problem = ""

    def claim(self) -> None:
        """Claim the statement if a rule changes it."""
        if isinstance(self._node, ast.Import):
            for alias in self._node.names:
                self._import(alias)
        elif not self._node.level and self._node.module:
            self._import_from(self._node)
        if not self._hits:
            return
        first, unit = self._hits[-1], self._names.unit
        reason = "; ".join(dict.fromkeys(hit.reason for hit in self._hits))
        if self._problem:
            unit.list(self._node, first.identifier, f"{reason}; {self._problem}")
        else:
            unit.rewrite(self._node, first.identifier, reason, self._edits)
        unit.settle(self._node.names, self._node)

    def _import(self, alias: ast.alias) -> None:
        hits = [hit for hit in self._names.hits(alias.name) if isinstance(hit.rule, ModuleRule)]
        if not hits:
            return
        self._hits += hits
        parts = alias.name.split(".")
        for hit in hits:
            parts[hit.length - 1] = hit.rule.new
        new, suffix, binding = ".".join(parts), "", self._binding(alias)
        self._names.changed[binding] = self._node
        if not alias.asname and hits[0].length == 1:
            if self._names.may_rename(binding, parts[0], hits[0].rule.result):
                self._names.local[binding] = parts[0]
            elif len(parts) == 1:
                suffix = f" as {alias.name}"
            else:
                self._problem = f"{parts[0]} is a name of the module's own"
        start = self._scopes.span(alias).start
        self._edits.append(Edit(Span(start, start + len(alias.name)), new + suffix))

    def _import_from(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        found = _FROM.match(self._scopes.source.text, self._scopes.span(node).start)
        length = module.count(".") + 1
        whole = {hit for hit in self._names.hits(module) if isinstance(hit.rule, ModuleRule)}
        self._hits += sorted(whole, key=lambda hit: hit.length)
        moved: dict[ast.alias, str] = {}
        for alias in node.names:
            last = [] if alias.name == "*" else self._names.hits(f"{module}.{alias.name}")
            last = [hit for hit in last if hit.length == length + 1]
            self._hits += last
            if last:
                self._alias(alias, last[-1], moved)
            elif whole and alias.name != "*":
                self._names.changed[self._binding(alias)] = node
        if not self._hits:
            return
        if not found or found[2] != module:
            self._problem = "the module's name is written in an unusual way"
        elif len(moved) == len(node.names):
            text = separator(self._scopes, node).join(moved.values())
            self._edits = [Edit(self._scopes.span(node), text)]
        else:
            if whole:
                self._edits.append(Edit(Span(*found.span(2)), self._names.result(module)))
            self._take_out(node, moved)

    def _alias(self, alias: ast.alias, hit: Hit, moved: dict[ast.alias, str]) -> None:
        binding, new = self._binding(alias), hit.rule.new.rpartition(".")[2]
        bound = alias.asname or alias.name
        if not alias.asname and self._names.may_rename(binding, new, hit.rule.result):
            self._names.local[binding] = bound = new
        self._names.changed[binding] = self._node
        text = new if bound == new else f"{new} as {bound}"
        if hit.moves:
            moved[alias] = f"from {hit.rule.new.rpartition('.')[0]} import {text}"
        else:
            self._edits.append(Edit(self._scopes.span(alias), text))

    def _take_out(self, node: ast.ImportFrom, moved: dict[ast.alias, str]) -> None:
        """Remove moved names from the list, and import them in front of the statement."""
        self._edits += without_names(self._scopes, node, moved).values()
        between = separator(self._scopes, node)
        text = "".join(line + between for line in moved.values())
        self._edits += [insertion(self._scopes.span(node).start, text)] if text else []

    def _binding(self, alias: ast.alias) -> Binding:
        name = alias.asname or (
            alias.name.split(".")[0] if isinstance(self._node, ast.Import) else alias.name
        )
        found = self._scopes.bindings(name, self._scopes.scope(self._node))
        return next(binding for binding in found if binding.alias is alias)
