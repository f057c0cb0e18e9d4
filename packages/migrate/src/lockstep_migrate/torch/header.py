"""The head of a migrated module: imports, and the names that ask for the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence

from lockstep_migrate.engine.arguments import insertion
from lockstep_migrate.engine.scopes import Binding, Bound, ModuleScopes
from lockstep_migrate.engine.statements import (
    imported_names,
    may_be_missing,
    separator,
    start_of,
)
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.torch.helper import (
    HELPER,
    asked_of,
    class_lines,
    helper_class,
    helper_functions,
    imports_of,
    method_lines,
    with_needs,
)

_NAMES = (HELPER, f"{HELPER}_helper", f"migrated_{HELPER}")
_PLACEHOLDER = re.compile(r"\{(type|device|backend|module|torch|accelerator)\}")
_ADDS = "imported for what it adds to torch"
_LINE_REST = re.compile(r"[ \t\f]*;?[ \t\f]*(?:#[^\r\n]*)?(?:\r|\n|\Z)")
_DEVICE_PLACEHOLDERS = ("{type}", "{device}", "{backend}", "{module}")
_VARIABLE = re.compile(r"[A-Z][A-Z\d_]+\Z")
"""The name of an environment variable: what drivers read has to be set before anything is loaded."""
_GUARDED_TORCH = ("try:", "    import torch", "except ImportError:", "    torch = None")
_NEUTRAL = {
    "type": ".device_type()",
    "device": ".device()",
    "backend": ".backend_type()",
    "module": ".module()",
    "accelerator": "",
}
"""What the helper answers to the placeholders of the tables."""


class Header:
    """Collects what a module needs, and writes it once.

    scopes: The module.
    target: The device that it is written for.
    """

    def __init__(self, scopes: ModuleScopes, target: MigrationTarget) -> None:
        self._scopes = scopes
        self._target = target
        self._hidden = "_" if _reads_globals(scopes) else ""
        self._needs_torch = self._needs_import = False
        self._class = helper_class(scopes.tree)
        self._imported = "" if self._class else self._imported_helper()
        self._name = self._class.name if self._class else self._imported or self.free(_NAMES)
        self._torch_binding = self._find_torch()
        self._own_lines: list[str] = []
        self._own_imports: list[str] = []

    def free(self, names: tuple[str, ...]) -> str:
        """The first of some names that the module does not use yet, or a numbered one."""
        return self._scopes.free_name(names, self._hidden)

    def define(self, lines: Sequence[str], *, imports: Iterable[str]) -> None:
        """Add definitions at the head of the module, and the modules that they import."""
        self._own_lines += lines
        self._own_imports += [name for name in imports if name not in self._own_imports]

    def fill(self, template: str) -> str:
        """Fill `{type}`, `{device}`, `{backend}`, `{module}` and `{torch}` in, and remember what that needs.

        A leading `torch.` is spelled as this module spells it.
        """
        if any(word in template for word in _DEVICE_PLACEHOLDERS):
            self._needs_import = bool(self._target.imports)
        self.need_import_for([template])
        if template == "torch" or template.startswith("torch."):
            template = "{torch}" + template[len("torch") :]
        return _PLACEHOLDER.sub(lambda match: self._word(match.group(1)), template)

    def need_import_for(self, names: Iterable[str]) -> None:
        """Remember that one of these new names exists only once the target's own module is imported."""
        roots = (self._target.module, self._target.imports)
        if self._target.imports and any(name.startswith(roots) for name in names):
            self._needs_import = True

    def importable(self, name: str) -> str:
        """The name that an import statement takes; `torch.npu` is no module that could be imported from."""
        module, importable = self._target.module, self._target.importable
        if importable and (name == module or name.startswith(module + ".")):
            return importable + name[len(module) :]
        return name

    def _word(self, word: str) -> str:
        if word == "torch":
            self._needs_torch = True
            return self._torch_name()
        if self._target.device:
            quoted = f'"{self._target.device}"'
            known = {"type": quoted, "device": quoted, "backend": f'"{self._target.backend}"'}
            return self.fill(self._target.module) if word == "module" else known[word]
        return self._name + _NEUTRAL[word]

    @property
    def helper(self) -> str:
        """What the module calls the helper of the neutral target."""
        return self._name

    def can_be_shared(self, edits: Collection[Edit]) -> bool:
        """Whether the helper could come from a module that other files import too."""
        asked = self._asked(edits)
        kept = self._class or self._imported or self._own_lines
        return bool(asked) and not kept and not self._is_optional

    def _asked(self, edits: Collection[Edit]) -> frozenset[str]:
        if self._target.device:
            return frozenset()
        source = self._scopes.source.text
        # What stands before an edit may be the rest of a longer name, such as `torch.accelerator`.
        written = (
            source[max(0, edit.span.start - 1) : edit.span.start] + edit.text for edit in edits
        )
        return asked_of(self._name, [*self._own_lines, *written])

    def additions(self, edits: Collection[Edit], shared: str = "") -> list[Edit]:
        """The edits that add what is missing at the head of the module; none if nothing is.

        `shared`: the module to import the names from that ask for the device; empty where they stand here.
        """
        uses = (edit.span.start for edit in edits if not _VARIABLE.match(edit.text))
        first_use = min(uses, default=len(self._scopes.source.text))
        place = self._place(self._scopes.tree.body, first_use)
        missing = [] if shared or self._imported else self._missing(edits)
        inside, body = self._definitions(missing)
        for module in imports_of(missing):
            self.define((), imports=(module,))
        own = (name for name in self._own_imports if not self._imports_plainly(name, place))
        lines = [f"import {name}" for name in own]
        there = self._has_torch_before(place) or self._needs_no_torch_at_head(first_use)
        local = self._torch_binding is None and self._has_local_torch(missing)
        if (self._needs_torch or missing) and not there and not local:
            # Its own import comes later: to linters this one is another module.
            early = f"import torch.{HELPER}" if self._torch_binding else "import torch"
            lines += _GUARDED_TORCH if self._is_optional else (early,)
        beside, needed = self._import_lines(edits)
        lines += needed
        if shared:
            lines.append(self._shared_import(shared))
        lines += body
        if self._own_lines:
            lines += ["", *self._own_lines] if body else self._own_lines
            body += self._own_lines
        spaced = bool(body) or _GUARDED_TORCH[0] in lines
        head = [self._insertion(lines, place, spaced=spaced)] if lines else []
        return [*beside, *inside, *head]

    def _missing(self, edits: Collection[Edit]) -> list[str]:
        """The functions of the helper that have to be written into the module."""
        there = (
            [
                one.name
                for one in self._class.body
                if isinstance(one, ast.FunctionDef | ast.ClassDef)
            ]
            if self._class
            else []
        )
        return [part for part in with_needs(self._asked(edits)) if part not in there]

    def _definitions(self, missing: Sequence[str]) -> tuple[list[Edit], list[str]]:
        """The functions inside the class that is there already, or the lines of a new one."""
        if not missing:
            return [], []
        lines = [*method_lines(missing, self._name, self._torch_name(), optional=self._is_optional)]
        if self._class is None:
            return [], ["", "", *class_lines(self._name), *lines]
        line_end = self._scopes.source.line_end
        end = self._scopes.span(self._class).end
        return [insertion(end, "".join(line_end + line for line in lines))], []

    def _shared_import(self, shared: str) -> str:
        package = shared.removesuffix(HELPER)
        package = package if package.strip(".") == "" else package.rstrip(".")
        start = f"from {package} " if package else ""
        return f"{start}import {HELPER}" + ("" if self._name == HELPER else f" as {self._name}")

    def _imported_helper(self) -> str:
        """What an import of an earlier run calls the helper; empty where there is none."""
        for bindings in self._scopes.module.bindings.values():
            for binding in bindings:
                if binding.kind is Bound.IMPORT and binding.qualified.split(".")[-1] == HELPER:
                    uses = [self._scopes.parents[use] for use in self._scopes.uses(binding)]
                    names = {getattr(use, "attr", "") for use in uses}
                    if names and names <= set(helper_functions()):
                        return binding.name
        return ""

    def _needs_no_torch_at_head(self, first_use: int) -> bool:
        """Whether the module's own import of torch comes before all that uses it; the helper does so when called."""
        if self._torch_binding is None:
            return False
        return self._scopes.span(self._torch_binding.node).start < first_use

    def _import_lines(self, edits: Collection[Edit]) -> tuple[list[Edit], list[str]]:
        """The import of the target's own module, at the head, or inside the `if` that torch's own is in."""
        module = self._target.imports
        if not self._needs_import or self._imports(module):
            return [], []
        root = module.split(".")[0]
        is_used = any(f"{root}." in edit.text and not self._imports_here(edit) for edit in edits)
        line = f"import {module}" + ("" if is_used else f"  # noqa: F401 ({_ADDS})")
        if not self._is_optional:
            return [], [line]
        torch = self._torch_binding
        statements = [torch.node] if torch else self._lazy_imports
        if any(isinstance(self._scopes.parents[one], ast.Try) for one in statements if torch):
            return [], [f'if globals().get("{self._torch_name()}"):', f"    {line}"]
        return [self._behind(self._scopes.statement(one), line) for one in statements], []

    def _behind(self, statement: ast.stmt, line: str) -> Edit:
        between = separator(self._scopes, statement)
        if "\n" not in between or not self._ends_its_line(statement):
            between, line = "; ", line.partition("  #")[0]
        return insertion(self._scopes.span(statement).end, between + line)

    def _imports_here(self, edit: Edit) -> bool:
        """Whether an edit is of an import statement, which needs no name itself."""
        text = self._scopes.source.text
        line_start = max(text.rfind(end, 0, edit.span.start) for end in "\r\n") + 1
        line = text[line_start : edit.span.start] + edit.text
        return line.lstrip().startswith(("from ", "import "))

    def _has_local_torch(self, missing: Sequence[str]) -> bool:
        """Whether functions import torch for themselves, by that name, and nothing at the top needs it."""
        at_top = missing or self._own_lines
        imports = self._lazy_imports
        plain = (
            isinstance(one, ast.Import) and all(alias.asname is None for alias in one.names)
            for one in imports
        )
        return not at_top and bool(imports) and all(plain)

    @property
    def _lazy_imports(self) -> list[ast.Import | ast.ImportFrom]:
        """Where functions import torch for themselves, in a module that can be imported without it."""
        imports = [
            node
            for node in self._scopes.imports()
            if any(name.split(".")[0] == "torch" for name in imported_names(node))
            and not self._is_for_types_only(node)
        ]
        inside = all(self._scopes.function(node) is not None for node in imports)
        return imports if inside and self._torch_binding is None else []

    def _has_torch_before(self, place: ast.stmt | None) -> bool:
        """Whether torch is imported where the head goes."""
        if self._torch_binding is None or place is None:
            return False
        imported = self._scopes.span(self._torch_binding.node).end
        return imported <= self._scopes.span(place).end

    # -- what is there already

    def _torch_name(self) -> str:
        return self._torch_binding.name if self._torch_binding else "torch"

    @property
    def _is_optional(self) -> bool:
        """Whether the module goes on where torch cannot be imported."""
        binding = self._torch_binding
        if binding is None:
            return bool(self._lazy_imports)
        return may_be_missing(self._scopes, binding.node)

    def _find_torch(self) -> Binding | None:
        for bindings in self._scopes.module.bindings.values():
            for binding in bindings:
                is_torch = binding.kind is Bound.IMPORT and binding.qualified == "torch"
                if is_torch and not self._is_for_types_only(binding.node):
                    return binding
        return None

    def _is_for_types_only(self, statement: ast.AST) -> bool:
        """Whether only type checkers see an import, so that nothing is imported as the script runs."""
        return any(
            isinstance(above, ast.If)
            and self._scopes.name(above.test) in ("typing.TYPE_CHECKING", "TYPE_CHECKING")
            for above in self._scopes.ancestors(statement)
        )

    def _imports(self, module: str) -> bool:
        """Whether the module, or something inside it, is imported at the top."""
        return any(
            name == module or name.startswith(module + ".")
            for statement in self._scopes.tree.body
            for name in imported_names(statement)
        )

    def _imports_plainly(self, module: str, place: ast.stmt | None) -> bool:
        """Whether a top-level `import module` binds that very name where the head goes."""
        return any(
            isinstance(statement, ast.Import)
            and place is not None
            and self._scopes.span(statement).end <= self._scopes.span(place).end
            and any(item.name == module and not item.asname for item in statement.names)
            for statement in self._scopes.tree.body
        )

    # -- where it goes

    def _insertion(self, lines: list[str], place: ast.stmt | None, *, spaced: bool) -> Edit:
        body = self._scopes.tree.body
        line_end = self._scopes.source.line_end
        text = line_end.join(lines)
        if place is None:
            at = start_of(self._scopes, body[0]) if body else 0
            return Edit(Span(at, at), text + line_end + (line_end if spaced else ""))
        at = self._scopes.source.next_line(self._scopes.span(place).end)
        following = self._scopes.source.text[at:]
        tail = ""
        if spaced and following.strip():
            blank = len(re.match(r"(?:[ \t]*(?:\r\n|\r|\n))*", following).group().splitlines())  # type: ignore[union-attr]
            tail = line_end * max(0, 2 - blank)
        start = self._scopes.source.text[:at]
        head = "" if not start or start.endswith(("\n", "\r")) else line_end
        return Edit(Span(at, at), f"{head}{text}{line_end}{tail}")

    def _place(self, body: list[ast.stmt], first_use: int) -> ast.stmt | None:
        """The statement behind which the head is written; `None` for the very start."""
        after: ast.stmt | None = None
        torch_seen = self._torch_binding is None
        torch_node = self._torch_binding.node if self._torch_binding else None
        for number, statement in enumerate(body):
            holds_torch = any(node is torch_node for node in ast.walk(statement))
            leading = number == 0 and _is_docstring(statement)
            heads = _is_import(statement) or self.is_ours(statement)
            if self._scopes.span(statement).end > first_use and not heads:
                break
            alone = self._ends_its_line(statement)
            if leading or heads:
                after = statement if alone else after
            elif torch_seen:
                break
            elif holds_torch:
                after = statement if alone else after
            torch_seen = torch_seen or holds_torch
        return after

    def is_ours(self, statement: ast.AST) -> bool:
        """Whether a statement is of a head that was written before."""
        return statement is self._class

    def is_in_helper(self, node: ast.AST) -> bool:
        """Whether a node stands in the class that an earlier run wrote."""
        return self._class is not None and self._class in self._scopes.ancestors(node)

    def _ends_its_line(self, statement: ast.stmt) -> bool:
        """Whether no other statement follows on the same line."""
        end = self._scopes.span(statement).end
        return bool(_LINE_REST.match(self._scopes.source.text, end))


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _is_import(statement: ast.stmt) -> bool:
    """Whether a statement imports and does nothing else, also behind `try` and `if`."""
    if isinstance(statement, ast.Try):
        return all(_is_import(inner) for inner in statement.body)
    if isinstance(statement, ast.If):
        both = [*statement.body, *statement.orelse]
        return all(_is_import(inner) for inner in both)
    return isinstance(statement, ast.Import | ast.ImportFrom)


def _reads_globals(scopes: ModuleScopes) -> bool:
    """Whether the module takes stock of its own names, as scripts do whose variables are their settings."""
    return any(
        isinstance(node.func, ast.Name)
        and node.func.id in ("globals", "vars", "dir", "locals")
        and not node.args
        for node in scopes.of(ast.Call)
    )
