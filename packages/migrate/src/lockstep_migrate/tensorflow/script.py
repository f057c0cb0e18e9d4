"""One TensorFlow module being migrated: what its expressions mean, and what has been decided so far."""

from __future__ import annotations

import ast
import enum
import functools
from collections.abc import Iterable, Iterator

from lockstep_migrate.engine.arguments import appended
from lockstep_migrate.engine.claims import Claims
from lockstep_migrate.engine.scopes import Binding, Bound, ModuleScopes
from lockstep_migrate.engine.statements import imported_names
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.tensorflow.facts import names
from lockstep_migrate.tensorflow.head import PACKAGES, Head

_HARMLESS = (
    ast.Attribute,
    ast.BinOp,
    ast.BoolOp,
    ast.Compare,
    ast.Constant,
    ast.FormattedValue,
    ast.IfExp,
    ast.JoinedStr,
    ast.List,
    ast.Name,
    ast.Slice,
    ast.Subscript,
    ast.Tuple,
    ast.UnaryOp,
    ast.boolop,
    ast.cmpop,
    ast.expr_context,
    ast.keyword,
    ast.operator,
    ast.unaryop,
)

# Other ways to write the same module; the first that fits is replaced.
_SAME = tuple((old, new) for old, (new, _) in names("same").items())


class Generation(enum.Enum):
    """Which TensorFlow a script is written for; each has a device package of its own."""

    TF1 = "1.15"
    """Graphs and sessions: `npu_bridge`."""
    TF2 = "2.x"
    """Eager execution and `tf.function`: `npu_device`."""


class Start(enum.Enum):
    """Where a program starts: there the NPU is opened, and Keras gets its session."""

    HERE = "in this module"
    ELSEWHERE = "in another module of the project"
    UNKNOWN = "in no module that is known"


class Script(Claims):
    """A module under migration: what its expressions mean, and what is taken out of it.

    scopes: The module's names.
    generation: Which TensorFlow it is written for.
    start: Where the program starts that it belongs to.
    """

    def __init__(self, scopes: ModuleScopes, generation: Generation, start: Start) -> None:
        super().__init__(scopes, "tensorflow/")
        self.generation = generation
        self.start = start
        self.head = Head(scopes)
        self._gone: set[ast.AST] = set()
        self._names: dict[ast.AST, str] = {}

    # -- what there is

    def name(self, node: ast.AST) -> str:
        """The likeliest canonical name of an expression, such as `tensorflow.Session`, or nothing."""
        if node not in self._names:
            self._names[node] = canonical(self.scopes.name(node))
        return self._names[node]

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What directly holds a node."""
        return self.scopes.parents.get(node)

    def is_statement(self, node: ast.AST) -> bool:
        """Whether an expression stands alone as a statement."""
        return isinstance(self.parent(node), ast.Expr)

    @functools.cached_property
    def references(self) -> list[ast.Attribute | ast.Name]:
        """Every read of a name, each with all the attributes that follow it, in the order of the text."""
        return [
            node
            for node in self.scopes.nodes
            if isinstance(node, ast.Attribute | ast.Name)
            and isinstance(node.ctx, ast.Load)
            and not isinstance(self.parent(node), ast.Attribute)
        ]

    @functools.cached_property
    def imports(self) -> list[Binding]:
        """What import statements of the packages bind, one for each name."""
        return [
            binding
            for scope in dict.fromkeys(map(self.scopes.scope, self.scopes.nodes))
            for bindings in scope.bindings.values()
            for binding in bindings
            if binding.kind is Bound.IMPORT and _is_looked_at(binding.qualified)
        ]

    @functools.cached_property
    def uses_horovod(self) -> bool:
        """Whether Horovod for TensorFlow or Keras is imported."""
        return any(binding.qualified.startswith("horovod") for binding in self.imports)

    def defines(self, name: str) -> bool:
        """Whether the module defines a function or a method of this name."""
        return any(node.name == name for node in self.scopes.of(ast.FunctionDef))

    def is_gone(self, node: ast.AST) -> bool:
        """Whether a node is no part of the new text."""
        return node in self._gone

    # -- what is decided

    def replaced(self, node: ast.AST, text: str) -> Edit:
        """The edit that replaces a whole expression; what it held is no site any more."""
        self._gone.update(ast.walk(node))
        return Edit(self.scopes.span(node), text)

    def removed(self, span: Span, nodes: Iterable[ast.AST]) -> Edit:
        """The edit that takes a stretch out, with everything that stands in it."""
        self._gone.update(inner for node in nodes for inner in ast.walk(node))
        return Edit(span, "")

    def append(
        self, call: ast.Call, text: str, rule: str, reason: str, *, node: ast.AST | None = None
    ) -> None:
        """Claim a call, or a node of it, with a last argument more."""
        edits = appended(self.scopes, call, text)
        self.rewrite(node or call, rule, reason, edits, span=self.scopes.span(call))

    def left_unused(self, nodes: Iterable[ast.AST]) -> tuple[Binding, ...]:
        """Assignments of local variables that nothing would read once these expressions are gone."""
        inside = {inner for node in nodes for inner in ast.walk(node)}
        found: dict[int, Binding] = {}
        for node in inside:
            if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            bindings = self.scopes.bindings(node.id, self.scopes.scope(node))
            if self.scopes.module.bindings.get(node.id) == list(bindings):
                continue  # a global name may be read by other modules
            for binding in bindings:
                uses = self.scopes.uses(binding)
                local = binding.kind is Bound.ASSIGNMENT
                if local and all(use in inside or use in self._gone for use in uses):
                    found[id(binding)] = binding
        return tuple(found.values())


def _is_looked_at(name: str) -> bool:
    """Whether an imported name is one of the packages', Horovod's parts for other frameworks left out."""
    package, _, rest = name.partition(".")
    part = rest.partition(".")[0]
    return package in PACKAGES and (
        package != "horovod" or part in ("", "*", "tensorflow", "keras")
    )


def canonical(name: str) -> str:
    """One spelling for the modules that TensorFlow and Horovod offer under several names."""
    for old, new in _SAME:
        if name.startswith(old):
            return new + name[len(old) :]
    return name


def takes_from_tensorflow(scopes: ModuleScopes) -> bool:
    """Whether a module imports TensorFlow, Keras or their Horovod."""
    return any(_is_looked_at(name) for node in scopes.imports() for name in imported_names(node))


def prefixes(name: str) -> Iterator[str]:
    """A dotted name and all that it begins with, the longest first."""
    while name:
        yield name
        name = name.rpartition(".")[0]


def is_harmless(node: ast.AST) -> bool:
    """Whether an expression may be left out: it only reads names, constants and what is put together from them."""
    return all(isinstance(inner, _HARMLESS) for inner in ast.walk(node))
