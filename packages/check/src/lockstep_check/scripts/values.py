"""Which values an expression of a project may have: through names, defaults, options and the project's own imports.

Nothing is run. A name has the values of all that it is set to; a parameter those of its default and its calls;
an option of `argparse` its default; an attribute or key those of every class, call or dictionary that sets it.
What is none of these has no known value, and None is given back for it.
"""

from __future__ import annotations

import ast
import operator
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from lockstep_check.scripts.reading import Called, Scope, Script, full_name

Values = frozenset[Any] | None
"""All that a value may be; None where that is not known."""

_DEEPEST = 12
_MOST_VALUES = 16
_CALLED_EACH_STEP = frozenset(
    {"__getitem__", "__iter__", "__next__", "forward", "__call__", "training_step"}
)
"""Methods that torch and Lightning call for each sample or step (PyTorch, "torch.utils.data", "torch.nn.Module")."""
_CASTS: dict[str, Callable[[Any], Any]] = {"int": int, "float": float, "bool": bool, "str": str}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.Is: operator.is_, ast.IsNot: operator.is_not,
    ast.Not: operator.not_, ast.USub: operator.neg, ast.UAdd: operator.pos,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Set:
    """An expression that something is set to, where it stands; no expression where only its being set is known."""

    value: ast.expr | None
    scope: Scope


