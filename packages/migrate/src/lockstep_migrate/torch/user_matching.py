"""Where a user's rules are matched: every import, call and chain of names of a module, before the built-in rules.

- A *dotted* function name (`torch.nn.functional.relu`) is that very function, however the module imports it: called,
  passed on or used as a decorator.
- A *bare* function name (`relu`) is an imported function of that name, a builtin, or a method that is called. It is
  never a function that the file defines or that comes from the user's own package by a relative import; where the
  file itself defines a method or an attribute of that name, calls on `self` are its own and others are listed.
- A module is found by its full name, in imports and in every chain of names that begins with it.

What an import brings keeps its name in the module (`import new as old`), so that only what is spelled out changes. An
argument is counted by position. Where it is behind a `*`, given by keyword or not given, the call is listed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep_migrate.engine.arguments import attribute_span, insertion, opening
from lockstep_migrate.engine.scopes import Binding, Bound, Meaning
from lockstep_migrate.engine.statements import separator, without_names
from lockstep_migrate.plan import Edit, Outcome, Span
from lockstep_migrate.torch.unit import Unit
from lockstep_migrate.torch.user_rules import ARGUMENT, MODULE, UserRule, UserRules

_FROM = re.compile(r"from(\s+)([\w.]+)")


def find_user_rules(unit: Unit) -> None:
    """Claim every place that a user's rules name."""
    if not unit.settings.user_rules:
        return
    matcher = _Matcher(unit, unit.settings.user_rules)
    # What an earlier run wrote at the head is no script of the user's.
    ours = filter(unit.header.is_ours, unit.scopes.tree.body)
    head = {node for statement in ours for node in ast.walk(statement)}
    nodes = [node for node in unit.scopes.nodes if node not in head]
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            matcher.claim_import(node)
    # Arguments first: what a new argument replaces is nobody else's.
    for node in nodes:
        if isinstance(node, ast.Call) and not unit.is_claimed(node):
            matcher.claim_arguments(node)
    for node in nodes:
        if isinstance(node, ast.Name | ast.Attribute) and not unit.is_claimed(node):
            whole = not isinstance(unit.scopes.parents[node], ast.Attribute)
            if whole and isinstance(node.ctx, ast.Load):
                matcher.claim_chain(node)


@dataclass(frozen=True, slots=True)
class _Hit:
    """A rule that holds for the first `length` parts of a dotted name."""

    length: int
    rule: UserRule


