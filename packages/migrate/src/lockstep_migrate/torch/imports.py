"""Imports of names that move: rewritten, split or removed, so that nothing is imported that is gone or not used."""

from __future__ import annotations

import ast
import enum
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from lockstep_migrate.engine.arguments import insertion
from lockstep_migrate.engine.scopes import Binding, Bound, ModuleScopes
from lockstep_migrate.engine.statements import (
    deletion,
    is_exported,
    may_be_missing,
    separator,
    siblings,
    without_names,
)
from lockstep_migrate.plan import Edit, Outcome, Span
from lockstep_migrate.torch.table import Action, Entry
from lockstep_migrate.torch.unit import Unit

_OPTIONAL = "is optional here: the script goes on without it as its except says"
"""Why a use of a library is left alone."""

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z")
_FROM = re.compile(r"from(\s+)([\w.]+)")


class _Fate(enum.Enum):
    """What becomes of one imported name."""

    STAYS = "stays"
    ELSEWHERE = "imported from elsewhere"
    ROOT = "the root alone is imported"
    GONE = "no longer imported"


@dataclass(slots=True)
class _Brought:
    """What one import brings, and what became of its uses."""

    binding: Binding
    statement: ast.Import | ast.ImportFrom
    entry: Entry | None
    new_name: str
    """The dotted name to import instead; empty where uses are rewritten one by one."""
    moved: set[ast.AST] = field(default_factory=set)
    """Uses that no longer need this import."""
    fate: _Fate = _Fate.STAYS

    @property
    def is_renamed(self) -> bool:
        return self.entry is not None and self.entry.action.writes


class Imports:
    """The imports of a module that bring names which the tables know.

    unit: The module.
    """

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._brought: dict[Binding, _Brought] = {}
        for node in unit.scopes.imports():
            if not unit.is_claimed(node):
                self._read(node)

    def stands_for(self, binding: Binding | None) -> str:
        """The new dotted name that a binding will stand for; empty where it stays what it is."""
        brought = self._brought.get(binding) if binding else None
        return brought.new_name if brought else ""

    def stay(self, use: ast.AST) -> None:
        """Say that a use is listed, so that the import it comes by keeps what it brings; others are spelled out."""
        for meaning in self._unit.scopes.meanings(use) if isinstance(use, ast.Name) else ():
            brought = self._brought.get(meaning.binding) if meaning.binding else None
            if brought is not None and not meaning.assigned:
                brought.new_name = ""

    def move(self, binding: Binding | None, name: ast.AST) -> None:
        """Say that a use, by its first name, was rewritten to something that does not need this import."""
        if binding in self._brought:
            self._brought[binding].moved.add(name)

    def finish(self) -> None:
        """Claim the import statements, now that their uses are decided."""
        by_statement: dict[ast.Import | ast.ImportFrom, list[_Brought]] = defaultdict(list)
        for brought in self._brought.values():
            brought.fate = self._fate(brought)
            by_statement[brought.statement].append(brought)
        gone = {
            statement
            for statement, names in by_statement.items()
            if all(name.fate is _Fate.GONE for name in names) and len(names) == len(statement.names)
        }
        for statement, names in by_statement.items():
            block = siblings(self._unit.scopes, statement)
            last = block[-1] is statement and all(other in gone for other in block)
            _Statement(self._unit, statement, names, empties=last).claim()

    # -- reading

    def _read(self, node: ast.Import | ast.ImportFrom) -> None:
        scope = self._unit.scopes.scope(node)
        for bindings in list(scope.bindings.values()):
            for binding in bindings:
                if binding.node is node and binding.kind is Bound.IMPORT:
                    self._add(binding, node)

    def _add(self, binding: Binding, node: ast.Import | ast.ImportFrom) -> None:
        qualified = self._full_name(binding, node)
        entry = self._unit.settings.table.lookup(qualified)
        entry = entry and as_optional(self._unit.scopes, binding, entry)
        new_name = ""
        whole = entry and any(step.startswith("call=") for step in entry.arguments)
        if entry and entry.action.writes and not whole and not _binds_root(binding):
            filled = entry.becomes.replace("{module}", self._unit.target.module or "{module}")
            new_name = filled if _DOTTED.match(filled) else ""
            if new_name == qualified:  # only the arguments of calls change
                entry = replace(entry, action=Action.KEEP)
        self._brought[binding] = _Brought(binding, node, entry, new_name)

    def _full_name(self, binding: Binding, node: ast.AST) -> str:
        """`import torch.cuda` binds `torch` and yet names `torch.cuda`."""
        if isinstance(node, ast.Import) and binding.alias and not binding.alias.asname:
            return binding.alias.name
        return binding.qualified

    # -- deciding

    def _fate(self, brought: _Brought) -> _Fate:
        uses = self._unit.scopes.uses(brought.binding)
        staying = [use for use in uses if use not in brought.moved]
        unused = bool(uses) and not staying and not self._is_exported(brought.binding)
        if brought.new_name and brought.is_renamed:
            return _Fate.GONE if unused else _Fate.ELSEWHERE
        if _binds_root(brought.binding):
            return self._root_fate(brought, staying)
        return _Fate.GONE if unused else _Fate.STAYS

    def _root_fate(self, brought: _Brought, staying: list[ast.Name]) -> _Fate:
        """What becomes of `import a.b`, which binds `a`."""
        name = self._full_name(brought.binding, brought.statement)
        if name == "torch":
            return _Fate.STAYS
        if name.startswith("torch."):
            if not brought.is_renamed:
                return _Fate.STAYS
            scope = self._unit.scopes.scope(brought.statement)
            others = [b for b in scope.bindings["torch"] if b is not brought.binding]
            kept = [b for b in others if not self._is_renamed_root(b)]
            first = [b for b in scope.bindings["torch"] if self._is_renamed_root(b)][:1]
            return _Fate.ROOT if not kept and first == [brought.binding] else _Fate.GONE
        gone = bool(brought.moved) and not staying and not self._is_exported(brought.binding)
        return _Fate.GONE if gone else _Fate.STAYS

    def _is_renamed_root(self, binding: Binding) -> bool:
        brought = self._brought.get(binding)
        return (
            brought is not None
            and brought.is_renamed
            and _binds_root(binding)
            and binding.alias is not None
            and binding.alias.name != "torch"
        )

    def _is_exported(self, binding: Binding) -> bool:
        """Whether other modules may import the name from here."""
        name = binding.name
        return is_exported(self._unit.scopes, name) or self._unit.is_requested(name)


