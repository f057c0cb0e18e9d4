"""Whose name is it? Scopes, bindings and qualified names of one Python module, by Python's own rules of scope.

The source is parsed, never run. `torch` may be called `th`, `cuda` may be a function of the user's own: every rule asks
here what a name stands for.
"""

from __future__ import annotations

import ast
import bisect
import builtins
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, count
from typing import TypeVar

from lockstep_migrate.engine.formatted import values_of
from lockstep_migrate.engine.literals import LiteralError, Piece, pieces_of
from lockstep_migrate.engine.text import SourceText
from lockstep_migrate.engine.tree import parts_of
from lockstep_migrate.plan import Span

_Node = TypeVar("_Node", bound=ast.AST)

_MOST_STEPS = 64
_BUILTINS = frozenset(dir(builtins))


class Bound(enum.Enum):
    """The statement that binds a name."""

    IMPORT = "import"
    ASSIGNMENT = "assignment"
    DEFINITION = "function or class"
    OTHER = "parameter, loop, with, except, match or del"


@dataclass(frozen=True, slots=True, eq=False)
class Binding:
    """One place that binds a name.

    name: The name as bound.
    kind: What binds it.
    node: The statement, or the expression that is assigned to.
    qualified: For an import the full dotted name that it stands for; relative ones begin with dots.
    value: For an assignment what is assigned.
    alias: For an import its part of the statement.
    """

    name: str
    kind: Bound
    node: ast.AST
    qualified: str = ""
    value: ast.expr | None = None
    alias: ast.alias | None = None


@dataclass(slots=True, eq=False)
class Scope:
    """A module, a class, a function, a lambda or a comprehension."""

    node: ast.AST
    parent: Scope | None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    elsewhere: dict[str, Scope] = field(default_factory=dict)
    """Names declared `global` or `nonlocal`, with the scope that owns them."""

    @property
    def is_class(self) -> bool:
        """Whether its names are invisible to functions inside it."""
        return isinstance(self.node, ast.ClassDef)


@dataclass(frozen=True, slots=True)
class Meaning:
    """A qualified name that an expression may stand for.

    name: Dotted, such as `torch.cuda.is_available`.
    binding: What binds the first name of the expression; `None` where it is only guessed (star import, unbound).
    assigned: Whether an assignment, not an import, carries the name here: its right side is a site of its own.
    """

    name: str
    binding: Binding | None = None
    assigned: bool = False


