"""Chains of names and methods under a user's rules."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from lockstep.wings.migrate.engine.arguments import attribute_span
from lockstep.wings.migrate.engine.scopes import Meaning
from lockstep.wings.migrate.plan import Edit
from lockstep.wings.migrate.torch.user.names import Hit, Names, is_own_object


class Chain:
    """A chain of names: `F.relu`, `torch.cuda.amp.autocast`, `batch.cuda`."""

    def __init__(self, names: Names, node: ast.Name | ast.Attribute) -> None:
        self._names = names
        self._scopes = names.scopes
        self._node = node
        self._links: list[ast.Name | ast.Attribute] = []
        link: ast.AST = node
        while isinstance(link, ast.Attribute):
            self._links.append(link)
            link = link.value
        self._first = link

    def claim(self) -> None:
        """Claim the chain if a rule changes it."""
        if self._names.unit.is_claimed(self._node):
            return
        meanings = self._scopes.meanings(self._node)
        if meanings:
            self._claim_name(meanings)
        elif isinstance(self._node, ast.Attribute):
            self._claim_method(self._node)
        elif not self._scopes.bindings(self._node.id, self._scopes.scope(self._node)):
            rule = self._names.bare_rule(self._node.id)
            if rule is not None:
                self._rewrite([Hit(1, rule)], Meaning(self._node.id))

    def _claim_name(self, meanings: tuple[Meaning, ...]) -> None:
        hits = [self._names.hits(meaning.name) for meaning in meanings]
        edits = [self._edits(*pair) for pair in zip(hits, meanings, strict=True)]
        if all(each == edits[0] for each in edits):
            self._rewrite(hits[0], meanings[0])
            return
        others = " or ".join(dict.fromkeys(meaning.name for meaning in meanings))
        self._list(next(filter(None, hits))[-1], f"it may be {others}")

    def _rewrite(self, hits: list[Hit], meaning: Meaning) -> None:
        unit, binding = self._names.unit, meaning.binding
        edits = self._edits(hits, meaning)
        changed = self._names.changed.get(binding) if binding else None
        moving = [hit.rule.new for hit, _ in self._written(hits, meaning) if hit.moves]
        if not all(self._names.can_spell(name, self._node) for name in moving):
            self._list(hits[-1], f"the first part of {moving[0]} is a name of its own here")
        elif edits and binding is None and len(self._scopes.stars) > 1:
            self._list(hits[-1], "several star imports may bring it")
        elif edits:
            for name in moving:
                edits += self._names.import_edits(name, self._node)
            rule, reason = self._why(hits, changed)
            unit.rewrite(self._node, rule, reason, edits)
        elif changed and not meaning.assigned:
            unit.settle([self._node], changed)

    def _why(self, hits: list[Hit], changed: ast.AST | None) -> tuple[str, str]:
        """Rule and reason: those of the import where only the name changes that it brings."""
        brought = self._names.unit.mention_of(changed) if changed and not hits else None
        if brought is not None:
            return brought.rule, brought.reason
        return hits[-1].identifier, "; ".join(dict.fromkeys(hit.reason for hit in hits))

    def _edits(self, hits: Iterable[Hit], meaning: Meaning) -> list[Edit]:
        """What changes in the chain itself, imports of new names left out."""
        edits: list[Edit] = []
        for hit, link in self._written(hits, meaning):
            span = self._scopes.span(link)
            if isinstance(link, ast.Attribute) and not hit.moves:
                span = attribute_span(self._scopes, link)
            edits.append(Edit(span, hit.rule.new))
        new = self._names.local.get(meaning.binding) if meaning.binding else None
        if new and isinstance(self._first, ast.Name) and not meaning.assigned:
            edits.append(Edit(self._scopes.span(self._first), new))
        return edits

    def _written(
        self, hits: Iterable[Hit], meaning: Meaning
    ) -> list[tuple[Hit, ast.Name | ast.Attribute]]:
        """The rules for what the chain itself spells, each with its node; what an import brings changes there."""
        brought = len(meaning.name.split(".")) - len(self._links)
        found = [(hit, self._link(hit.length, brought)) for hit in hits]
        return [
            (hit, link)
            for hit, link in found
            if link is not None and (isinstance(link, ast.Attribute) or meaning.binding is None)
        ]

    def _link(self, length: int, brought: int) -> ast.Name | ast.Attribute | None:
        """The node that stands for the first `length` parts of what the chain means."""
        place = length - brought
        if place == 0 and isinstance(self._first, ast.Name):
            return self._first
        return self._links[len(self._links) - place] if place > 0 else None

    def _claim_method(self, node: ast.Attribute) -> None:
        call, rule = self._scopes.parents[node], self._names.bare_rule(node.attr)
        if rule is None or not isinstance(call, ast.Call) or call.func is not node:
            return
        hit = Hit(1, rule)
        if node.attr in self._names.own:
            if not is_own_object(self._names, node.value):
                self._list(hit, f"this file defines {node.attr} itself, and this may be it")
        elif hit.moves:
            self._list(hit, f"a method cannot become {rule.new}")
        else:
            edit = Edit(attribute_span(self._scopes, node), rule.new)
            self._names.unit.rewrite(node, hit.identifier, hit.reason, [edit])
            self._names.unit.settle([call], node)

    def _list(self, hit: Hit, why: str) -> None:
        self._names.unit.list(
            self._node, hit.identifier, f"{hit.reason}; {why}", replacement=hit.rule.new
        )
