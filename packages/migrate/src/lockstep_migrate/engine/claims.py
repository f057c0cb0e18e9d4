"""Decisions about the places of one module; a place belongs to the first rule that claims it."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.plan import Edit, Mention, Outcome, Span


class Claims:
    """The mentions of a module, in the order in which they were decided.

    scopes: The module's names.
    family: What stands before the name of every rule that claims here, such as `tensorflow/`.
    """

    def __init__(self, scopes: ModuleScopes, family: str = "") -> None:
        self.scopes = scopes
        self.mentions: list[Mention] = []
        self._family = family
        self._claimed: dict[ast.AST, Mention] = {}

    def is_claimed(self, node: ast.AST) -> bool:
        """Whether a rule has claimed a node."""
        return node in self._claimed

    def is_rewritten(self, node: ast.AST) -> bool:
        """Whether a rule changes what stands at a node."""
        return node in self._claimed and self._claimed[node].outcome.is_change

    def is_listed(self, node: ast.AST) -> bool:
        """Whether a rule leaves what stands at a node to a person."""
        return node in self._claimed and self._claimed[node].outcome is Outcome.LISTED

    def mention_of(self, node: ast.AST) -> Mention | None:
        """What was claimed at a node."""
        return self._claimed.get(node)

    def claim(
        self,
        node: ast.AST,
        rule: str,
        outcome: Outcome,
        reason: str,
        *,
        span: Span | None = None,
        replacement: str = "",
        edits: Iterable[Edit] = (),
    ) -> None:
        """Decide the mention at a node; a node that is claimed already stays as it was decided."""
        if node in self._claimed:
            return
        self._claimed[node] = self.note(
            span or node, rule, reason, replacement, outcome=outcome, edits=edits
        )

    def note(
        self,
        place: ast.AST | Span,
        rule: str,
        reason: str,
        replacement: str = "",
        *,
        outcome: Outcome = Outcome.LISTED,
        edits: Iterable[Edit] = (),
    ) -> Mention:
        """Decide about a place without claiming it: no other rule is kept from what stands there."""
        span = place if isinstance(place, Span) else self.scopes.span(place)
        mention = Mention(self._family + rule, outcome, span, reason, replacement, tuple(edits))
        self.mentions.append(mention)
        return mention

    def rewrite(
        self,
        node: ast.AST,
        rule: str,
        reason: str,
        edits: Iterable[Edit],
        *,
        span: Span | None = None,
        differs: bool = False,
    ) -> None:
        """Claim a node with edits; `differs` where what they leave does not mean the same."""
        outcome = Outcome.DIFFERS if differs else Outcome.REWRITTEN
        self.claim(node, rule, outcome, reason, span=span, edits=edits)

    def list(
        self,
        node: ast.AST,
        rule: str,
        reason: str,
        replacement: str = "",
        *,
        span: Span | None = None,
    ) -> None:
        """Claim a node that needs a person."""
        self.claim(node, rule, Outcome.LISTED, reason, span=span, replacement=replacement)

    def keep(self, node: ast.AST, rule: str, reason: str, *, span: Span | None = None) -> None:
        """Claim a node that needs nothing."""
        self.claim(node, rule, Outcome.KEPT, reason, span=span)

    def supersede(
        self,
        node: ast.AST,
        rule: str,
        reason: str,
        edits: Iterable[Edit],
        *,
        span: Span,
        replacement: str = "",
        differs: bool = False,
    ) -> None:
        """Claim a node instead of what claimed it before: rewritten with edits, listed without."""
        before = self._claimed.pop(node, None)
        if before is not None:
            self.mentions.remove(before)
        changes = tuple(edits)
        written = Outcome.DIFFERS if differs else Outcome.REWRITTEN
        outcome = written if changes else Outcome.LISTED
        self.claim(node, rule, outcome, reason, span=span, replacement=replacement, edits=changes)

    def settle(self, nodes: Iterable[ast.AST], claimed: ast.AST | Mention) -> None:
        """Count nodes to a mention that was made elsewhere, so that no later rule touches them."""
        mention = claimed if isinstance(claimed, Mention) else self._claimed.get(claimed)
        if mention is not None:
            for node in nodes:
                self._claimed.setdefault(node, mention)