class ModuleScopes:
    """The names of one module.

    source: The module's text.
    tree: The same, parsed. Values of f-strings are replaced by ones whose positions are right.
    """

    def __init__(self, source: SourceText, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.parents: dict[ast.AST, ast.AST] = {}
        self.nodes: list[ast.AST] = []
        self._by_kind: dict[type[ast.AST], list[ast.AST]] = {}
        self.module = Scope(tree, None)
        self.stars: list[str] = []
        self._scope_of: dict[ast.AST, Scope] = {}
        self._spans: dict[ast.AST, Span] = {}
        self._meanings_of: dict[ast.AST, tuple[Meaning, ...]] = {}
        self._pieces: dict[ast.AST, tuple[Piece, ...]] = {}
        self._ascii = source.text.isascii()
        self._all_names: set[str] = set()
        self._carriers: set[str] = set()
        self._reads: dict[str, list[ast.Name]] = {}
        self._uses: dict[str, dict[Binding, list[ast.Name]]] = {}
        self._byte_starts: dict[int, list[int]] = {}
        self._found: dict[tuple[str, Scope], tuple[Meaning, ...]] = {}
        self._walk()

    # -- places

    def span(self, node: ast.AST) -> Span:
        """Where an expression or statement stands in the text, decorators left out."""
        if node in self._spans:
            return self._spans[node]
        line, column = node.lineno, node.col_offset  # type: ignore[attr-defined]
        end_line, end_column = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]
        return Span(self._offset(line, column), self._offset(end_line, end_column))

    def text(self, node: ast.AST) -> str:
        """The source of an expression or statement."""
        span = self.span(node)
        return self.source.text[span.start : span.end]

    def pieces(self, node: ast.AST) -> tuple[Piece, ...]:
        """The quoted pieces of a string literal; none where the text cannot be read as such."""
        if node not in self._pieces:
            try:
                self._pieces[node] = pieces_of(self.source.text, self.span(node))
            except LiteralError:
                self._pieces[node] = ()
        return self._pieces[node]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        """What holds a node, from the inside outwards."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement that holds a node."""
        while not isinstance(node, ast.stmt):
            node = self.parents[node]
        return node

    def function(self, node: ast.AST) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
        """The innermost `def` that holds a node."""
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return next((above for above in self.ancestors(node) if isinstance(above, kinds)), None)

    def class_of(self, node: ast.AST) -> ast.ClassDef | None:
        """The class that a node stands in."""
        return next(
            (above for above in self.ancestors(node) if isinstance(above, ast.ClassDef)), None
        )

    def call_of(self, node: ast.AST) -> ast.Call | None:
        """The call whose function an expression is."""
        parent = self.parents.get(node)
        return parent if isinstance(parent, ast.Call) and parent.func is node else None

    def of(self, *kinds: type[_Node]) -> Iterator[_Node]:
        """Every node of these kinds, kind after kind, each in the order of the text."""
        for kind in kinds:
            yield from self._by_kind.get(kind, ())  # type: ignore[misc]

    def imports(self) -> Iterator[ast.Import | ast.ImportFrom]:
        """Every import statement."""
        return self.of(ast.Import, ast.ImportFrom)

    def references(self) -> Iterator[ast.Name | ast.Attribute]:
        """Every name and every attribute."""
        return self.of(ast.Name, ast.Attribute)

    # -- names

    def scope(self, node: ast.AST) -> Scope:
        """The scope in which an expression is evaluated."""
        while node not in self._scope_of:
            node = self.parents[node]
        return self._scope_of[node]

    def bindings(self, name: str, scope: Scope) -> tuple[Binding, ...]:
        """Every binding of a name in the scope that Python would look it up in; empty if there is none."""
        current: Scope | None = scope
        while current is not None:
            if name in current.elsewhere:
                return tuple(current.elsewhere[name].bindings.get(name, ()))
            if name in current.bindings and (current is scope or not current.is_class):
                return tuple(current.bindings[name])
            current = current.parent
        return ()

    def meanings(self, node: ast.AST) -> tuple[Meaning, ...]:
        """The qualified names that an expression may stand for, the likeliest first.

        A chain of attributes is resolved by its first name, through imports and through assignments of such chains
        (`cuda = torch.cuda`). Anything else has no name.
        """
        if node not in self._meanings_of and not self._may_stand_for(node):
            return ()
        if node not in self._meanings_of:
            found = [
                Meaning(".".join((meaning.name, *attributes)), meaning.binding, meaning.assigned)
                for base, attributes in _chains(node)
                for meaning in self._name_meanings(base)
            ]
            self._meanings_of[node] = tuple(dict.fromkeys(found))
        return self._meanings_of[node]

    def _may_stand_for(self, node: ast.AST) -> bool:
        """Whether an expression begins with a name that anything carries a qualified name to; a quick look."""
        while isinstance(node, ast.Attribute):
            node = node.value
        if not isinstance(node, ast.Name):
            return isinstance(node, ast.IfExp)
        return node.id in self._carriers or node.id == "torch" or bool(self.stars)

    def name(self, node: ast.AST) -> str:
        """The likeliest qualified name of an expression, or nothing."""
        found = self.meanings(node)
        return found[0].name if found else ""

    def uses(self, binding: Binding) -> list[ast.Name]:
        """Every place that reads a name where this binding may be what it finds."""
        if binding.name not in self._uses:
            uses: dict[Binding, list[ast.Name]] = {}
            for node in self._reads.get(binding.name, ()):
                for found in self.bindings(node.id, self.scope(node)):
                    uses.setdefault(found, []).append(node)
            self._uses[binding.name] = uses
        return list(self._uses[binding.name].get(binding, ()))

    def is_taken(self, name: str) -> bool:
        """Whether a name is bound or read anywhere in the module, or is a builtin."""
        return name in _BUILTINS or name in self._all_names

    def free_name(self, names: Sequence[str], prefix: str = "") -> str:
        """The first of some names that is not taken, or else the first of them with a number."""
        numbered = (f"{names[0]}_{number}" for number in count(2))
        candidates = (prefix + name for name in chain(names, numbered))
        return next(name for name in candidates if not self.is_taken(name))

    # -- building

    def _walk(self) -> None:
        waiting: list[tuple[ast.AST, Scope]] = [(self.tree, self.module)]
        self._scope_of[self.tree] = self.module
        while waiting:
            node, scope = waiting.pop()
            self.nodes.append(node)
            kind = type(node)
            self._by_kind.setdefault(kind, []).append(node)
            if kind is ast.JoinedStr:
                self._relocate(node)  # type: ignore[arg-type]
            elif kind in _BINDING:
                self._bind(node, scope)
            if isinstance(node, _OWN_SCOPES):
                children = list(self._children(node, scope))
            else:
                children = [(child, scope) for child in parts_of(node)]
            for child, inner in children:
                self.parents[child] = node
                if inner is not scope:
                    self._scope_of[child] = inner
            children.reverse()
            waiting += children

    def _children(self, node: ast.AST, scope: Scope) -> Iterator[tuple[ast.AST, Scope]]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from self._function_children(node, scope)
        elif isinstance(node, ast.ClassDef):
            inner = Scope(node, scope)
            outside = [*node.decorator_list, *node.bases, *node.keywords]
            yield from ((child, scope) for child in outside)
            yield from ((child, inner) for child in parts_of(node) if child not in outside)
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            yield from self._comprehension_children(node, scope)

    def _function_children(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, scope: Scope
    ) -> Iterator[tuple[ast.AST, Scope]]:
        inner = Scope(node, scope)
        arguments = node.args
        for argument in _parameters(arguments):
            _add(inner, Binding(argument.arg, Bound.OTHER, argument))
            self._all_names.add(argument.arg)
        yield arguments, scope
        body = {id(child) for child in (node.body if isinstance(node.body, list) else [node.body])}
        for child in parts_of(node):
            if child is not arguments:
                yield child, inner if id(child) in body else scope

    def _comprehension_children(
        self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp, scope: Scope
    ) -> Iterator[tuple[ast.AST, Scope]]:
        inner = Scope(node, scope)
        first = node.generators[0]
        for child in parts_of(node):
            yield child, inner
        # The first iterable is evaluated outside.
        self._scope_of[first.iter] = scope

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        if isinstance(node, ast.Name):
            self._all_names.add(node.id)
            if isinstance(node.ctx, ast.Load):
                self._reads.setdefault(node.id, []).append(node)
            else:
                self._bind_name(node, scope)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            self._bind_import(node, scope)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._declare(scope, Binding(node.name, Bound.DEFINITION, node))
        elif isinstance(node, ast.Global):
            scope.elsewhere.update(dict.fromkeys(node.names, self.module))
        elif isinstance(node, ast.Nonlocal):
            scope.elsewhere.update({name: _owner(name, scope) for name in node.names})
        elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
            self._declare(scope, Binding(node.name, Bound.OTHER, node))
        elif isinstance(node, ast.MatchMapping) and node.rest:
            self._declare(scope, Binding(node.rest, Bound.OTHER, node))

    def _bind_name(self, node: ast.Name, scope: Scope) -> None:
        parent = self.parents[node]
        value: ast.expr | None = None
        if isinstance(parent, ast.Assign | ast.AnnAssign | ast.NamedExpr):
            value = parent.value
        elif isinstance(parent, ast.Tuple | ast.List):
            value = _paired(parent, node, self.parents.get(parent))
        while isinstance(parent, ast.NamedExpr) and isinstance(scope.node, _COMPREHENSIONS):
            scope = scope.parent or scope  # a walrus binds outside the comprehension
        kind = Bound.ASSIGNMENT if value is not None else Bound.OTHER
        self._declare(scope, Binding(node.id, kind, node, value=value))

    def _bind_import(self, node: ast.Import | ast.ImportFrom, scope: Scope) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                first = alias.name.split(".")[0]
                name, qualified = alias.asname or first, alias.name if alias.asname else first
            else:
                module = "." * node.level + (node.module or "")
                if alias.name == "*":
                    self.stars.append(module)
                    continue
                separator = "" if module.endswith(".") else "."
                name, qualified = alias.asname or alias.name, f"{module}{separator}{alias.name}"
            self._declare(
                scope, Binding(name, Bound.IMPORT, node, qualified=qualified, alias=alias)
            )

    def _declare(self, scope: Scope, binding: Binding) -> None:
        self._all_names.add(binding.name)
        if binding.kind is Bound.IMPORT or any(True for _ in _chains(binding.value)):
            self._carriers.add(binding.name)
        _add(scope.elsewhere.get(binding.name, scope), binding)

    def _name_meanings(self, node: ast.Name) -> tuple[Meaning, ...]:
        key = (node.id, self.scope(node))
        if key not in self._found:
            self._found[key] = tuple(self._search(*key))
        return self._found[key]

    def _search(self, name: str, scope: Scope) -> Iterator[Meaning]:
        """Follow a name through imports and assignments, each step of the way once."""
        waiting: list[tuple[str, Scope, tuple[str, ...], Binding | None]] = [
            (name, scope, (), None)
        ]
        seen: set[tuple[str, Scope, tuple[str, ...]]] = {(name, scope, ())}
        for name, scope, rest, through in waiting:  # grows as it is read
            bindings = self.bindings(name, scope)
            for binding in bindings:
                if binding.kind is Bound.IMPORT:
                    found = ".".join((binding.qualified, *rest))
                    yield Meaning(found, through or binding, through is not None)
            for binding in bindings:
                for base, attributes in _chains(binding.value):
                    step = (base.id, self.scope(base), attributes + rest)
                    if step not in seen and len(seen) < _MOST_STEPS:
                        seen.add(step)
                        waiting.append((*step, through or binding))
            if not bindings and name not in _BUILTINS:
                guesses = [f"{module}.{name}" for module in self.stars]
                if name == "torch":  # what else could it be, in a part of a script or behind a star
                    guesses.insert(0, "torch")
                yield from (
                    Meaning(".".join((guess, *rest)), through, through is not None)
                    for guess in guesses
                )

    def _offset(self, line: int, column: int) -> int:
        start = self.source.line_starts[line - 1]
        if self._ascii:
            return start + column
        # ast counts columns in bytes of UTF-8, whatever the file's encoding.
        if line not in self._byte_starts:
            text = self.source.text[start : self.source.next_line(start)]
            widths = (len(character.encode("utf-8", "surrogatepass")) for character in text)
            starts = [] if text.isascii() else list(accumulate(widths, initial=0))
            self._byte_starts[line] = starts
        starts = self._byte_starts[line]
        return start + (bisect.bisect_left(starts, column) if starts else column)

    def _relocate(self, node: ast.JoinedStr) -> None:
        """Replace an f-string's values by ones read from its text, each with its place."""
        read = values_of(self.source.text, self.pieces(node))
        if read.values:
            node.values = read.values
            self._spans.update(read.spans)


