"""Where values go inside one file: through names, parameters, attributes of `self` and what functions return.

Nothing is run. What leaves the file is unknown, and said to be so.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Iterator

from lockstep.wings.migrate.engine.arguments import argument, called
from lockstep.wings.migrate.engine.scopes import Binding, Bound, ModuleScopes
from lockstep.wings.migrate.engine.tree import is_own_attribute

Function = ast.FunctionDef | ast.AsyncFunctionDef
_PASSING = frozenset({"enumerate", "iter", "reversed", "list", "tuple", "zip"})
_BARS = frozenset(
    {"tqdm", "trange", "track", "progressbar", "ProgressBar", "progress_bar", "islice"}
)
_MODULE_ITSELF = frozenset(
    {"to", "cuda", "cpu", "npu", "xpu", "hpu", "half", "float", "double", "train", "eval", "apply"}
)
"""Methods of a module that return the module."""


class Flow:
    """The calls of one module, and what its variables may hold.

    Parameters
    ----------
    scopes
        The module.
    """

    def __init__(self, scopes: ModuleScopes) -> None:
        self.scopes = scopes
        self.calls = list(scopes.of(ast.Call))
        self._methods: dict[str, list[Function]] = {}
        self._attributes: dict[tuple[ast.AST, str], list[ast.expr]] = {}
        self._collect()
        self._callees = {call: self._find_callee(call) for call in self.calls}
        self._callers: dict[ast.AST, list[ast.Call]] = {}
        for call, function in self._callees.items():
            if function is not None:
                self._callers.setdefault(function, []).append(call)
        self._trails: dict[ast.AST, frozenset[ast.AST]] = {}
        self._bindings = {binding.node: binding for binding in self._all_bindings()}
        self._sources: dict[ast.AST, tuple[ast.AST, ...]] = {}
        self._uses: dict[ast.AST, list[ast.AST]] | None = None
        self._reaching: dict[frozenset[ast.AST], frozenset[ast.AST]] = {}
        self._steps = self.functions_with(call for call in self.calls if _is_backward(call))

    # -- calls

    def callee(self, call: ast.Call) -> Function | None:
        """The function of this file that a call runs; `None` where it is none, or not known."""
        return self._callees.get(call)

    def callers(self, function: ast.AST) -> list[ast.Call]:
        """The calls in this file that run a function."""
        return self._callers.get(function, [])

    def trains(self, node: ast.AST) -> bool:
        """Whether a node computes gradients: by a call of `.backward()`, or of a function of this file that does."""
        return any(
            isinstance(inner, ast.Call)
            and (_is_backward(inner) or self._callees.get(inner) in self._steps)
            for inner in ast.walk(node)
        )

    def reaches(self, node: ast.AST) -> frozenset[ast.AST]:
        """A node and every function of this file that runs on its behalf."""
        return self._spread([node], self._run_by)

    # -- values

    def trail(self, node: ast.AST) -> frozenset[ast.AST]:
        """Every expression and every name's binding that a value may come from, the node itself included."""
        if node not in self._trails:
            self._trails[node] = self._spread([node], self._next)
        return self._trails[node]

    def origins(self, binding: Binding) -> frozenset[ast.AST]:
        """What `trail` gives for a name, of one of its bindings."""
        return self._spread([binding.node], self._next)

    def reaching(self, origins: Iterable[ast.AST]) -> frozenset[ast.AST]:
        """Every expression whose trail leads to one of some origins."""
        key = frozenset(origins)
        if key not in self._reaching:
            uses = self._all_uses()
            self._reaching[key] = self._spread(key, lambda node: uses.get(node, ()))
        return self._reaching[key]

    def functions_with(self, calls: Iterable[ast.Call]) -> set[ast.AST]:
        """Functions of this file that make one of some calls, themselves or by others."""
        found = self._spread(calls, self._running)
        return {node for node in found if isinstance(node, Function)}

    def argument(self, call: ast.Call, function: Function, name: str) -> ast.expr | None:
        """What a call gives for a parameter; `None` where it gives nothing, or inside a star."""
        given = argument(call, name)
        if given is not None:
            return given
        names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
        if name not in names or any(isinstance(item, ast.Starred) for item in call.args):
            return None
        at = names.index(name) - (1 if self._is_bound(call, function) else 0)
        return call.args[at] if 0 <= at < len(call.args) else None

    # -- building

    def _all_bindings(self) -> Iterator[Binding]:
        for node in self.scopes.of(ast.Name):
            yield from self.scopes.bindings(node.id, self.scopes.scope(node))

    def _collect(self) -> None:
        for owner in self.scopes.of(ast.ClassDef):
            for item in owner.body:
                if isinstance(item, Function):
                    self._methods.setdefault(item.name, []).append(item)
        for node in self.scopes.of(ast.Assign):
            around = self.scopes.class_of(node)
            if around and len(node.targets) == 1 and is_own_attribute(node.targets[0]):
                key = (around, node.targets[0].attr)
                self._attributes.setdefault(key, []).append(node.value)

    def _find_callee(self, call: ast.Call) -> Function | None:
        if isinstance(call.func, ast.Name):
            bindings = self.scopes.bindings(call.func.id, self.scopes.scope(call.func))
            definitions = [item.node for item in bindings if item.kind is Bound.DEFINITION]
            if len(definitions) != 1 or len(bindings) != 1:
                return None
            return _constructor(definitions[0])
        if isinstance(call.func, ast.Attribute):
            return self._method(call.func)
        return None

    def _method(self, node: ast.Attribute) -> Function | None:
        found = self._methods.get(node.attr, [])
        if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"):
            around = self.scopes.class_of(node)
            found = [item for item in found if self.scopes.parents[item] is around]
        elif any(meaning.binding for meaning in self.scopes.meanings(node)):
            return None  # of something imported
        return found[0] if len(found) == 1 else None

    def _is_bound(self, call: ast.Call, function: Function) -> bool:
        """Whether the first parameter is given by Python: a method of an instance, a constructor."""
        if not isinstance(self.scopes.parents[function], ast.ClassDef):
            return False
        names = {item.id for item in function.decorator_list if isinstance(item, ast.Name)}
        return "staticmethod" not in names

    # -- following values

    def _next(self, node: ast.AST) -> tuple[ast.AST, ...]:
        """Where a value comes from, one step back."""
        if node not in self._sources:
            self._sources[node] = tuple(self._step(node))
        return self._sources[node]

    def _step(self, node: ast.AST) -> Iterator[ast.AST]:
        if node in self._bindings:
            yield from self._of_binding(self._bindings[node])
        elif isinstance(node, ast.Name):
            bindings = self.scopes.bindings(node.id, self.scopes.scope(node))
            yield from (binding.node for binding in bindings)
        elif isinstance(node, ast.Attribute) and is_own_attribute(node):
            owner = self.scopes.class_of(node)
            yield from self._attributes.get((owner, node.attr), []) if owner else []
        elif isinstance(node, ast.Call):
            yield from self._of_call(node)
        elif isinstance(node, ast.IfExp):
            yield from (node.body, node.orelse)

    def _of_call(self, call: ast.Call) -> Iterator[ast.AST]:
        last = called(call)
        if last in _MODULE_ITSELF and isinstance(call.func, ast.Attribute):
            yield call.func.value
        if last in _PASSING or last in _BARS:
            yield from call.args
        function = self.callee(call)
        if function is not None and function.name != "__init__":
            yield from _returned(function)

    def _of_binding(self, binding: Binding) -> Iterator[ast.AST]:
        if binding.value is not None:
            yield binding.value
        elif isinstance(binding.node, ast.arg):
            yield from self._of_parameter(binding.node)
        elif isinstance(binding.node, ast.Name):
            yield from self._of_unpacked(binding.node)

    def _of_parameter(self, parameter: ast.arg) -> Iterator[ast.AST]:
        function = self.scopes.parents[self.scopes.parents[parameter]]
        if isinstance(function, Function):
            for call in self.callers(function):
                value = self.argument(call, function, parameter.arg)
                if value is not None:
                    yield value

    def _of_unpacked(self, name: ast.Name) -> Iterator[ast.AST]:
        """`a, b = function()`: what the function returns in that place."""
        above = self.scopes.parents[name]
        statement = self.scopes.parents.get(above)
        if not isinstance(above, ast.Tuple) or not isinstance(statement, ast.Assign):
            return
        call = statement.value
        function = self.callee(call) if isinstance(call, ast.Call) else None
        at = above.elts.index(name)
        for value in _returned(function) if function is not None else ():
            if isinstance(value, ast.Tuple) and len(value.elts) == len(above.elts):
                yield value.elts[at]

    def _all_uses(self) -> dict[ast.AST, list[ast.AST]]:
        """For every expression or binding, those whose value comes from it directly."""
        if self._uses is None:
            self._uses = {}
            for node in self.scopes.nodes:
                for source in self._next(node):
                    self._uses.setdefault(source, []).append(node)
        return self._uses

    def _run_by(self, node: ast.AST) -> list[ast.AST]:
        """Functions of this file that what stands in a node calls."""
        calls = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
        return [function for call in calls if (function := self.callee(call))]

    def _running(self, node: ast.AST) -> list[ast.AST]:
        """The function around a call or another function, and the calls that run the latter."""
        function = self.scopes.function(node)
        return [*self.callers(node), *([function] if function else [])]

    def _spread(
        self, starts: Iterable[ast.AST], step: Callable[[ast.AST], Iterable[ast.AST]]
    ) -> frozenset[ast.AST]:
        found: set[ast.AST] = set()
        waiting = list(starts)
        while waiting:
            node = waiting.pop()
            if node not in found:
                found.add(node)
                waiting += step(node)
        return frozenset(found)


def _is_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"


def _constructor(definition: ast.AST) -> Function | None:
    if isinstance(definition, Function):
        return definition
    for item in definition.body if isinstance(definition, ast.ClassDef) else ():
        if isinstance(item, Function) and item.name == "__init__":
            return item
    return None


def _returned(function: Function) -> list[ast.expr]:
    found: list[ast.expr] = []
    waiting: list[ast.AST] = list(function.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            found.append(node.value)
        elif not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)
    return found
