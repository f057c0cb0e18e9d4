"""Arguments of calls under a user's rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep.wings.migrate.engine.arguments import opening
from lockstep.wings.migrate.plan import Edit, Outcome
from lockstep.wings.migrate.torch.user.names import Names, identifier_of, is_own_object
from lockstep.wings.migrate.torch.user_rules import ArgumentRule


class Call:
    """A call, whose arguments rules may change."""

    def __init__(self, names: Names, node: ast.Call) -> None:
        self._names = names
        self._scopes = names.scopes
        self._node = node

    def claim(self) -> None:
        """Claim the arguments that rules change."""
        if self._names.unit.is_claimed(self._node):
            return
        for rule in self._names.rules.arguments:
            doubt = self._matches(rule)
            if doubt is None:
                continue
            if doubt:
                self._list(rule, doubt)
            else:
                self._replace(rule)

    def _matches(self, rule: ArgumentRule) -> str | None:
        """None where the call is of another function; else why that is in doubt, or nothing."""
        function = self._node.func
        called = list(dict.fromkeys(self._called(function)))
        matching = [name for name in called if self._is(rule, name)]
        if not matching:
            return None
        if len(matching) < len(called):
            others = [name for name in called if name not in matching]
            return f"it may also be {' or '.join(others)}"
        if not isinstance(function, ast.Attribute) or self._scopes.meanings(function):
            return ""
        if function.attr not in self._names.own:
            return ""
        own = is_own_object(self._names, function.value)
        return None if own else f"this file defines {function.attr} itself"

    def _is(self, rule: ArgumentRule, name: str) -> bool:
        names = (name, self._names.result(name))
        if "." in rule.function:
            return rule.function in names
        return any(known.rpartition(".")[2] == rule.function for known in names)

    def _called(self, function: ast.expr) -> Iterator[str]:
        """What the function may be, by name."""
        for meaning in self._scopes.meanings(function):
            if not meaning.name.startswith("."):
                yield meaning.name
        if isinstance(function, ast.Attribute) and not self._scopes.meanings(function):
            yield function.attr
        if isinstance(function, ast.Name) and not self._scopes.bindings(
            function.id, self._scopes.scope(function)
        ):
            yield function.id

    def _replace(self, rule: ArgumentRule) -> None:
        given = self._node.args[: rule.index + 1]
        if any(isinstance(argument, ast.Starred) for argument in given):
            self._list(rule, f"argument {rule.index} is behind a *")
        elif len(given) <= rule.index:
            self._list(rule, f"argument {rule.index} is not given by position")
        else:
            self._write(rule, given[rule.index])

    def _write(self, rule: ArgumentRule, argument: ast.expr) -> None:
        new = ast.parse(f"({rule.new}\n)", mode="eval").body
        if ast.dump(new) == ast.dump(argument):
            return
        span, text = self._scopes.span(argument), rule.new
        if span.start < opening(self._scopes, self._node):  # a bare generator shares the brackets
            text = f"({text})"
        unit = self._names.unit
        reason = f"your rule: argument {rule.index} of {rule.function} is {rule.new}"
        edits = [Edit(span, text)]
        mention = unit.note(
            span, identifier_of(rule), reason, outcome=Outcome.REWRITTEN, edits=edits
        )
        unit.settle(ast.walk(argument), mention)

    def _list(self, rule: ArgumentRule, why: str) -> None:
        reason = f"your rule: argument {rule.index} of {rule.function} is {rule.new}; {why}"
        self._names.unit.note(self._node, identifier_of(rule), reason, rule.new)