def _chains(node: ast.AST | None) -> Iterator[tuple[ast.Name, tuple[str, ...]]]:
    """The names that an expression may start with, each with the attributes behind it."""
    waiting: list[tuple[ast.AST | None, tuple[str, ...]]] = [(node, ())]
    while waiting:
        node, behind = waiting.pop()
        attributes = []
        while isinstance(node, ast.Attribute):
            attributes.append(node.attr)
            node = node.value
        whole = (*reversed(attributes), *behind)
        if isinstance(node, ast.Name):
            yield node, whole
        elif isinstance(node, ast.IfExp):
            waiting += [(node.orelse, whole), (node.body, whole)]


_BINDING = frozenset(
    {
        ast.Name, ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef,
        ast.Global, ast.Nonlocal, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping,
    }
)  # fmt: skip
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OWN_SCOPES = (
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Lambda,
    ast.ClassDef,
    *_COMPREHENSIONS,
)


def _parameters(arguments: ast.arguments) -> Iterator[ast.arg]:
    yield from (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    yield from (argument for argument in (arguments.vararg, arguments.kwarg) if argument)


def _add(scope: Scope, binding: Binding) -> None:
    scope.bindings.setdefault(binding.name, []).append(binding)


def _owner(name: str, scope: Scope) -> Scope:
    """The function around `scope` that binds a name which `scope` declares nonlocal."""
    current = scope.parent
    while current is not None and (current.is_class or name not in current.bindings):
        current = current.parent
    return current or scope


def _paired(
    target: ast.Tuple | ast.List, node: ast.Name, statement: ast.AST | None
) -> ast.expr | None:
    """What a name in `a, b = x, y` is assigned, where the sides match one by one."""
    if not isinstance(statement, ast.Assign) or not isinstance(
        statement.value, ast.Tuple | ast.List
    ):
        return None
    values = statement.value.elts
    if len(values) != len(target.elts) or any(isinstance(v, ast.Starred) for v in values):
        return None
    return values[target.elts.index(node)]
