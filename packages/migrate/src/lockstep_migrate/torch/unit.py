"""One Python module while its mentions are being decided: what rules read, and what they claim."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from lockstep_migrate.engine.claims import Claims
from lockstep_migrate.engine.own_names import OwnNames
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import Definition, decorator_names
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Edit, Outcome, Span
from lockstep_migrate.torch.header import Header
from lockstep_migrate.torch.table import Table
from lockstep_migrate.torch.user_rules import UserRules

_SCRIPTING = frozenset({"torch.jit.script", "torch.jit.script_method", "torch.jit.export"})

SCRIPTED = "is inside a function that TorchScript compiles, which knows no device names"
"""Why a place is listed that asks for the device as the script runs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the whole run."""

    target: MigrationTarget
    table: Table
    similar: bool = False
    user_rules: UserRules = ()
    advice_apply: bool = False

    def readable(self, becomes: str) -> str:
        """An expression of the tables in words for a person, without a module's own names."""
        target = self.target
        words = {
            "{torch}": "torch",
            "{module}": target.module or "torch.get_device_module(ACCELERATOR)",
            "{type}": f'"{target.device}"' if target.device else "ACCELERATOR",
            "{device}": f'"{target.device}"' if target.device else "accelerator()",
            "{backend}": f'"{target.backend}"'
            if target.device
            else "torch.distributed.get_default_backend_for_device(ACCELERATOR)",
        }
        for placeholder, word in words.items():
            becomes = becomes.replace(placeholder, word)
        return becomes


class Unit(Claims):
    """A module under migration.

    A rule reads `scopes`, `own` and `settings`, and claims each place it understands.
    """

    def __init__(
        self,
        scopes: ModuleScopes,
        settings: Settings,
        own: OwnNames,
        module: str = "",
        amp: str = "",
    ) -> None:
        super().__init__(scopes)
        self._module = module
        self.settings = settings
        self.own = own
        self.amp = amp
        """The module that stands for apex.amp, as this one can import it; empty where there is none."""
        self.header = Header(scopes, settings.target)
        self._listed: dict[tuple[ast.AST, str, str], ast.AST] = {}
        self._scripted = _scripted(scopes)
        self.has_kernels = "triton" in scopes.source.text
        """Whether the module may hold kernels written in Triton."""
        self.builds_extensions = _builds_extensions(scopes)
        """Whether the module builds native code: what it asks of CUDA is then about compiling."""

    @property
    def target(self) -> MigrationTarget:
        """The device that the script is written for."""
        return self.settings.target

    def test_around(self, node: ast.AST) -> ast.FunctionDef | None:
        """The unit test that a node is in: a function `test_...` that asserts, in a file `test_...` or `..._test`."""
        if not (self._module.startswith("test_") or self._module.endswith("_test")):
            return None
        for one in self.scopes.ancestors(node):
            named = isinstance(one, ast.FunctionDef) and one.name.lstrip("_").startswith("test_")
            if named and re.search(r"assert|self\.fail\(", self.text(one)):
                return one  # type: ignore[return-value]
        return None

    def is_requested(self, name: str) -> bool:
        """Whether another module of the project imports a name from this one."""
        return bool(self._module) and f"{self._module}.{name}" in self.own.requested

    def is_scripted(self, node: ast.AST) -> bool:
        """Whether a node is inside a function that TorchScript compiles by a decorator."""
        return bool(self._scripted) and any(
            above in self._scripted for above in self.scopes.ancestors(node)
        )

    def list(
        self,
        node: ast.AST,
        rule: str,
        reason: str,
        replacement: str = "",
        *,
        span: Span | None = None,
    ) -> None:
        """Claim a node that needs a person; of a statement's places with one reason the first is listed."""
        statement = self.scopes.statement(node)
        first = self._listed.setdefault((statement, reason, replacement), node)
        if first is node:
            super().list(node, rule, reason, replacement, span=span)
        else:
            self.keep(node, rule, "its statement is listed already, for the same reason", span=span)

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
        """Claim a node; inside an f-string, edits take the other kind of quotes, as Python before 3.12 needs."""
        quote = self._quote_around(node)
        if quote in ("'", '"'):
            other = "'" if quote == '"' else '"'
            edits = [Edit(edit.span, edit.text.replace(quote, other)) for edit in edits]
        super().claim(node, rule, outcome, reason, span=span, replacement=replacement, edits=edits)

    def _quote_around(self, node: ast.AST) -> str:
        """The quote of the f-string in whose expressions a node stands; nothing where it is in none."""
        for above in self.scopes.ancestors(node):
            if isinstance(above, ast.JoinedStr):
                pieces = self.scopes.pieces(above)
                text = self.scopes.source.text
                return text[pieces[0].body.start - 1] if pieces else ""
        return ""

    def fill(self, template: str) -> str:
        """An expression of the tables in the words of this module: placeholders and the name of torch filled in."""
        return self.header.fill(template)

    @property
    def text(self) -> Callable[[ast.AST], str]:
        """The source of a node."""
        return self.scopes.text


def _builds_extensions(scopes: ModuleScopes) -> bool:
    return any(
        binding.qualified.startswith(("torch.utils.cpp_extension", "torch.utils.ffi"))
        for bindings in scopes.module.bindings.values()
        for binding in bindings
    )


def _scripted(scopes: ModuleScopes) -> frozenset[ast.AST]:
    """The functions and classes that TorchScript compiles by a decorator."""
    definitions: Iterator[Definition] = scopes.of(
        ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef
    )
    return frozenset(
        node for node in definitions if not _SCRIPTING.isdisjoint(decorator_names(scopes, node))
    )
