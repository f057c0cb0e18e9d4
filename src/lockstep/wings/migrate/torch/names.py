"""Dotted names and the calls of them: `torch.cuda.is_available()`, `torch.cuda.amp.autocast(True)`."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from lockstep.wings.migrate.engine.arguments import ArgumentEdits, CannotRewriteError, insertion
from lockstep.wings.migrate.engine.scopes import Meaning
from lockstep.wings.migrate.plan import Edit, Span
from lockstep.wings.migrate.torch.imports import Imports, as_optional
from lockstep.wings.migrate.torch.kernels import is_inside_kernel
from lockstep.wings.migrate.torch.table import Action, Entry
from lockstep.wings.migrate.torch.unit import SCRIPTED, Unit

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_TYPE_TESTS = frozenset({"isinstance", "issubclass"})


def find_names(unit: Unit) -> None:
    """Claim every chain of names that the tables know, and the imports that bring such names."""
    imports = Imports(unit)
    for node in unit.scopes.references():
        if not isinstance(unit.scopes.parents[node], ast.Attribute):
            use = None if unit.is_claimed(node) else _known(unit, node)
            if use is not None:
                _Rewriting(unit, imports, use).claim()
    imports.finish()


@dataclass(frozen=True, slots=True)
class _Use:
    """A chain of names that a table knows.

    Parameters
    ----------
    node
        The part of the chain that the table names.
    first
        The chain's first name.
    meaning
        What the chain stands for.
    name
        The dotted name that the table knows.
    entry
        The row.
    """

    node: ast.Name | ast.Attribute
    first: ast.AST
    meaning: Meaning
    name: str
    entry: Entry


def _known(unit: Unit, node: ast.Name | ast.Attribute) -> _Use | None:
    for meaning in unit.scopes.meanings(node):
        name = unit.own.exports.get(meaning.name.lstrip("."), meaning.name)
        if meaning.assigned or name.startswith("."):
            continue
        found = unit.settings.table.longest(name)
        if found is None:
            continue
        found = found[0], as_optional(unit.scopes, meaning.binding, found[1])
        inner: ast.AST = node
        for _ in range(name.count(".") - found[0].count(".")):
            inner = inner.value if isinstance(inner, ast.Attribute) else inner
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value  # type: ignore[assignment]
        assert isinstance(inner, ast.Name | ast.Attribute)
        own_name = unit.has_kernels and unit.text(first) != "triton"
        if own_name and is_inside_kernel(unit.scopes, node):
            return None  # the kernel is one mention
        if isinstance(inner, ast.Name) and found[0] == "torch":
            return None
        return _Use(inner, first, meaning, *found)
    return None


class _Rewriting:
    """One use on its way to a mention."""

    def __init__(self, unit: Unit, imports: Imports, use: _Use) -> None:
        self._unit = unit
        self._scopes = unit.scopes
        self._imports = imports
        self._use = use
        self._call = self._scopes.call_of(use.node)

    def claim(self) -> None:
        """Claim the use as its row says."""
        entry = self._use.entry
        if isinstance(self._use.node.ctx, ast.Store | ast.Del):
            if entry.action is not Action.KEEP:
                self._list(entry.reason if entry.action is Action.LIST else "is assigned to")
            return
        pattern = isinstance(self._scopes.parents[self._use.node], ast.MatchValue | ast.MatchClass)
        if pattern and entry.action is not Action.KEEP and not self._unit.target.device:
            self._list("a pattern of a match statement takes no call")
        elif entry.action is Action.KEEP:
            self._unit.keep(self._use.node, entry.rule, entry.reason)
        elif entry.action is Action.LIST or (
            entry.action is Action.SIMILAR and not self._unit.settings.similar
        ):
            self._list(entry.reason)
        else:
            self._rewrite()

    def _list(self, reason: str) -> None:
        entry = self._use.entry
        wrap = next((step[5:] for step in entry.arguments if step.startswith("wrap=")), "")
        replacement = self._readable(f"{entry.becomes}(...){wrap}" if wrap else entry.becomes)
        self._unit.list(self._use.node, entry.rule, reason, replacement=replacement)

    def _readable(self, becomes: str) -> str:
        return self._unit.settings.readable(becomes)

    def _rewrite(self) -> None:
        entry = self._use.entry
        if "#" in self._unit.text(self._use.node):
            self._list("has a comment inside its name")
            return
        try:
            edits = self._arguments()
        except CannotRewriteError as error:
            self._list(f"{error}; {entry.reason}" if entry.reason else str(error))
            return
        if self._unit.builds_extensions and self._use.name.startswith("torch.cuda"):
            self._list("decides in a build script whether CUDA sources are compiled")
            return
        if self._unit.is_scripted(self._use.node) and not self._unit.target.device:
            self._list(SCRIPTED)
            return
        edits += self._name_edits()
        span = self._scopes.span(self._use.node)
        if self._call is not None and not all(span.contains(edit.span) for edit in edits):
            span = self._scopes.span(self._call)
        similar = entry.action is Action.SIMILAR
        reason = f"risk: similar, not equal; {entry.reason}" if similar else entry.reason
        self._unit.rewrite(
            self._use.node, entry.rule, reason or self._default_reason(), edits, span=span
        )

    def _default_reason(self) -> str:
        return f"{self._use.name} is {self._readable(self._use.entry.becomes)} here"

    # -- the arguments

    def _arguments(self) -> list[Edit]:
        steps = self._use.entry.arguments
        if not steps:
            return []
        if self._call is not None:
            return ArgumentEdits(self._scopes, self._call, self._unit.fill).carry_out(steps)
        parent = self._scopes.parents[self._use.node]
        if self._use.node in getattr(parent, "decorator_list", ()):
            return [self._decorator_call(steps)]
        if self._names_a_type(parent):
            if any(step.startswith("wrap=") for step in steps):
                raise CannotRewriteError("tests for a tensor type, which the device may not have")
            return []
        raise CannotRewriteError("is passed on as a value, so the arguments it will get are unseen")

    def _decorator_call(self, steps: tuple[str, ...]) -> Edit:
        added = []
        for step in steps:
            operation, _, text = step.partition("=")
            if operation.startswith("keyword:"):
                added.append(f"{operation.removeprefix('keyword:')}={self._unit.fill(text)}")
            elif operation == "first":
                added.append(self._unit.fill(text))
        return insertion(self._scopes.span(self._use.node).end, f"({', '.join(added)})")

    def _names_a_type(self, parent: ast.AST) -> bool:
        """Whether only the type is meant: an annotation, or the second argument of `isinstance`."""
        node: ast.AST = self._use.node
        if isinstance(parent, ast.Tuple):
            node, parent = parent, self._scopes.parents[parent]
        if isinstance(parent, ast.Call):
            name = parent.func.id if isinstance(parent.func, ast.Name) else ""
            return name in _TYPE_TESTS and node in parent.args[1:]
        return (
            getattr(parent, "annotation", None) is node or getattr(parent, "returns", None) is node
        )

    # -- the name

    def _name_edits(self) -> list[Edit]:
        """Spell the new name: through the import that brings it where that moves along, else from torch."""
        becomes = self._use.entry.becomes
        dotted = becomes.replace("{module}", self._unit.target.module or "{module}")
        binding = self._use.meaning.binding
        if self._is_exported() and _DOTTED.match(dotted):
            return []  # the module that it comes from imports the new one under this name
        stands_for = self._imports.stands_for(binding)
        span = self._scopes.span(self._use.node)
        if stands_for and (dotted == stands_for or dotted.startswith(stands_for + ".")):
            self._unit.header.need_import_for([stands_for])
            first = self._scopes.text(self._use.first)
            return self._unless_same(span, first + dotted[len(stands_for) :])
        if _DOTTED.match(dotted) and not dotted.startswith(("torch.", "torch_")):
            raise AssertionError(f"{dotted}: tables write names of torch or of a device's package")
        if binding is not None and binding.qualified != "torch":
            self._imports.move(binding, self._use.first)
        return self._unless_same(span, self._unit.fill(becomes))

    def _is_exported(self) -> bool:
        return self._use.meaning.name.lstrip(".") in self._unit.own.exports

    def _unless_same(self, span: Span, text: str) -> list[Edit]:
        """Replace the name's changed tail only."""
        old = self._scopes.source.text[span.start : span.end]
        if old == text:
            return []
        shared = 0
        while shared < min(len(old), len(text)) and old[shared] == text[shared]:
            shared += 1
        shared = old[:shared].rfind(".") + 1
        return [Edit(Span(span.start + shared, span.end), text[shared:])]