def as_optional(scopes: ModuleScopes, binding: Binding | None, entry: Entry) -> Entry:
    """The row for a use of a library; kept where the script has a way of its own to go on without it."""
    if binding is None or binding.kind is not Bound.IMPORT or entry.action is Action.KEEP:
        return entry
    around = scopes.parents.get(binding.node)
    if not isinstance(around, ast.Try) or binding.qualified.startswith("torch"):
        return entry
    inner = [node for handler in around.handlers for node in ast.walk(handler)]
    instead = any(isinstance(node, ast.Assign | ast.Import | ast.ImportFrom) for node in inner)
    apart = instead or binding.qualified.startswith("apex")
    if not apart or not may_be_missing(scopes, binding.node):
        return entry
    return replace(entry, action=Action.KEEP, reason=_OPTIONAL)


def _binds_root(binding: Binding) -> bool:
    alias = binding.alias
    return isinstance(binding.node, ast.Import) and alias is not None and alias.asname is None


class _Statement:
    """One import statement being rewritten."""

    def __init__(
        self,
        unit: Unit,
        statement: ast.Import | ast.ImportFrom,
        names: list[_Brought],
        *,
        empties: bool,
    ) -> None:
        self._unit = unit
        self._empties = empties
        """Whether its block would have nothing left."""
        self._scopes = unit.scopes
        self._statement = statement
        self._names = {name.binding.alias: name for name in names if name.binding.alias}

    def claim(self) -> None:
        """Claim every name of the statement that the tables know or whose uses moved."""
        edits = self._edits()
        first = True
        for alias, name in self._names.items():
            entry = name.entry
            if name.fate is not _Fate.STAYS:
                self._unit.claim(
                    alias,
                    entry.rule if entry else "imports/unused",
                    Outcome.REWRITTEN,
                    (entry.reason if entry else "") or self._reason(name),
                    span=self._scopes.span(self._statement),
                    edits=edits if first else (),
                )
                first = False
            elif entry is not None:
                self._claim_staying(alias, name.binding, entry)

    def _reason(self, name: _Brought) -> str:
        if name.fate is _Fate.GONE:
            return "nothing in this module uses it any more"
        return f"{name.binding.qualified} is {name.new_name or 'torch'} here"

    def _claim_staying(self, alias: ast.alias, binding: Binding, entry: Entry) -> None:
        span = Span(self._scopes.span(self._statement).start, self._scopes.span(alias).end)
        if "placed" in entry.arguments:
            return  # each use says whether it comes to the device
        of_torch = entry.name.startswith("torch.") and isinstance(self._statement, ast.ImportFrom)
        used = of_torch and entry.action is Action.LIST and self._scopes.uses(binding)
        if used or "called" in entry.arguments:
            reason = "what is called of it is decided at each call"
            self._unit.keep(alias, entry.rule, reason, span=span)
        elif entry.action is Action.LIST and self._is_listed_before(entry):
            reason = "goes with the import before it, which is listed"
            self._unit.keep(alias, entry.rule, reason, span=span)
        elif entry.action is Action.KEEP:
            self._unit.keep(alias, entry.rule, entry.reason, span=span)
        elif entry.action in (Action.LIST, Action.SIMILAR):
            replacement = self._unit.settings.readable(entry.becomes)
            self._unit.list(alias, entry.rule, entry.reason, replacement=replacement, span=span)
        elif self._is_listed_at_use(binding):
            reason = "stays imported for its uses that are listed"
            self._unit.keep(alias, entry.rule, reason, span=span)
        elif not _binds_root(binding) or alias.name != "torch":
            reason = "stays imported: not every use could be rewritten, or other modules import it"
            replacement = self._unit.settings.readable(entry.becomes)
            self._unit.list(alias, entry.rule, reason, replacement=replacement, span=span)

    def _is_listed_at_use(self, binding: Binding) -> bool:
        """Whether a use of what is imported is listed, so that its reason has been told."""
        for use in self._scopes.uses(binding):
            for node in (use, *self._scopes.ancestors(use)):
                mention = self._unit.mention_of(node)
                if mention or not isinstance(node, ast.Name | ast.Attribute):
                    if mention and mention.outcome is Outcome.LISTED:
                        return True
                    break
        return False

    def _is_listed_before(self, entry: Entry) -> bool:
        """Whether an import before this one in its block is listed for the same reason."""
        block = siblings(self._scopes, self._statement)
        names = (
            alias
            for before in block[: block.index(self._statement) + 1]
            if isinstance(before, ast.Import | ast.ImportFrom)
            for alias in before.names
        )
        known = (self._unit.mention_of(alias) for alias in names)
        return any(
            one and one.outcome is Outcome.LISTED and one.reason == entry.reason for one in known
        )

    # -- edits

    def _edits(self) -> list[Edit]:
        changed = {
            alias: name for alias, name in self._names.items() if name.fate is not _Fate.STAYS
        }
        if not changed:
            return []
        if self._unit.target.imports:
            self._unit.header.need_import_for([name.new_name for name in changed.values()])
        staying = [alias for alias in self._statement.names if alias not in changed]
        new = [text for alias, name in changed.items() if (text := self._line(alias, name))]
        if not staying:
            in_place = self._in_place(changed)
            return in_place if in_place else self._replacement(new)
        edits = [*without_names(self._scopes, self._statement, changed).values()]
        if new:
            between = separator(self._scopes, self._statement)
            at = self._scopes.span(self._statement).end
            edits.append(insertion(at, "".join(between + text for text in new)))
        return edits

    def _line(self, alias: ast.alias, name: _Brought) -> str:
        """The statement that imports a moved name."""
        if name.fate is _Fate.ROOT:
            return "import torch"
        if name.fate is not _Fate.ELSEWHERE:
            return ""
        module, leaf, bound = self._new_parts(alias, name)
        suffix = "" if bound == leaf else f" as {bound}"
        if isinstance(self._statement, ast.Import):
            return f"import {module}.{leaf} as {bound}"
        return f"from {module} import {leaf}{suffix}"

    def _new_parts(self, alias: ast.alias, name: _Brought) -> tuple[str, str, str]:
        importable = self._unit.header.importable(name.new_name)
        module, _, leaf = importable.rpartition(".")
        return module, leaf, alias.asname or alias.name.split(".")[-1]

    def _in_place(self, changed: dict[ast.alias, _Brought]) -> list[Edit]:
        """Edits of the module's name and of single names, where all names move to one module."""
        if not isinstance(self._statement, ast.ImportFrom):
            return []
        if any(name.fate is not _Fate.ELSEWHERE for name in changed.values()):
            return []
        parts = {alias: self._new_parts(alias, name) for alias, name in changed.items()}
        modules = {module for module, _, _ in parts.values()}
        span = self._scopes.span(self._statement)
        match = _FROM.match(self._scopes.source.text, span.start)
        if len(modules) != 1 or not match or match.group(2) != self._statement.module:
            return []
        edits = [Edit(Span(match.start(2), match.end(2)), modules.pop())]
        for alias, (_, leaf, bound) in parts.items():
            text = leaf if leaf == bound and not alias.asname else f"{leaf} as {bound}"
            if text != self._scopes.text(alias):
                edits.append(Edit(self._scopes.span(alias), text))
        return edits

    def _replacement(self, lines: list[str]) -> list[Edit]:
        span = self._scopes.span(self._statement)
        if lines:
            return [Edit(span, separator(self._scopes, self._statement).join(lines))]
        return [deletion(self._scopes, self._statement, empties=self._empties)]
