"""Gives advice on one module: lists a faster form, or writes it where that was asked for and nothing is against it."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from lockstep.wings.migrate.advice.loops import (
    BatchLoop,
    Loader,
    TrainingLoop,
    find_batch_loops,
    find_loaders,
    find_training_loops,
)
from lockstep.wings.migrate.advice.words import all_words
from lockstep.wings.migrate.engine.unit import Unit
from lockstep.wings.migrate.plan import Edit, Outcome, Span, after, merged


class Advisor:
    """Gives advice on one module.

    Advice stands beside what other rules decide: it claims no node, and an edit of theirs is never touched.

    Parameters
    ----------
    unit
        The module, all other rules done.
    """

    def __init__(self, unit: Unit) -> None:
        self.unit = unit
        self.scopes = unit.scopes
        self._target = unit.target.name

    @cached_property
    def loaders(self) -> list[Loader]:
        """Every loader that the module makes."""
        return find_loaders(self.scopes)

    @cached_property
    def training_loops(self) -> list[TrainingLoop]:
        """Every loop in which gradients are computed."""
        return find_training_loops(self.scopes)

    @cached_property
    def batch_loops(self) -> list[BatchLoop]:
        """Every loop over the batches of a loader that the module makes."""
        return find_batch_loops(self.scopes, self.loaders)

    def spelled(self, name: str, rule: str) -> str:
        """A name of torch as this module spells it; what a rule only lists makes no import."""
        return self.unit.fill(name) if self._writes(rule) else name

    def _writes(self, rule: str) -> bool:
        applies = self.unit.settings.advice_apply
        return applies and all_words()[rule].is_written_for(self._target)

    def holds(self, *rules: str) -> bool:
        """Whether any of these is given for the target of this run."""
        return any(all_words()[rule].holds_for(self._target) for rule in rules)

    def suggest(
        self, rule: str, place: ast.AST, replacement: str, *, others: Iterable[ast.AST] = ()
    ) -> None:
        """List a place with what to write instead.

        Parameters
        ----------
        rule
            The piece of advice; says nothing where it does not hold for the target.
        place
            What to show.
        replacement
            What to write.
        others
            Further places that the same advice is given for; their lines are named.
        """
        if self.holds(rule):
            reason = all_words()[rule].reason + self._also(place, others)
            self.unit.note(place, rule, reason, replacement)

    def migrated(self, node: ast.AST) -> str:
        """The source of a node as the other rules leave it."""
        span = self.scopes.span(node)
        inside = [edit for edit in self._edits() if span.contains(edit.span)]
        return after(self.scopes.source.text, span, merged(inside))

    def offer(
        self,
        rule: str,
        span: Span,
        replacement: str,
        edits: Sequence[Edit],
        *,
        kept: Iterable[ast.AST] = (),
    ) -> None:
        """Write a form that is equal as the advice says, where that was asked for; else list it.

        Parameters
        ----------
        rule
            The piece of advice.
        span
            What to show.
        replacement
            What to write.
        edits
            How to write it.
        kept
            Parts of what the edits replace whose `migrated` text they hold: other rules may have changed them.
        """
        if not self.holds(rule):
            return
        writes = self._writes(rule) and not self._is_edited(edits, kept)
        outcome = Outcome.REWRITTEN if writes else Outcome.LISTED
        reason = all_words()[rule].reason
        if writes:
            # All of the change is to be seen, also lines that go.
            ends = [span, *(edit.span for edit in edits)]
            span = Span(min(end.start for end in ends), max(end.end for end in ends))
            replacement = ""
        written = edits if writes else ()
        self.unit.note(span, rule, reason, replacement, outcome=outcome, edits=written)

    def _also(self, place: ast.AST, others: Iterable[ast.AST]) -> str:
        here = self._line(place)
        lines = sorted({self._line(node) for node in others} - {here})
        return f"; also in line {', '.join(map(str, lines))}" if lines else ""

    def _line(self, node: ast.AST) -> int:
        return self.scopes.source.position(self.scopes.span(node).start)[0]

    def _edits(self) -> Iterator[Edit]:
        return (edit for mention in self.unit.mentions for edit in mention.edits)

    def _is_edited(self, edits: Iterable[Edit], kept: Iterable[ast.AST]) -> bool:
        """Whether another rule changes something that these edits replace."""
        replaced = [edit.span for edit in edits if edit.span.start < edit.span.end]
        held = [self.scopes.span(node) for node in kept]
        return any(
            edit.span.start < span.end and span.start < max(edit.span.end, edit.span.start + 1)
            for edit in self._edits()
            for span in replaced
            if not any(part.contains(edit.span) for part in held)
        )
