"""Imports of names that move: rewritten, split or removed, so that nothing is imported that is gone or not used."""

from __future__ import annotations

import ast
import enum
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace

from lockstep.wings.migrate.engine.scopes import Binding, Bound, ModuleScopes
from lockstep.wings.migrate.engine.unit import Unit
from lockstep.wings.migrate.plan import Edit, Outcome, Span
from lockstep.wings.migrate.torch.table import Action, Entry

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+\Z")
_FROM = re.compile(r"from(\s+)([\w.]+)")


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
    touched: bool = False


class _Move(enum.Enum):
    """What becomes of one imported name."""

    STAYS = "stays"
    ELSEWHERE = "imported from elsewhere"
    ROOT = "the root alone is imported"
    GONE = "no longer imported"


@dataclass(frozen=True, slots=True)
class _Fate:
    brought: _Brought
    move: _Move


class Imports:
    """The imports of a module that bring names which the tables know.

    Parameters
    ----------
    unit
        The module.
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

    def touch(self, binding: Binding | None) -> None:
        """Say that a use of this import was rewritten."""
        if binding in self._brought:
            self._brought[binding].touched = True

    def move(self, binding: Binding | None, name: ast.AST) -> None:
        """Say that a use, by its first name, was rewritten to something that does not need this import."""
        if binding in self._brought:
            self._brought[binding].moved.add(name)

    def finish(self) -> None:
        """Claim the import statements, now that their uses are decided."""
        by_statement: dict[ast.stmt, list[_Fate]] = defaultdict(list)
        for brought in self._brought.values():
            by_statement[brought.statement].append(self._fate(brought))
        gone = {
            statement
            for statement, fates in by_statement.items()
            if all(fate.move is _Move.GONE for fate in fates) and len(fates) == _count(statement)
        }
        for statement, fates in by_statement.items():
            block = _block(self._unit.scopes.parents[statement], statement)
            last = block[-1] is statement and all(other in gone for other in block)
            _Statement(self._unit, statement, fates, empties=last).claim()

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
        if entry and entry.action is Action.RENAME and not _binds_root(binding):
            filled = entry.becomes.replace("{module}", self._unit.target.module or "{module}")
            new_name = filled if _DOTTED.match(filled) else ""
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
        if brought.new_name:
            return _Fate(brought, _Move.GONE if unused else _Move.ELSEWHERE)
        if _binds_root(brought.binding):
            return _Fate(brought, self._root_move(brought, staying))
        if unused:
            return _Fate(brought, _Move.GONE)
        return _Fate(brought, _Move.STAYS)

    def _root_move(self, brought: _Brought, staying: list[ast.Name]) -> _Move:
        """What becomes of `import a.b`, which binds `a`."""
        name = self._full_name(brought.binding, brought.statement)
        if name == "torch":
            return _Move.STAYS
        if name.startswith("torch."):
            gone = brought.entry is not None and brought.entry.action is Action.RENAME
            if not gone:
                return _Move.STAYS
            scope = self._unit.scopes.scope(brought.statement)
            others = [b for b in scope.bindings["torch"] if b is not brought.binding]
            kept = [b for b in others if not self._is_renamed_root(b)]
            first = [b for b in scope.bindings["torch"] if self._is_renamed_root(b)][:1]
            return _Move.ROOT if not kept and first == [brought.binding] else _Move.GONE
        gone = bool(brought.moved) and not staying and not self._is_exported(brought.binding)
        return _Move.GONE if gone else _Move.STAYS

    def _is_renamed_root(self, binding: Binding) -> bool:
        brought = self._brought.get(binding)
        return (
            brought is not None
            and brought.entry is not None
            and brought.entry.action is Action.RENAME
            and _binds_root(binding)
            and binding.alias is not None
            and binding.alias.name != "torch"
        )

    def _is_exported(self, binding: Binding) -> bool:
        """Whether other modules may import the name from here."""
        exported = self._unit.scopes.module.bindings.get("__all__", [])
        names = {
            inner.value
            for item in exported
            if item.value is not None
            for inner in ast.walk(item.value)
            if isinstance(inner, ast.Constant)
        }
        return binding.name in names or self._unit.is_requested(binding.name)


def as_optional(scopes: ModuleScopes, binding: Binding | None, entry: Entry) -> Entry:
    """The row for a use of apex; a listing where the script has a way of its own to go on without apex."""
    if binding is None or not binding.qualified.startswith("apex") or entry.action is Action.KEEP:
        return entry
    parent = scopes.parents.get(binding.node)
    if not isinstance(parent, ast.Try) or binding.node not in parent.body:
        return entry
    raises = any(
        isinstance(inner, ast.Raise) for handler in parent.handlers for inner in ast.walk(handler)
    )
    if raises:
        return entry
    reason = "apex is optional here: the script goes on without it as its except says"
    return replace(entry, action=Action.LIST, reason=reason)


def _binds_root(binding: Binding) -> bool:
    alias = binding.alias
    return isinstance(binding.node, ast.Import) and alias is not None and alias.asname is None


class _Statement:
    """One import statement being rewritten."""

    def __init__(
        self, unit: Unit, statement: ast.stmt, fates: list[_Fate], *, empties: bool
    ) -> None:
        self._unit = unit
        self._empties = empties
        """Whether its block would have nothing left."""
        self._scopes = unit.scopes
        assert isinstance(statement, ast.Import | ast.ImportFrom)
        self._statement = statement
        self._fates = {
            fate.brought.binding.alias: fate for fate in fates if fate.brought.binding.alias
        }

    def claim(self) -> None:
        """Claim every name of the statement that the tables know or whose uses moved."""
        edits = self._edits()
        first = True
        for alias, fate in self._fates.items():
            entry = fate.brought.entry
            if fate.move is not _Move.STAYS:
                self._unit.claim(
                    alias,
                    entry.rule if entry else "imports/unused",
                    Outcome.REWRITTEN,
                    (entry.reason if entry else "") or self._reason(fate),
                    span=self._scopes.span(self._statement),
                    edits=edits if first else (),
                )
                first = False
            elif entry is not None:
                self._claim_staying(alias, entry)

    def _reason(self, fate: _Fate) -> str:
        if fate.move is _Move.GONE:
            return "nothing in this module uses it any more"
        return f"{fate.brought.binding.qualified} is {fate.brought.new_name or 'torch'} here"

    def _claim_staying(self, alias: ast.alias, entry: Entry) -> None:
        span = Span(self._scopes.span(self._statement).start, self._scopes.span(alias).end)
        if entry.action is Action.KEEP:
            self._unit.keep(alias, entry.rule, entry.reason, span=span)
        elif entry.action in (Action.LIST, Action.SIMILAR):
            replacement = self._unit.settings.readable(entry.becomes)
            self._unit.list(alias, entry.rule, entry.reason, replacement=replacement, span=span)
        elif not _binds_root_alias(self._statement, alias) or alias.name != "torch":
            reason = "stays imported: not every use could be rewritten, or other modules import it"
            self._unit.list(
                alias, entry.rule, reason, replacement=self._unit.settings.readable(entry.becomes)
            )

    # -- edits

    def _edits(self) -> list[Edit]:
        changed = {
            alias: fate for alias, fate in self._fates.items() if fate.move is not _Move.STAYS
        }
        if not changed:
            return []
        if self._unit.target.imports:
            self._unit.header.need_import_for([fate.brought.new_name for fate in changed.values()])
        staying = [alias for alias in self._statement.names if alias not in changed]
        new = [text for alias, fate in changed.items() if (text := self._line(alias, fate))]
        if not staying:
            in_place = self._in_place(changed)
            return in_place if in_place else self._replacement(new)
        edits = self._removals(changed)
        if new:
            at = self._scopes.span(self._statement).end
            edits.append(Edit(Span(at, at), "".join(self._separator() + text for text in new)))
        return edits

    def _line(self, alias: ast.alias, fate: _Fate) -> str:
        """The statement that imports a moved name."""
        if fate.move is _Move.ROOT:
            return "import torch"
        if fate.move is not _Move.ELSEWHERE:
            return ""
        module, leaf, bound = self._new_parts(alias, fate)
        suffix = "" if bound == leaf else f" as {bound}"
        if isinstance(self._statement, ast.Import):
            return f"import {module}.{leaf} as {bound}"
        return f"from {module} import {leaf}{suffix}"

    def _new_parts(self, alias: ast.alias, fate: _Fate) -> tuple[str, str, str]:
        importable = self._unit.header.importable(fate.brought.new_name)
        module, _, leaf = importable.rpartition(".")
        return module, leaf, alias.asname or alias.name.split(".")[-1]

    def _in_place(self, changed: dict[ast.alias, _Fate]) -> list[Edit]:
        """Edits of the module's name and of single names, where all names move to one module."""
        if not isinstance(self._statement, ast.ImportFrom):
            return []
        if any(fate.move is not _Move.ELSEWHERE for fate in changed.values()):
            return []
        parts = {alias: self._new_parts(alias, fate) for alias, fate in changed.items()}
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
            return [Edit(span, self._separator().join(lines))]
        return [self._deletion(span)]

    def _deletion(self, span: Span) -> Edit:
        """Remove the statement: its lines where it stands alone on them, else `pass` in its place."""
        text = self._scopes.source.text
        line_start = max(text.rfind("\n", 0, span.start), text.rfind("\r", 0, span.start)) + 1
        alone = not text[line_start : span.start].strip()
        rest = re.compile(r"[ \t]*(#[^\r\n]*)?(\r\n|\r|\n|\Z)").match(text, span.end)
        if alone and rest and not self._empties:
            return Edit(Span(line_start, rest.end()), "")
        return Edit(span, "pass")

    def _removals(self, changed: dict[ast.alias, _Fate]) -> list[Edit]:
        names = self._statement.names
        edits = []
        for number, alias in enumerate(names):
            if alias not in changed:
                continue
            span = self._scopes.span(alias)
            if any(later not in changed for later in names[number + 1 :]):
                edits.append(Edit(Span(span.start, self._scopes.span(names[number + 1]).start), ""))
            else:
                edits.append(Edit(Span(self._scopes.span(names[number - 1]).end, span.end), ""))
        return edits

    def _separator(self) -> str:
        """What stands between two statements here: a line end and the indentation, or a semicolon."""
        text, start = self._scopes.source.text, self._scopes.span(self._statement).start
        line_start = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
        indentation = text[line_start:start]
        if indentation.strip():
            return "; "
        return self._scopes.source.line_end + indentation


def _binds_root_alias(statement: ast.stmt, alias: ast.alias) -> bool:
    return isinstance(statement, ast.Import) and alias.asname is None


def _count(statement: ast.stmt) -> int:
    assert isinstance(statement, ast.Import | ast.ImportFrom)
    return len(statement.names)


def _block(parent: ast.AST, statement: ast.stmt) -> list[ast.stmt]:
    for name in ("body", "orelse", "finalbody", "handlers"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return [statement]