@dataclass(slots=True)
class Project:
    """The assignments of all scripts of a project, and the calls of their own functions.

    scripts: Each by its file's name.
    """

    scripts: Mapping[str, Script]
    _names: dict[tuple[str, tuple[str, ...], str], list[_Set]] = field(
        default_factory=lambda: defaultdict(list)
    )
    _attributes: dict[str, list[_Set]] = field(default_factory=lambda: defaultdict(list))
    _calls: dict[str, list[Called]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        for script in self.scripts.values():
            for called in script.calls:
                self._calls[_last(called.node.func)].append(called)
        for file, script in self.scripts.items():
            self._read(script.tree, Scope(file))
            for called in script.calls:
                self._read_call(called)

    def _read(self, node: ast.AST, scope: Scope, class_name: str = "") -> None:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            inside = Scope(scope.file, (*scope.functions, node.name))
            self._read_parameters(node, scope, inside, class_name)
            for statement in node.body:
                self._read(statement, inside)
            return
        if isinstance(node, ast.ClassDef):
            class_name = node.name
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._set(target, node.value, scope, in_class=bool(class_name))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._set(node.target, node.value, scope, in_class=bool(class_name))
        elif isinstance(node, ast.AugAssign):
            self._set(node.target, None, scope, in_class=bool(class_name))
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            items = node.iter.elts if isinstance(node.iter, (ast.Tuple, ast.List)) else [None]
            for item in items:
                self._set(node.target, item, scope, in_class=False)
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    self._attributes[key.value].append(_Set(value, scope))
        for child in ast.iter_child_nodes(node):
            self._read(child, scope, class_name)

    def _set(
        self, target: ast.expr, value: ast.expr | None, scope: Scope, *, in_class: bool
    ) -> None:
        if isinstance(target, ast.Name):
            self._names[scope.file, scope.functions, target.id].append(_Set(value, scope))
            if in_class:
                self._attributes[target.id].append(_Set(value, scope))
        elif isinstance(target, ast.Attribute):
            self._attributes[target.attr].append(_Set(value, scope))
        elif isinstance(target, (ast.Tuple, ast.List)):
            pair = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            values = value.elts if pair and isinstance(value, (ast.Tuple, ast.List)) else []
            for index, one in enumerate(target.elts):
                self._set(one, values[index] if values else None, scope, in_class=in_class)

    def _read_parameters(
        self,
        node: ast.FunctionDef | ast.AsyncFunctionDef,
        outside: Scope,
        inside: Scope,
        class_name: str,
    ) -> None:
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        defaults: dict[str, ast.expr | None] = dict(
            zip(
                [one.arg for one in reversed(positional)],
                reversed(arguments.defaults),
                strict=False,
            )
        )
        defaults |= {
            one.arg: value for one, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
        }  # fmt: skip
        names = [one.arg for one in positional]
        method = bool(class_name) and names[:1] in (["self"], ["cls"])
        places = names[1:] if method else names
        called_as = class_name if node.name == "__init__" else node.name
        for name in [*places, *(one.arg for one in arguments.kwonlyargs)]:
            found = list(self._arguments(called_as, name, places, defaults.get(name), outside))
            self._names[inside.file, inside.functions, name] += found or [_Set(None, outside)]

    def _arguments(
        self,
        function: str,
        name: str,
        places: list[str],
        default: ast.expr | None,
        outside: Scope,
    ) -> Iterator[_Set]:
        """What a parameter gets from the calls of its function, and its default where one leaves it out."""
        calls = self._calls.get(function, [])
        left_out = not calls
        for called in calls:
            given = {one.arg: one.value for one in called.node.keywords}
            position = places.index(name) if name in places else len(called.node.args)
            if name in given:
                yield _Set(given[name], called.scope)
            elif position < len(called.node.args):
                yield _Set(called.node.args[position], called.scope)
            elif None in given:
                yield _Set(None, called.scope)
            else:
                left_out = True
        if left_out and default is not None:
            yield _Set(default, outside)

    def _read_call(self, called: Called) -> None:
        """Options of argparse, and what `SimpleNamespace(shuffle=True)` and the like set."""
        last, given = _last(called.node.func), {one.arg: one.value for one in called.node.keywords}
        if last in ("add_argument", "add_option", "option"):
            name = _option(called.node, given)
            if name:
                self._attributes[name].append(_Set(_default(given), called.scope))
        else:
            for keyword, value in given.items():
                if keyword is not None and last in (
                    "SimpleNamespace",
                    "Namespace",
                    "dict",
                    "set_defaults",
                ):
                    self._attributes[keyword].append(_Set(value, called.scope))

    def values(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> Values:
        """Return all that an expression may be, or None where something of it is not known.

        >>> from lockstep_check.scripts.reading import read_script
        >>> script = read_script("def f(p=0.1):\\n    return p\\n", "a.py")
        >>> project = Project({"a.py": script})
        >>> project.values(ast.parse("p", mode="eval").body, Scope("a.py", ("f",)))
        frozenset({0.1})
        """
        if node is None or depth > _DEEPEST:
            return None
        if isinstance(node, ast.Constant):
            return frozenset([node.value])
        if isinstance(node, ast.Name):
            return self._of_name(node.id, scope, depth)
        if isinstance(node, ast.Attribute):
            return self._of_attribute(node, scope, depth)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._union(self._attributes.get(str(node.slice.value), []), depth)
        if isinstance(node, ast.IfExp):
            return self._of_choice(node, scope, depth)
        if isinstance(node, ast.Call):
            return self._of_call(node, scope, depth)
        return self._of_operator(node, scope, depth)

    def _of_name(self, name: str, scope: Scope, depth: int) -> Values:
        for end in range(len(scope.functions), -1, -1):
            found = self._names.get((scope.file, scope.functions[:end], name))
            if found:
                return self._union(found, depth)
        imported = self.scripts[scope.file].names.get(name) if scope.file in self.scripts else None
        return self._of_import(imported, depth) if imported else None

    def _of_import(self, name: str, depth: int) -> Values:
        """What a module of the project sets a name to."""
        module, _, last = name.rpartition(".")
        ends = (f"{module.replace('.', '/')}.py", f"{module.replace('.', '/')}/__init__.py")
        for file in self.scripts:
            if module and any(file == end or file.endswith(f"/{end}") for end in ends):
                return self._union(self._names.get((file, (), last), []), depth)
        return None

    def _of_attribute(self, node: ast.Attribute, scope: Scope, depth: int) -> Values:
        known = self._attributes.get(node.attr)
        if known:
            return self._union(known, depth)
        script = self.scripts.get(scope.file)
        return self._of_import(full_name(node, script.names), depth) if script else None

    def _union(self, found: Iterable[_Set], depth: int) -> Values:
        together: set[Any] = set()
        found = list(found)
        for one in found:
            values = self.values(one.value, one.scope, depth + 1)
            if values is None:
                return None
            together |= values
        return frozenset(together) if found and len(together) <= _MOST_VALUES else None

    def _of_choice(self, node: ast.IfExp, scope: Scope, depth: int) -> Values:
        test = self.values(node.test, scope, depth + 1)
        truths = {True, False} if test is None else {bool(one) for one in test}
        branches = [node.body if truth else node.orelse for truth in truths]
        return self._union([_Set(one, scope) for one in branches], depth)

    def _of_call(self, node: ast.Call, scope: Scope, depth: int) -> Values:
        last = _last(node.func)
        if isinstance(node.func, ast.Name) and last in _CASTS and len(node.args) == 1:
            return _mapped(_CASTS[last], [self.values(node.args[0], scope, depth + 1)])
        if last in ("get", "getenv", "pop") and len(node.args) == 2:
            return self._with_default(node.args[0], node.args[1], scope, depth)
        if last == "getattr" and len(node.args) == 3:
            return self._with_default(node.args[1], node.args[2], scope, depth)
        if last == "field":
            default = next((one.value for one in node.keywords if one.arg == "default"), None)
            return self.values(default, scope, depth + 1)
        return None

    def _with_default(self, key: ast.expr, default: ast.expr, scope: Scope, depth: int) -> Values:
        named = key.value if isinstance(key, ast.Constant) else None
        known = self._attributes.get(named, []) if isinstance(named, str) else []
        return self._union([*known, _Set(default, scope)], depth)

    def _of_operator(self, node: ast.expr, scope: Scope, depth: int) -> Values:
        if isinstance(node, ast.UnaryOp) and type(node.op) in _OPERATORS:
            return _mapped(_OPERATORS[type(node.op)], [self.values(node.operand, scope, depth + 1)])
        if isinstance(node, ast.BoolOp):
            return self._of_and_or(node, scope, depth)
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            operands, kind = [node.left, node.comparators[0]], _OPERATORS.get(type(node.ops[0]))
        elif isinstance(node, ast.BinOp):
            operands, kind = [node.left, node.right], _OPERATORS.get(type(node.op))
        else:
            return None
        if kind is None:
            return None
        return _mapped(kind, [self.values(one, scope, depth + 1) for one in operands])

    def _of_and_or(self, node: ast.BoolOp, scope: Scope, depth: int) -> Values:
        operands = [self.values(one, scope, depth + 1) for one in node.values]
        decides = isinstance(node.op, ast.Or)
        if any(
            one is not None and one and all(bool(item) is decides for item in one)
            for one in operands
        ):
            return frozenset([decides])
        both = any if decides else all
        return _mapped(lambda *items: both(map(bool, items)), operands)

    def reached(self, scope: Scope, depth: int = 0) -> bool | None:
        """Return whether a place is come to with the defaults: its conditions hold, and its function is called so.

        None where that is not known.
        """
        answers: list[bool | None] = [
            self._holds(test, wanted, scope) for test, wanted in scope.conditions
        ]
        if scope.functions and depth <= _DEEPEST:
            answers.append(self._is_called(scope.functions[-1], depth))
        if False in answers:
            return False
        return None if None in answers else True

    def _holds(self, test: ast.expr, wanted: bool, scope: Scope) -> bool | None:
        if ast.unparse(test) in ("__name__ == '__main__'", "'__main__' == __name__"):
            return wanted
        values = self.values(test, scope)
        truths = None if values is None else {bool(one) is wanted for one in values}
        return truths.pop() if truths is not None and len(truths) == 1 else None

    def _is_called(self, function: str, depth: int) -> bool | None:
        if function.startswith("__"):
            return True
        calls = self._calls.get(function, [])
        outside = [one.scope for one in calls if function not in one.scope.functions]
        answers = [self.reached(scope, depth + 1) for scope in outside]
        if True in answers:
            return True
        used = any(
            isinstance(node, (ast.Name, ast.Attribute)) and _last(node) == function
            for script in self.scripts.values()
            for node in ast.walk(script.tree)
        )
        return None if None in answers or (used and not calls) else False

    def repeats(self, scope: Scope, depth: int = 0) -> bool:
        """Return whether a place is come to again and again: in a loop, or in a function that is called in one."""
        if scope.repeats or depth > _DEEPEST:
            return scope.repeats
        if not scope.functions:
            return False
        function = scope.functions[-1]
        calls = [
            one.scope
            for one in self._calls.get(function, [])
            if function not in one.scope.functions
        ]
        return function in _CALLED_EACH_STEP or any(self.repeats(one, depth + 1) for one in calls)

    def calls_behind(self, node: ast.expr | None, scope: Scope, depth: int = 0) -> Iterator[str]:
        """Yield the full names of all calls that an expression's value comes from."""
        if node is None or depth > _DEEPEST:
            return
        for part in ast.walk(node):
            if isinstance(part, ast.Call):
                yield full_name(part.func, self.scripts[scope.file].names)
            elif isinstance(part, (ast.Name, ast.Attribute)):
                for one in self._behind(part, scope):
                    if one.value is not None and one.value is not node:
                        yield from self.calls_behind(one.value, one.scope, depth + 1)

    def _behind(self, node: ast.Name | ast.Attribute, scope: Scope) -> list[_Set]:
        if isinstance(node, ast.Attribute):
            return self._attributes.get(node.attr, [])
        for end in range(len(scope.functions), -1, -1):
            found = self._names.get((scope.file, scope.functions[:end], node.id))
            if found:
                return found
        return []


def _last(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _option(node: ast.Call, given: Mapping[str | None, ast.expr]) -> str:
    """The name that argparse gives the value of an option."""
    if isinstance(dest := given.get("dest"), ast.Constant):
        return str(dest.value)
    texts = [
        one.value
        for one in node.args
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    ]
    long = [text for text in texts if text.startswith("--")] or texts
    return long[0].lstrip("-").replace("-", "_").partition("/")[0] if long else ""


def _default(given: Mapping[str | None, ast.expr]) -> ast.expr | None:
    """What argparse takes where an option is left out; None where it has to be given."""
    if "default" in given:
        return given["default"]
    required = given.get("required")
    if isinstance(required, ast.Constant) and required.value:
        return None
    action = given.get("action")
    kind = action.value if isinstance(action, ast.Constant) else ""
    return ast.Constant({"store_true": False, "store_false": True}.get(str(kind)))


def _mapped(function: Callable[..., Any], operands: list[Values]) -> Values:
    """A function of every combination of values; None where one is not known or does not go."""
    known = [one for one in operands if one is not None]
    if len(known) < len(operands):
        return None
    results: set[Any] = set()
    for items in product(*known):
        try:
            results.add(function(*items))
        except (TypeError, ValueError, ArithmeticError):
            return None
    return frozenset(results) if len(results) <= _MOST_VALUES else None
