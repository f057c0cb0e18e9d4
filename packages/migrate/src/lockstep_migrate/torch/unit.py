"""One Python module while its mentions are being decided: what rules read, and what they claim."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lockstep_migrate.engine.arguments import called
from lockstep_migrate.engine.claims import Claims
from lockstep_migrate.engine.own_names import OwnNames
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Edit, Outcome, Span
from lockstep_migrate.torch.compiled import compiled_names, compiled_parts, may_compile
from lockstep_migrate.torch.header import Header
from lockstep_migrate.torch.helper import HELPER
from lockstep_migrate.torch.table import Table
from lockstep_migrate.torch.user_rules import UserRules

_CHOOSING = re.compile(
    r"(?:CUDA|NVIDIA|HIP|ROCR|ASCEND|ASCEND_RT)_VISIBLE_DEVICES|ZE_AFFINITY_MASK|ONEAPI_DEVICE_SELECTOR"
    r"|HABANA_VISIBLE_(?:MODULES|DEVICES)|\bload_dotenv\b"
)
"""What a script says that chooses its devices by the environment."""
_FORKING = re.compile(r"\bos\.fork\b|[\"']fork[\"']|\bProcessPoolExecutor\b|\bProcess\(|\bPool\(")
_SPAWNING = re.compile(r"[\"']spawn[\"']|\b(?:mp|multiprocessing)\.spawn\b")

SCRIPTED = (
    "is inside a function that TorchScript, or torch.compile with fullgraph=True, compiles as a whole:"
    " nothing can be asked there"
)
"""Why a place is listed that asks for the device as the script runs."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of the whole run."""

    target: MigrationTarget
    table: Table
    similar: bool = False
    user_rules: UserRules = ()
    advice: bool = False
    advice_apply: bool = False

    def readable(self, becomes: str) -> str:
        """An expression of the tables in words for a person, without a module's own names."""
        target = self.target
        words = {
            "{torch}": "torch",
            "{accelerator}": HELPER,
            "{module}": target.module or f"{HELPER}.module()",
            "{type}": f'"{target.device}"' if target.device else f"{HELPER}.device_type()",
            "{device}": f'"{target.device}"' if target.device else f"{HELPER}.device()",
            "{backend}": f'"{target.backend}"' if target.device else f"{HELPER}.backend_type()",
        }
        for placeholder, word in words.items():
            becomes = becomes.replace(placeholder, word)
        return becomes


def chooses_cards(text: str) -> bool:
    """Whether a script chooses its devices by the environment."""
    return _CHOOSING.search(text) is not None


def forks(text: str) -> bool:
    """Whether a script makes copies of its process, which a driver that was asked before does not survive."""
    return _FORKING.search(text) is not None and _SPAWNING.search(text) is None


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
        self._compiled = self._compiled_parts()
        self.chooses_cards = own.chooses_cards or chooses_cards(scopes.source.text)
        """Whether the project chooses its devices by the environment."""
        self.forks = own.forks or forks(scopes.source.text)
        """Whether the project copies its process."""
        self.is_imported = bool(module) and module in own.imported
        """Whether another module of the project imports this one."""
        self.has_kernels = "triton" in scopes.source.text
        """Whether the module may hold kernels written in Triton."""
        self._extensions = _extension_names(scopes)

    @property
    def target(self) -> MigrationTarget:
        """The device that the script is written for."""
        return self.settings.target

    @staticmethod
    def chooses(text: str) -> bool:
        """Whether a text is the name of a variable that chooses devices."""
        return chooses_cards(text)

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
        """Whether a node is inside a function that is compiled as a whole."""
        return bool(self._compiled) and any(
            above in self._compiled for above in self.scopes.ancestors(node)
        )

    def decides_a_build(self, node: ast.AST) -> bool:
        """Whether what is asked of CUDA decides if native code is compiled: in a build script, or around a build."""
        if not self._extensions:
            return False
        if any(called(call) == "setup" for call in self.scopes.of(ast.Call)):
            return True
        return any(
            isinstance(above, ast.If | ast.IfExp)
            and any(getattr(inner, "id", "") in self._extensions for inner in ast.walk(above))
            for above in self.scopes.ancestors(node)
        )

    def _compiled_parts(self) -> frozenset[ast.AST]:
        names = self.own.compiled
        if may_compile(self.scopes.source.text):
            names |= compiled_names([self.scopes.tree])
        return compiled_parts(self.scopes.tree, names) if names else frozenset()

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


def _extension_names(scopes: ModuleScopes) -> frozenset[str]:
    """The names of the module that stand for torch's tools for building native code."""
    return frozenset(
        binding.name
        for bindings in scopes.module.bindings.values()
        for binding in bindings
        if binding.qualified.startswith(("torch.utils.cpp_extension", "torch.utils.ffi"))
    )
