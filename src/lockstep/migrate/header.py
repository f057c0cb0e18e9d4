"""What a migrated module needs at its head: imports, and for the neutral target the names that ask for the device."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence

from lockstep.hookspecs import MigrationTarget
from lockstep.migrate.plan import Edit, Span
from lockstep.migrate.scopes import Binding, Bound, ModuleScopes

_TYPE_NAMES = ("ACCELERATOR", "ACCELERATOR_TYPE", "MIGRATED_ACCELERATOR")
_DEVICE_NAMES = ("accelerator", "accelerator_device", "migrated_accelerator")
_TYPE_TEXT = 'getattr({torch}.accelerator.current_accelerator(), "type", "cuda")'
_TYPE_LINES = (
    "# What torch was built for, such as npu; where that is no accelerator, the name used so far.",
    "{type_name} = " + _TYPE_TEXT,
)
_DEVICE_DOC = "Name this machine's accelerator as a device, or the CPU where there is none."
_DEVICE_LINES = (
    "",
    "",
    "def {device_name}(index=None):",
    f'    """{_DEVICE_DOC}"""',
    "    if index is not None and not str(index).isdigit():",
    "        return index",
    "    if not {torch}.accelerator.is_available():",
    '        return "cpu"',
    '    return {type_name} if index is None else f"{{{type_name}}}:{{index}}"',
)
_PLACEHOLDER = re.compile(r"\{(type|device|backend|module|torch)\}")
_DEVICE_PLACEHOLDERS = ("{type}", "{device}", "{backend}", "{module}")
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
        hidden = "_" if _reads_globals(scopes) else ""
        self._needs_torch = self._needs_type = self._needs_device = self._needs_import = False
        self._type_name = self._existing_type() or _free(scopes, _TYPE_NAMES, hidden)
        self._has_type = self._existing_type() is not None
        self._device_name = self._existing_device() or _free(scopes, _DEVICE_NAMES, hidden)
        self._has_device = self._existing_device() is not None
        self._torch_binding = self._find_torch()
        self._hidden = hidden
        self._own_lines: list[str] = []
        self._own_imports: list[str] = []

    def free(self, names: tuple[str, ...]) -> str:
        """The first of some names that the module does not use yet, or a numbered one."""
        return _free(self._scopes, names, self._hidden)

    def define(self, lines: Sequence[str], *, imports: Sequence[str]) -> None:
        """Add definitions at the head of the module, and the modules that they import."""
        self._own_lines += lines
        self._own_imports += imports

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
        self._needs_torch = self._needs_type = True
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

    def additions(self, first_use: int) -> list[Edit]:
        """The edit that adds what is missing at the head of the module; none if nothing is.

        Parameters
        ----------
        first_use
            Where the first rewritten place of the module stands: the head goes before it.
        """
        lines = [f"import {name}" for name in self._own_imports if not self._imports_plainly(name)]
        torch_node = self._torch_binding.node if self._torch_binding else None
        late = torch_node is not None and self._scopes.span(torch_node).start > first_use
        if self._needs_torch and (torch_node is None or late):
            lines.append("import torch")
        if self._needs_import and not self._imports(self._target.imports):
            lines.append(f"import {self._target.imports}")
        body: list[str] = []
        words = {
            "torch": self._torch_name(),
            "type_name": self._type_name,
            "device_name": self._device_name,
        }
        if self._needs_type and not self._has_type:
            body += ["", *_TYPE_LINES]
        if self._needs_device and not self._has_device:
            body += _DEVICE_LINES
        if body:
            lines += [line.format(**words) for line in body]
        if self._own_lines:
            lines += ["", *self._own_lines] if self._needs_device and body else self._own_lines
            body += self._own_lines
        return [self._insertion(lines, first_use, spaced=bool(body))] if lines else []

    # -- what is there already

    def _torch_name(self) -> str:
        return self._torch_binding.name if self._torch_binding else "torch"

    def _find_torch(self) -> Binding | None:
        for bindings in self._scopes.module.bindings.values():
            for binding in bindings:
                if binding.kind is Bound.IMPORT and binding.qualified == "torch":
                    return binding
        return None

    def _imports(self, module: str) -> bool:
        """Whether the module, or something inside it, is imported at the top."""
        return any(
            name == module or name.startswith(module + ".")
            for statement in self._scopes.tree.body
            for name in _imported(statement)
        )

    def _imports_plainly(self, module: str) -> bool:
        """Whether a top-level `import module` binds that very name."""
        return any(
            isinstance(statement, ast.Import)
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

    def _existing_device(self) -> str | None:
        for statement in self._scopes.tree.body:
            if (
                isinstance(statement, ast.FunctionDef)
                and ast.get_docstring(statement, clean=False) == _DEVICE_DOC
            ):
                return statement.name
        return None

    # -- where it goes

    def _insertion(self, lines: list[str], first_use: int, *, spaced: bool) -> Edit:
        body = self._scopes.tree.body
        place = self._place(body, first_use)
        line_end = self._scopes.source.line_end
        text = line_end.join(lines)
        if place is None:
            at = self._scopes.span(body[0]).start if body else 0
            return Edit(Span(at, at), text + line_end + (line_end if spaced else ""))
        at = self._line_after(self._scopes.span(place).end)
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
            heads = _is_import(statement) or self._is_ours(statement)
            if self._scopes.span(statement).end > first_use and not heads:
                break
            if leading or heads:
                after = statement
            elif torch_seen:
                break
            elif holds_torch:
                after = statement
            torch_seen = torch_seen or holds_torch
        return after

    def _is_ours(self, statement: ast.stmt) -> bool:
        """Whether a statement is of a head that was written before."""
        if isinstance(statement, ast.FunctionDef):
            return self._has_device and statement.name == self._device_name
        return (
            self._has_type
            and isinstance(statement, ast.Assign)
            and is_type_expression(self._scopes, statement.value)
        )

    def _line_after(self, offset: int) -> int:
        match = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)").match(self._scopes.source.text, offset)
        return match.end() if match else offset


def is_type_expression(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether an expression is the one that the neutral head asks for the device type with."""
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


def _imported(statement: ast.stmt) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        return [statement.module, *(f"{statement.module}.{item.name}" for item in statement.names)]
    return []


def _free(scopes: ModuleScopes, names: tuple[str, ...], prefix: str) -> str:
    for name in names:
        if not scopes.is_taken(prefix + name):
            return prefix + name
    number = 2
    while scopes.is_taken(f"{prefix}{names[0]}_{number}"):
        number += 1
    return f"{prefix}{names[0]}_{number}"


def _reads_globals(scopes: ModuleScopes) -> bool:
    """Whether the module takes stock of its own names, as scripts do whose variables are their settings."""
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("globals", "vars", "dir", "locals")
        and not node.args
        for node in scopes.nodes
    )
