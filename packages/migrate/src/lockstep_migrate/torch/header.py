"""The head of a migrated module: imports, and the names that ask for the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Sequence

from lockstep_migrate.engine.arguments import insertion
from lockstep_migrate.engine.scopes import Binding, Bound, ModuleScopes
from lockstep_migrate.engine.statements import (
    documented_function,
    imported_names,
    may_be_missing,
    separator,
    start_of,
)
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Edit, Span

_TYPE_NAMES = ("ACCELERATOR", "ACCELERATOR_TYPE", "MIGRATED_ACCELERATOR")
_DEVICE_NAMES = ("accelerator", "accelerator_device", "migrated_accelerator")
SHARED = "accelerator"
"""What the module is called that holds the head for several files."""

DEVICE_DOC = "Name this machine's accelerator as a device, or the CPU where there is none."
_TYPE_LINE = (
    '{type_name} = getattr({torch}.accelerator.current_accelerator(), "type", "cuda"){or_absent}'
)
_DEVICE_LINES = (
    "",
    "",
    "def {device_name}(index=None):",
    f'    """{DEVICE_DOC}"""',
    '    device = f"{{{type_name}}}:{{index}}" if str(index).isdigit() else index or {type_name}',
    '    return device if device is index or {and_there}{torch}.accelerator.is_available() else "cpu"',
)
_PLACEHOLDER = re.compile(r"\{(type|device|backend|module|torch)\}")
_ADDS = "imported for what it adds to torch"
_LINE_REST = re.compile(r"[ \t\f]*;?[ \t\f]*(?:#[^\r\n]*)?(?:\r|\n|\Z)")
_DEVICE_PLACEHOLDERS = ("{type}", "{device}", "{backend}", "{module}")
_GUARDED_TORCH = ("try:", "    import torch", "except ImportError:", "    torch = None")
_PLAIN = {"torch": "torch", "type_name": _TYPE_NAMES[0], "device_name": _DEVICE_NAMES[0]}
_BACKEND = "{torch}.distributed.get_default_backend_for_device"


class Header:
    """Collects what a module needs, and writes it once.

    Parameters
    ----------
    scopes
        The module.
    target
        The device that it is written for.
    """

    def __init__(self, scopes: ModuleScopes, target: MigrationTarget) -> None:
        self._scopes = scopes
        self._target = target
        self._hidden = "_" if _reads_globals(scopes) else ""
        self._names_type = False
        """Whether the module's own code names the type; the function alone does so by itself."""
        self._needs_torch = self._needs_type = self._needs_device = self._needs_import = False
        written = documented_function(scopes, DEVICE_DOC)
        existing_type = self._existing_type() or self._shared_name(_TYPE_NAMES[0])
        existing_device = written.name if written else self._shared_name(_DEVICE_NAMES[0])
        self._has_type = bool(existing_type)
        self._type_name = existing_type or self.free(_TYPE_NAMES)
        self._has_device = bool(existing_device)
        self._device_name = existing_device or self.free(_DEVICE_NAMES)
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
        return self._neutral_word(word)

    def _neutral_word(self, word: str) -> str:
        self._needs_type = True
        self._names_type |= word != "device"
        if word == "type":
            return self._type_name
        if word == "module":
            return self.fill("{torch}.get_device_module({type})")
        if word == "backend":
            return self.fill(_BACKEND + "({type})")
        self._needs_device = True
        return f"{self._device_name}()"

    def device_at(self, index: str) -> str:
        """An expression for the device of an index, which is given as source."""
        self._neutral_word("device")
        return f"{self._device_name}({index})"

    @property
    def device_function(self) -> str:
        """The name of the neutral target's function that places things."""
        self._neutral_word("device")
        return self._device_name

    @property
    def can_be_shared(self) -> bool:
        """Whether the names that ask for the device could come from a module that other files import too."""
        missing = (self._needs_type and not self._has_type) or (
            self._needs_device and not self._has_device
        )
        return missing and not self._own_lines and not self._is_optional

    def additions(self, edits: Collection[Edit], shared: str = "") -> list[Edit]:
        """The edits that add what is missing at the head of the module; none if nothing is.

        Parameters
        ----------
        edits
            All other edits of the module: the head goes before the first.
        shared
            The module to import the names from that ask for the device; empty where they stand here.
        """
        first_use = min((edit.span.start for edit in edits), default=len(self._scopes.source.text))
        place = self._place(self._scopes.tree.body, first_use)
        own = (name for name in self._own_imports if not self._imports_plainly(name, place))
        lines = [f"import {name}" for name in own]
        defines = not shared and self._needs_type and not self._has_type
        there = self._has_torch_before(place) or self._needs_no_torch_at_head(first_use, defines)
        local = self._torch_binding is None and self._has_local_torch()
        if (self._needs_torch or defines) and not there and not local:
            lines += _GUARDED_TORCH if self._is_optional else ("import torch",)
        beside, needed = self._import_lines(edits)
        lines += needed
        body = [] if shared else self._definitions()
        if shared:
            lines.append(self._shared_import(shared))
        lines += body
        if self._own_lines:
            lines += ["", *self._own_lines] if self._needs_device and body else self._own_lines
            body += self._own_lines
        spaced = bool(body) or _GUARDED_TORCH[0] in lines
        return [*beside, *([self._insertion(lines, place, spaced=spaced)] if lines else [])]

    def _definitions(self) -> list[str]:
        """The lines that define what asks for the device."""
        words = {
            "torch": self._torch_name(),
            "type_name": self._type_name,
            "device_name": self._device_name,
            "or_absent": "",
            "and_there": "",
        }
        if self._is_optional:
            there = f'globals().get("{words["torch"]}")'
            words |= {"or_absent": f' if {there} else "cuda"', "and_there": f"{there} and "}
        lines = ["", _TYPE_LINE] if self._needs_type and not self._has_type else []
        lines += _DEVICE_LINES if self._needs_device and not self._has_device else ()
        return [line.format(**words) for line in lines]

    def _shared_import(self, shared: str) -> str:
        wanted = (
            (self._names_type and not self._has_type, _TYPE_NAMES[0], self._type_name),
            (self._needs_device and not self._has_device, _DEVICE_NAMES[0], self._device_name),
        )
        names = [
            name if name == own else f"{name} as {own}" for needed, name, own in wanted if needed
        ]
        return f"from {shared} import {', '.join(names)}"

    def _shared_name(self, name: str) -> str:
        """What an import of an earlier run calls something of the shared head; empty where there is none."""
        for statement in self._scopes.tree.body:
            if isinstance(statement, ast.ImportFrom) and statement.module:
                found = [alias for alias in statement.names if alias.name == name]
                if found and statement.module.split(".")[-1] == SHARED:
                    return found[0].asname or name
        return ""

    def _needs_no_torch_at_head(self, first_use: int, defines: bool) -> bool:
        """Whether the module's own import of torch comes before all that uses it."""
        if self._torch_binding is None or defines:
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

    def _has_local_torch(self) -> bool:
        """Whether functions import torch for themselves, by that name, and nothing at the top needs it."""
        at_top = self._needs_type or self._own_lines
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

    def _existing_type(self) -> str | None:
        for statement in self._scopes.tree.body:
            if (
                isinstance(statement, ast.Assign)
                and isinstance(statement.targets[0], ast.Name)
                and is_type_expression(self._scopes, statement.value)
            ):
                return statement.targets[0].id
        return None

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
        wide = self._needs_device or self._own_lines
        if spaced and following.strip():
            blank = len(re.match(r"(?:[ \t]*(?:\r\n|\r|\n))*", following).group().splitlines())  # type: ignore[union-attr]
            tail = line_end * max(0, (2 if wide else 1) - blank)
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

    def is_ours(self, statement: ast.stmt) -> bool:
        """Whether a statement is of a head that was written before."""
        if isinstance(statement, ast.FunctionDef):
            return self._has_device and statement.name == self._device_name
        return (
            self._has_type
            and isinstance(statement, ast.Assign)
            and is_type_expression(self._scopes, statement.value)
        )

    def _ends_its_line(self, statement: ast.stmt) -> bool:
        """Whether no other statement follows on the same line."""
        end = self._scopes.span(statement).end
        return bool(_LINE_REST.match(self._scopes.source.text, end))


def shared_module() -> bytes:
    """The module that holds the head for several files."""
    words = {**_PLAIN, "or_absent": "", "and_there": ""}
    lines = ('"""The accelerator of this machine."""', "", "import torch", "", _TYPE_LINE)
    return "".join(f"{line.format(**words)}\n" for line in (*lines, *_DEVICE_LINES)).encode()


def is_type_expression(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether an expression is the one that the neutral head asks for the device type with."""
    if isinstance(node, ast.IfExp):
        node = node.body
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "getattr"
        and bool(node.args)
        and isinstance(node.args[0], ast.Call)
        and scopes.name(node.args[0].func) == "torch.accelerator.current_accelerator"
    )


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