class _Matcher:
    def __init__(self, unit: Unit, rules: UserRules) -> None:
        self._unit = unit
        self._scopes = unit.scopes
        self._arguments = [rule for rule in rules if rule.family == ARGUMENT]
        self._rows: dict[str, list[UserRule]] = {}
        for rule in rules:
            if rule.family != ARGUMENT:
                self._rows.setdefault(rule.old, []).append(rule)
        self._changed: dict[Binding, ast.AST] = {}
        """Imports that were changed, with the statement."""
        self._own = set(unit.own.methods) | {
            node.attr for node in unit.scopes.of(ast.Attribute) if isinstance(node.ctx, ast.Store)
        }
        for owner in unit.scopes.of(ast.ClassDef):
            self._own |= {getattr(item, "name", "") for item in owner.body}

    def _hits(self, name: str) -> list[_Hit]:
        """Every rule that holds for a dotted name or what it begins with, the longest last; a move replaces others."""
        if name.startswith("."):
            return []
        parts = name.split(".")
        found = [
            _Hit(length, rule)
            for length in range(1, len(parts) + 1)
            for rule in self._rows.get(".".join(parts[:length]), ())
            if rule.family == MODULE or "." in rule.old
        ]
        if not any(hit.length == len(parts) for hit in found):
            found += [_Hit(len(parts), rule) for rule in self._bare(parts[-1])]
        moved = max((hit.length for hit in found if hit.rule.moves), default=0)
        return [
            hit for hit in found if hit.length > moved or (hit.rule.moves and hit.length == moved)
        ]

    def _bare(self, name: str) -> list[UserRule]:
        return [rule for rule in self._rows.get(name, ()) if rule.family != MODULE]

    def _result(self, name: str) -> str:
        """A dotted name after all rules."""
        parts = name.split(".")
        for hit in self._hits(name):
            if hit.rule.moves:
                parts[: hit.length] = [""] * (hit.length - 1) + [hit.rule.new]
            else:
                parts[hit.length - 1] = hit.rule.new
        return ".".join(filter(None, parts))

    # -- imports

    def claim_import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Claim an import statement if a rule changes it."""
        module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
        if isinstance(node, ast.ImportFrom) and (node.level or not module):
            return
        names = {alias: f"{module}.{alias.name}".lstrip(".") for alias in node.names}
        # A function is no module: `import func` is none of its imports.
        hits = {
            alias: [hit for hit in self._hits(name) if module or hit.rule.family == MODULE]
            for alias, name in names.items()
            if alias.name != "*"
        }
        own = [hit for hit in self._hits(module) if hit.rule.family == MODULE]
        found = own + [hit for each in hits.values() for hit in each if hit not in own]
        if not found:
            return
        start = self._scopes.span(node).start
        spelled = _FROM.match(self._scopes.source.text, start)
        reason = "; ".join(dict.fromkeys(hit.rule.reason for hit in found))
        for alias, each in hits.items():
            if each:
                self._changed[self._binding(node, alias)] = node
        if module and (not spelled or spelled[2] != module):
            why = f"{reason}; the module's name is written in an unusual way"
            self._unit.list(node, found[-1].rule.identifier, why)
        else:
            edits = (
                self._from_edits(node, module, hits)
                if isinstance(node, ast.ImportFrom)
                else [self._import_edit(alias) for alias in node.names if hits[alias]]
            )
            self._unit.rewrite(node, found[-1].rule.identifier, reason, edits)
        self._unit.settle(node.names, node)

    def _import_edit(self, alias: ast.alias) -> Edit:
        """`import a.b`, whose first name the module goes on to use."""
        new, root = self._result(alias.name), alias.name.partition(".")[0]
        changed_root = new.partition(".")[0]
        if changed_root != root and not alias.asname:
            new = f"{new} as {root}" if "." not in new else f"{new}, {changed_root} as {root}"
        start = self._scopes.span(alias).start
        return Edit(Span(start, start + len(alias.name)), new)

    def _from_edits(
        self, node: ast.ImportFrom, module: str, hits: dict[ast.alias, list[_Hit]]
    ) -> list[Edit]:
        """The module's name, each imported name, and what comes from another module now."""
        start, edits = self._scopes.span(node).start, []
        new_module, moved = self._result(module), {}
        spelled = _FROM.match(self._scopes.source.text, start)
        for alias in hits:
            home, _, new = self._result(f"{module}.{alias.name}").rpartition(".")
            bound = alias.asname or alias.name
            text = new if new == bound else f"{new} as {bound}"
            if home != new_module:
                moved[alias] = f"from {home} import {text}"
            elif new != alias.name:
                edits.append(Edit(self._scopes.span(alias), text))
        between = separator(self._scopes, node)
        if len(moved) == len(node.names):
            return [Edit(self._scopes.span(node), between.join(moved.values()))]
        if new_module != module and spelled:
            edits.append(Edit(Span(*spelled.span(2)), new_module))
        edits += without_names(self._scopes, node, moved).values()
        text = "".join(line + between for line in moved.values())
        return [*edits, insertion(start, text)] if text else edits

    def _binding(self, node: ast.Import | ast.ImportFrom, alias: ast.alias) -> Binding:
        plain = alias.name.split(".")[0] if isinstance(node, ast.Import) else alias.name
        found = self._scopes.bindings(alias.asname or plain, self._scopes.scope(node))
        return next(binding for binding in found if binding.alias is alias)

    # -- chains of names

    def claim_chain(self, node: ast.Name | ast.Attribute) -> None:
        """Claim a chain such as `F.relu`, `torch.cuda.amp.autocast` or `batch.cuda` if a rule changes it."""
        meanings = self._scopes.meanings(node)
        if not meanings:
            if isinstance(node, ast.Attribute):
                self._claim_method(node)
            elif not self._scopes.bindings(node.id, self._scopes.scope(node)):
                for rule in self._bare(node.id):
                    self._rewrite_chain(node, [_Hit(1, rule)], Meaning(node.id))
            return
        hits = [self._hits(meaning.name) for meaning in meanings]
        edits = [self._chain_edits(node, *pair) for pair in zip(hits, meanings, strict=True)]
        if all(each == edits[0] for each in edits):
            self._rewrite_chain(node, hits[0], meanings[0])
            return
        others = " or ".join(dict.fromkeys(meaning.name for meaning in meanings))
        self._list(node, next(filter(None, hits))[-1].rule, f"it may be {others}")

    def _rewrite_chain(
        self, node: ast.Name | ast.Attribute, hits: list[_Hit], meaning: Meaning
    ) -> None:
        unit, edits = self._unit, self._chain_edits(node, hits, meaning)
        moving = [hit.rule.new for hit in hits if edits and hit.rule.moves]
        taken = [name for name in moving if not self._can_spell(name, node)]
        if taken:
            why = f"the first part of {taken[0]} is a name of its own here"
            self._list(node, hits[-1].rule, why)
        elif edits and meaning.binding is None and len(self._scopes.stars) > 1:
            self._list(node, hits[-1].rule, "several star imports may bring it")
        elif edits:
            unit.header.define([], imports=map(_module_of, moving))
            reason = "; ".join(dict.fromkeys(hit.rule.reason for hit in hits))
            unit.rewrite(node, hits[-1].rule.identifier, reason, edits)
        elif meaning.binding in self._changed and not meaning.assigned:
            unit.settle([node], self._changed[meaning.binding])

    def _chain_edits(self, node: ast.AST, hits: list[_Hit], meaning: Meaning) -> list[Edit]:
        """What changes in the chain itself; what an import brings changes there."""
        links: list[ast.AST] = []
        while isinstance(node, ast.Attribute):
            links.append(node)
            node = node.value
        brought, edits = len(meaning.name.split(".")) - len(links), []
        for hit in hits:
            place = hit.length - brought
            if place > 0:
                link = links[len(links) - place]
                assert isinstance(link, ast.Attribute)
                span = (
                    self._scopes.span(link)
                    if hit.rule.moves
                    else attribute_span(self._scopes, link)
                )
                edits.append(Edit(span, hit.rule.new))
            elif place == 0 and isinstance(node, ast.Name) and meaning.binding is None:
                edits.append(Edit(self._scopes.span(node), hit.rule.new))
        return edits

    def _can_spell(self, name: str, at: ast.AST) -> bool:
        """Whether the first part of a dotted name stands for itself at a place, or is free to be imported."""
        root = name.split(".")[0]
        found = self._scopes.bindings(root, self._scopes.scope(at))
        if not found:
            return not self._scopes.is_taken(root)
        return all(item.kind is Bound.IMPORT and item.qualified == root for item in found)

    def _claim_method(self, node: ast.Attribute) -> None:
        call = self._scopes.parents[node]
        for rule in self._bare(node.attr) if getattr(call, "func", None) is node else ():
            if node.attr in self._own:
                if not self._is_own_object(node.value):
                    self._list(
                        node, rule, f"this file defines {node.attr} itself, and this may be it"
                    )
            elif rule.moves:
                self._list(node, rule, f"a method cannot become {rule.new}")
            else:
                edit = Edit(attribute_span(self._scopes, node), rule.new)
                self._unit.rewrite(node, rule.identifier, rule.reason, [edit])
                self._unit.settle([call], node)

    def _is_own_object(self, node: ast.expr) -> bool:
        """Whether an expression is the object or class that the file is defining."""
        if not isinstance(node, ast.Name):
            return False
        found = self._scopes.bindings(node.id, self._scopes.scope(node))
        return node.id in ("self", "cls") or any(
            isinstance(one.node, ast.ClassDef) for one in found
        )

    def _list(self, node: ast.AST, rule: UserRule, why: str) -> None:
        self._unit.list(node, rule.identifier, f"{rule.reason}; {why}", replacement=rule.new)

    # -- arguments

    def claim_arguments(self, node: ast.Call) -> None:
        """Claim the arguments of a call that rules change."""
        called = list(dict.fromkeys(self._called(node.func)))
        for rule in self._arguments:
            matching = [name for name in called if self._names(rule, name)]
            own = isinstance(node.func, ast.Attribute) and not self._scopes.meanings(node.func)
            why, given = "", node.args[: rule.index + 1]
            if not matching:
                continue
            if len(matching) < len(called):
                why = (
                    f"it may also be {' or '.join(name for name in called if name not in matching)}"
                )
            elif own and node.func.attr in self._own:  # type: ignore[attr-defined]
                if self._is_own_object(node.func.value):  # type: ignore[attr-defined]
                    continue
                why = f"this file defines {called[0]} itself"
            elif any(isinstance(argument, ast.Starred) for argument in given):
                why = f"argument {rule.index} is behind a *"
            elif len(given) <= rule.index:
                why = f"argument {rule.index} is not given by position"
            if why:
                self._unit.note(node, rule.identifier, f"{rule.reason}; {why}", rule.new)
            else:
                self._write(rule, node, given[rule.index])

    def _names(self, rule: UserRule, name: str) -> bool:
        names = (name, self._result(name))
        if "." in rule.old:
            return rule.old in names
        return any(known.rpartition(".")[2] == rule.old for known in names)

    def _called(self, function: ast.expr) -> Iterator[str]:
        """What a function may be, by name."""
        meanings = self._scopes.meanings(function)
        yield from (meaning.name for meaning in meanings if not meaning.name.startswith("."))
        if isinstance(function, ast.Attribute) and not meanings:
            yield function.attr
        if isinstance(function, ast.Name) and not self._scopes.bindings(
            function.id, self._scopes.scope(function)
        ):
            yield function.id

    def _write(self, rule: UserRule, call: ast.Call, argument: ast.expr) -> None:
        new = ast.parse(f"({rule.new}\n)", mode="eval").body
        if ast.dump(new) == ast.dump(argument):
            return
        span, text = self._scopes.span(argument), rule.new
        if span.start < opening(self._scopes, call):  # a bare generator shares the brackets
            text = f"({text})"
        edits = [Edit(span, text)]
        mention = self._unit.note(
            span, rule.identifier, rule.reason, outcome=Outcome.REWRITTEN, edits=edits
        )
        self._unit.settle(ast.walk(argument), mention)


def _module_of(name: str) -> str:
    """What to import for a dotted name: all before its last part that is spelled like a module."""
    parts = name.split(".")[:-1]
    classes = (number for number, part in enumerate(parts) if part[:1].isupper())
    return ".".join(parts[: next(classes, len(parts))])
