"""Dotted names and the calls of them: `torch.cuda.is_available()`, `torch.cuda.amp.autocast(True)`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from lockstep_migrate.engine.arguments import (
    ArgumentEdits,
    CannotRewriteError,
    insertion,
    is_constant,
    is_shown,
)
from lockstep_migrate.engine.scopes import Bound, Meaning, ModuleScopes
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.doubles import holds_doubles, reaches_no_device
from lockstep_migrate.torch.imports import Imports, as_optional
from lockstep_migrate.torch.kernels import is_inside_kernel
from lockstep_migrate.torch.table import Action, Entry
from lockstep_migrate.torch.unit import SCRIPTED, Unit

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*\Z")
_LEAVING = (ast.Return, ast.Raise, ast.Continue, ast.Break)
_COLLECTING = ast.Tuple | ast.List | ast.Set | ast.Dict | ast.Subscript
_TYPE_TESTS = frozenset({"isinstance", "issubclass"})


def find_names(unit: Unit) -> None:
    """Claim every chain of names that the tables know, and the imports that bring such names."""
    imports = Imports(unit)
    found = []
    for node in unit.scopes.references():
        if not isinstance(unit.scopes.parents[node], ast.Attribute):
            if unit.is_claimed(node):
                imports.stay(node)
            elif (use := _known(unit, node)) is not None:
                found.append(_Rewriting(unit, imports, use))
    for rewriting in found:
        if rewriting.is_refused():
            imports.stay(rewriting.node)
    for rewriting in found:
        rewriting.claim()
    imports.finish()


@dataclass(frozen=True, slots=True)
class _Use:
    """A chain of names that a table knows.

    node: The part of the chain that the table names.
    first: The chain's first name.
    meaning: What the chain stands for.
    name: The dotted name that the table knows.
    entry: The row.
    """

    node: ast.Name | ast.Attribute
    first: ast.AST
    meaning: Meaning
    name: str
    entry: Entry


def _known(unit: Unit, node: ast.Name | ast.Attribute) -> _Use | None:
    for meaning in unit.scopes.meanings(node):
        name = unit.own.exports.get(meaning.name.lstrip("."), meaning.name)
        if name.startswith("."):
            continue
        found = unit.settings.table.longest(name)
        if found is None:
            continue
        if meaning.assigned and not isinstance(node, ast.Attribute):
            continue  # what is assigned to it was decided there
        if meaning.assigned and _is_torch_itself(node, name):
            meaning = Meaning(name)  # torch under a second name: nothing was decided there
        if meaning.assigned:
            found = found[0], _through_variable(unit, node, found[1], found[0])
            if found[1].action is not Action.LIST:
                continue
        found = found[0], as_optional(unit.scopes, meaning.binding, found[1])
        inner: ast.AST = node
        for _ in range(name.count(".") - found[0].count(".")):
            inner = inner.value if isinstance(inner, ast.Attribute) else inner
        first = node
        while isinstance(first, ast.Attribute):
            first = first.value  # type: ignore[assignment]
        assert isinstance(inner, ast.Name | ast.Attribute)
        if isinstance(inner, ast.Name) and _is_longer(meaning, found[0]) and found[1].action.writes:
            reason = f"no table knows {meaning.name}"
            found = found[0], replace(found[1], action=Action.LIST, becomes="", reason=reason)
        if unit.has_kernels and is_inside_kernel(unit.scopes, node):
            return None  # the kernel is one mention
        if isinstance(inner, ast.Name) and found[0] == "torch":
            return None
        if found[0] == "torch.cuda" == name:
            found = found[0], _asked_by_name(unit, node, found[1])
        return _Use(inner, first, meaning, *found)
    return None


def _is_longer(meaning: Meaning, row: str) -> bool:
    """Whether an import brings something from inside of what a row names, such as a private function of its module."""
    binding = meaning.binding
    imported = binding.qualified if binding and binding.kind is Bound.IMPORT else ""
    return imported.startswith(f"{row}.")


def _is_torch_itself(chain: ast.AST, name: str) -> bool:
    """Whether a chain of some dotted name begins with a variable that is torch: `T = torch`, `T.cuda`."""
    while isinstance(chain, ast.Attribute):
        chain, name = chain.value, name.rpartition(".")[0]
    return name == "torch"


def _through_variable(unit: Unit, node: ast.AST, entry: Entry, name: str) -> Entry:
    """The row for a name that a variable leads to; a listing where the module behind the variable does not serve it."""
    leaf = name.removeprefix("torch.cuda.")
    same = f"{{module}}.{leaf}"
    call = unit.scopes.call_of(node)
    bare = call is not None and not call.args and not call.keywords
    fits = all(step.startswith(("cut=", "most=")) for step in entry.arguments)
    native = unit.target.has_name(same)
    becomes = same if native and entry.becomes == f"{{accelerator}}.{leaf}" else entry.becomes
    plain = not name.startswith("torch.cuda.") or (
        becomes == same and (not entry.arguments or (bare and fits))
    )
    if plain or not (entry.action.writes or entry.action is Action.LIST):
        return replace(entry, action=Action.KEEP)
    reason = f"reached through a variable: {entry.reason}"
    return replace(entry, action=Action.LIST, reason=reason)


def _device_texts(scopes: ModuleScopes, argument: ast.expr) -> list[ast.expr]:
    """The texts of a device in an argument: its own, or that of a `torch.device` made in it."""
    if isinstance(argument, ast.Constant | ast.JoinedStr):
        return [argument]
    if isinstance(argument, ast.Call) and scopes.name(argument.func) == "torch.device":
        return [text for inner in argument.args for text in _device_texts(scopes, inner)]
    return []


def _asked_by_name(unit: Unit, node: ast.AST, entry: Entry) -> Entry:
    """The row for `torch.cuda` itself; a listing in `getattr(torch.cuda, "name")` of what its module does not serve."""
    call = unit.scopes.parents[node]
    if not isinstance(call, ast.Call) or node not in call.args[:1] or len(call.args) < 2:
        return entry
    name = f"torch.cuda.{getattr(call.args[1], 'value', '')}"
    row = unit.settings.table.lookup(name)
    found = row and _through_variable(unit, call, row, name)
    return found if found and found.action is Action.LIST else entry


class _Rewriting:
    """One use on its way to a mention."""

    def __init__(self, unit: Unit, imports: Imports, use: _Use) -> None:
        self._unit = unit
        self._scopes = unit.scopes
        self._imports = imports
        self._use = use
        self._call = self._scopes.call_of(use.node)

    @property
    def node(self) -> ast.AST:
        """The part of the chain that the table names."""
        return self._use.node

    def is_refused(self) -> bool:
        """Whether the arguments are such that no row of the name can be carried out."""
        loads = isinstance(self._use.node.ctx, ast.Load)
        entry: Entry | None = self._use.entry if loads else None
        while entry is not None and entry.action.writes and entry.arguments:
            try:
                self._arguments(entry)
            except CannotRewriteError:
                entry = entry.otherwise
                if entry is None:
                    return True
            else:
                return False
        return False

    def claim(self) -> None:
        """Claim the use as its row says."""
        entry = self._use.entry
        if isinstance(self._use.node.ctx, ast.Store | ast.Del):
            if entry.action is Action.KEEP:
                self._unit.keep(self._use.node, entry.rule, entry.reason)
            elif "on" in entry.arguments and self._is_set_off():
                self._unit.keep(self._use.node, entry.rule, "is off on every other device")
            else:
                self._list(entry.reason if entry.action is Action.LIST else "is assigned to")
            return
        if "numpy" in entry.arguments and not holds_doubles(self._unit, entry, self._call):
            return
        if reaches_no_device(self._unit, entry, self._use.node):
            return
        if self._needs_nothing(entry):
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
            self._rewrite(entry)

    def _is_set_off(self) -> bool:
        statement = self._scopes.statement(self._use.node)
        return isinstance(statement, ast.Assign) and is_constant(statement.value, False)

    def _needs_nothing(self, entry: Entry) -> bool:
        """Keep what a row lists where it only stands for a type, is read or shown, or repeats another row."""
        node = self._use.node
        if entry.action is not Action.LIST:
            return False
        parent = self._scopes.parents[node]
        elsewhere = not entry.name.startswith("torch.") or entry.name.startswith("torch.nn.")
        if elsewhere and self._names_a_type(parent):
            self._unit.keep(node, entry.rule, "only asks for the type")
        elif (
            "called" in entry.arguments
            and isinstance(parent, _COLLECTING)
            and not self._leaves_none(parent)
        ):
            self._unit.keep(node, entry.rule, "is one of several names, and is not called here")
        elif self._goes_with_import(entry):
            self._unit.keep(node, entry.rule, "goes with its import, which is listed")
        elif "used" in entry.arguments and is_shown(self._scopes, self._call or node):
            self._unit.keep(node, entry.rule, f"is only shown: {entry.reason}")
        elif not {"set", "on"}.isdisjoint(entry.arguments):
            self._unit.keep(node, entry.rule, "is only read here, and every device has it")
        else:
            return False
        return True

    def _leaves_none(self, choice: ast.AST) -> bool:
        """Whether these are all of attention's kernels that may be taken, and MATH, which every device has, is not."""
        call = self._scopes.parents[choice]
        chosen = isinstance(call, ast.Call) and self._scopes.name(call.func).endswith(
            ".sdpa_kernel"
        )
        return chosen and "MATH" not in self._unit.text(choice)

    def _goes_with_import(self, entry: Entry) -> bool:
        """Whether a library is listed where this name of it is imported, or no row is for this very name."""
        binding = self._use.meaning.binding
        if binding is None or binding.kind is not Bound.IMPORT or entry.table != "common":
            return False
        row = self._unit.settings.table.lookup(binding.qualified)
        listed = row is not None and row.action is Action.LIST
        of_torch = self._use.name.startswith("torch.")
        named = binding.qualified == self._use.name
        inside = entry.name.endswith(".*") and not self._use.name.startswith("apex.")
        return listed and not of_torch and (named or inside)

    def _list(self, reason: str, *, instead: bool = True) -> None:
        entry = self._use.entry
        wrap = next((step[5:] for step in entry.arguments if step.startswith("wrap=")), "")
        whole = next((step[5:] for step in entry.arguments if step.startswith("call=")), "")
        words = f"{entry.becomes}(...){wrap}" if wrap else whole or entry.becomes
        replacement = self._readable(words)
        if entry.table != "common" and self._guard_turns_true():
            reason += "; its guard is true there"
        replacement = replacement if instead else ""
        self._unit.list(self._use.node, entry.rule, reason, replacement=replacement)
        if self._call is not None and self._use.name.startswith("torch.cuda"):
            # Its arguments stay with it: the old function takes no new device.
            held = [*self._call.args, *(item.value for item in self._call.keywords)]
            for text in (one for part in held for one in _device_texts(self._scopes, part)):
                if "cuda" in self._unit.text(text):
                    self._unit.keep(text, entry.rule, "stays with the function that takes it")
                self._unit.settle(ast.walk(text), self._use.node)

    def _guard_turns_true(self) -> bool:
        """Whether the use stands behind a question that other devices answer as CUDA does."""
        return any(
            self._scopes.name(inner) == "torch.cuda.is_available"
            for test in self._guards()
            for inner in ast.walk(test)
            if isinstance(inner, ast.Attribute | ast.Name)
        )

    def _guards(self) -> Iterator[ast.expr]:
        """What is asked around the use, or before it by an `if` that leaves the block."""
        below: ast.AST = self._use.node
        for above in self._scopes.ancestors(below):
            if isinstance(above, ast.If | ast.IfExp):
                yield above.test
            block = getattr(above, "body", ())
            if isinstance(block, list) and below in block:
                for before in block[: block.index(below)]:
                    if isinstance(before, ast.If) and isinstance(before.body[-1], _LEAVING):
                        yield before.test
            below = above

    def _readable(self, becomes: str) -> str:
        return self._unit.settings.readable(becomes)

    def _rewrite(self, entry: Entry) -> None:
        if "#" in self._unit.text(self._use.node):
            self._list("has a comment inside its name")
            return
        try:
            edits = self._arguments(entry)
        except CannotRewriteError as error:
            as_value = self._call is None and str(error)
            if entry.otherwise is not None and not as_value:
                self._use = replace(self._use, entry=entry.otherwise)
                self.claim()
            else:
                reasons = "; ".join(filter(None, (str(error), entry.reason)))
                self._list(reasons, instead=bool(str(error)))
            return
        if self._use.name.startswith("torch.cuda") and self._unit.decides_a_build(self._use.node):
            self._list("decides whether CUDA sources are compiled")
            return
        if self._unit.is_scripted(self._use.node) and not self._unit.target.device:
            self._list(SCRIPTED)
            return
        in_module = entry.becomes.startswith("{module}")
        if (
            in_module
            and "jit" in self._scopes.source.text
            and self._unit.is_scripted(self._use.node)
        ):
            self._list(
                "is inside a function that TorchScript compiles, which knows this of CUDA alone"
            )
            return
        whole = any(step.startswith("call=") for step in entry.arguments)
        if whole:
            self._imports.move(self._use.meaning.binding, self._use.first)
        else:
            edits += self._name_edits(entry.becomes)
        span = self._scopes.span(self._use.node)
        if self._call is not None and not all(span.contains(edit.span) for edit in edits):
            span = self._scopes.span(self._call)
        similar = entry.action is Action.SIMILAR
        reason = f"risk: similar, not equal; {entry.reason}" if similar else entry.reason
        reason = reason or f"{self._use.name} is {self._readable(entry.becomes)} here"
        differs = similar or entry.action is Action.DIFFERS
        self._unit.rewrite(self._use.node, entry.rule, reason, edits, span=span, differs=differs)
        if whole and self._call is not None:
            self._unit.settle(ast.walk(self._call), self._use.node)

    # -- the arguments

    def _arguments(self, entry: Entry) -> list[Edit]:
        steps = entry.arguments
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
        if all(step.startswith("most=") for step in steps):
            return []  # the fewest arguments suit every device
        if self._is_held_by_partial(parent):
            return ArgumentEdits(self._scopes, parent, self._unit.fill).behind_first(steps)  # type: ignore[arg-type]
        raise CannotRewriteError("is passed on as a value, so the arguments it will get are unseen")

    def _is_held_by_partial(self, parent: ast.AST) -> bool:
        """Whether `functools.partial` holds the function, and every later call gives keywords alone."""
        if (
            not isinstance(parent, ast.Call)
            or self._scopes.name(parent.func) != "functools.partial"
        ):
            return False
        above = self._scopes.parents[parent]
        target = above.targets[0] if isinstance(above, ast.Assign) else None
        if parent.args != [self._use.node] or not isinstance(target, ast.Name):
            return False
        bindings = self._scopes.bindings(target.id, self._scopes.scope(target))
        uses = [use for binding in bindings for use in self._scopes.uses(binding)]
        calls = [self._scopes.call_of(use) for use in uses]
        exported = self._unit.is_requested(target.id)
        return not exported and all(call is not None and not call.args for call in calls)

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
        while isinstance(parent, ast.Tuple | ast.BinOp | ast.Subscript):
            node, parent = parent, self._scopes.parents[parent]
        if isinstance(parent, ast.Call):
            name = parent.func.id if isinstance(parent.func, ast.Name) else ""
            return name in _TYPE_TESTS and node in parent.args[1:]
        return (
            getattr(parent, "annotation", None) is node or getattr(parent, "returns", None) is node
        )

    # -- the name

    def _name_edits(self, becomes: str) -> list[Edit]:
        """Spell the new name: through the import that brings it where that moves along, else from torch."""
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
