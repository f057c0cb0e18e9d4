"""Gives advice on one module: lists a faster form, or writes it where that was asked for."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence

from lockstep_migrate.advice.words import all_words
from lockstep_migrate.plan import Edit, Outcome
from lockstep_migrate.torch.unit import Unit


class Advisor:
    """Gives advice on one module.

    Advice stands beside what other rules decide: it claims no node, and an edit of theirs is never touched.

    unit: The module, all other rules done.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.scopes = unit.scopes
        self._target = unit.target.name

    def suggest(
        self, rule: str, place: ast.AST, replacement: str, *, others: Iterable[ast.AST] = ()
    ) -> None:
        """List a place with what to write instead.

        `rule`: the piece of advice; says nothing where it does not hold for the target.
        `others`: further places that the same advice is given for; their lines are named.
        """
        words = all_words()[rule]
        if words.holds_for(self._target):
            self.unit.note(place, rule, words.reason + self._also(place, others), replacement)

    def offer(self, rule: str, place: ast.AST, text: str, insertions: Sequence[Edit]) -> None:
        """Write what is inserted into a place, where that was asked for; else list it with its text."""
        words = all_words()[rule]
        writes = self.unit.settings.advice_apply and words.is_written_for(self._target)
        if words.holds_for(self._target) and writes:
            rewritten = Outcome.REWRITTEN
            self.unit.note(place, rule, words.reason, outcome=rewritten, edits=insertions)
        else:
            self.suggest(rule, place, text)

    def _also(self, place: ast.AST, others: Iterable[ast.AST]) -> str:
        lines = sorted({self._line(node) for node in others} - {self._line(place)})
        return f"; also in line {', '.join(map(str, lines))}" if lines else ""

    def _line(self, node: ast.AST) -> int:
        return self.scopes.source.position(self.scopes.span(node).start)[0]
