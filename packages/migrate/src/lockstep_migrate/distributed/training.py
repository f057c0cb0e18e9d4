"""Find a main script's training loaders, the loops over them, and the models to wrap.

All is told by names inside one file: a loader is a `DataLoader` that one variable holds, a training loop is one over
that name that computes gradients, and where a function has it as a parameter, every call gives it by that very name.
Nothing follows values; what is not written that way is refused with its reason.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.plugin import accelerators
from lockstep_migrate.engine.arguments import argument, called, is_constant
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import blocks_of

LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
Function = ast.FunctionDef | ast.AsyncFunctionDef
_PASSING = frozenset(
    {"enumerate", "iter", "list", "tuple", "zip", "tqdm", "trange", "track", "progress_bar"}
)
_SAMPLERS = ("sampler", "batch_sampler")
_MOVING = frozenset({"to", *(one.name for one in accelerators() if one.method)})
_PREPARING = _MOVING | {
    "cpu", "half", "float", "double", "bfloat16", "type", "apply", "load_state_dict",
    "requires_grad_", "share_memory",
}  # fmt: skip


class CannotDistributeError(ValueError):
    """The script is not written as the template needs it; the message is the reason that is shown."""

    def __init__(self, node: ast.AST | None, reason: str) -> None:
        super().__init__(reason)
        self.node = node


@dataclass(frozen=True, slots=True)
class Loader:
    """A call of `DataLoader`, the variable that holds it (empty where that is not told), and training loops over it."""

    call: ast.Call
    name: str
    loops: tuple[ast.For, ...]


@dataclass(frozen=True, slots=True)
class Wrap:
    """A model's variable, and the statement behind which it is wrapped."""

    name: str
    statement: ast.stmt


class Script:
    """The functions, loops and calls of one file.

    scopes: The file.
    """

    def __init__(self, scopes: ModuleScopes) -> None:
        self.scopes = scopes
        self.calls = list(scopes.of(ast.Call))
        self.functions: dict[str, Function] = {}
        definitions: Iterator[Function] = scopes.of(ast.FunctionDef, ast.AsyncFunctionDef)
        for function in definitions:
            self.functions[function.name] = function
        self._training: set[str] = set()
        while found := {
            name
            for name, function in self.functions.items()
            if name not in self._training and self.trains(function)
        }:
            self._training |= found

    def trains(self, node: ast.AST) -> bool:
        """Whether a node computes gradients: by a call of `.backward()`, or of a function of this file that does."""
        return any(
            isinstance(inner, ast.Call)
            and (
                (isinstance(inner.func, ast.Attribute) and inner.func.attr == "backward")
                or (self._own_name(inner) in self._training)
            )
            for inner in ast.walk(node)
        )

    def stores(self, name: str) -> list[ast.Name]:
        """Every place where a variable is assigned."""
        names = self.scopes.of(ast.Name)
        return [node for node in names if node.id == name and isinstance(node.ctx, ast.Store)]

    def is_variable(self, name: str, at: ast.AST) -> bool:
        """Whether a name stands at a place for what this file assigns to it, or for a parameter: not for an import."""
        stores = self.stores(name)
        found = self.scopes.bindings(name, self.scopes.scope(at))
        return any(one.node in stores or isinstance(one.node, ast.arg) for one in found)

    def callers(self, function: Function) -> list[ast.Call]:
        """The calls in this file of a function, by its name."""
        method = isinstance(self.scopes.parents[function], ast.ClassDef)
        kind = ast.Attribute if method else ast.Name
        named = (call for call in self.calls if called(call) == function.name)
        return [call for call in named if isinstance(call.func, kind)]

    def _own_name(self, call: ast.Call) -> str:
        """The function that a call names by itself or as a method of `self`; `model.train()` is somebody else's."""
        target = getattr(call.func, "value", None)
        return called(call) if target is None or getattr(target, "id", "") == "self" else ""

    def is_given(self, function: Function, name: str) -> bool:
        """Whether a function has no parameter of a name, or every call gives a variable of that very name for it."""
        arguments = function.args
        positional = [item.arg for item in (*arguments.posonlyargs, *arguments.args)]
        if name not in (*positional, *(item.arg for item in arguments.kwonlyargs)):
            return True
        bound = isinstance(self.scopes.parents[function], ast.ClassDef)
        place = positional.index(name) - bound if name in positional else None
        given = [argument(call, name, place) for call in self.callers(function)]
        return bool(given) and all(isinstance(one, ast.Name) and one.id == name for one in given)

    def loops_over(self, name: str) -> list[ast.For]:
        """Training loops over a variable."""
        return [
            loop
            for loop in self.scopes.of(ast.For)
            if name in iterated(loop.iter)
            and self.is_variable(name, loop)
            and self.trains(ast.Module(loop.body, []))
        ]


def iterated(node: ast.expr) -> list[str]:
    """The variables that a loop iterates over, out of `enumerate(...)`, `zip(...)` and progress bars."""
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.Call) and called(node) in _PASSING:
        return [name for given in node.args for name in iterated(given)]
    return []


def find_loaders(script: Script) -> list[Loader]:
    """Every call of torch's `DataLoader`, with the training loops over the one variable that holds it."""
    found = []
    for call in script.calls:
        if script.scopes.name(call.func) in LOADERS:
            parent = script.scopes.parents[call]
            targets = parent.targets if isinstance(parent, ast.Assign) else []
            name = targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""
            alone = name and len(script.stores(name)) == 1
            found.append(Loader(call, name, tuple(script.loops_over(name) if alone else ())))
    return found


def obstacle(script: Script, loader: Loader) -> str:
    """Why a training loader cannot be given a sampler; nothing where it can."""
    call = loader.call
    if any(isinstance(item, ast.Starred) for item in call.args):
        return "its arguments are inside a *"
    if len(call.args) > 3:
        return "it is given a sampler, or what follows it, by position"
    for name in _SAMPLERS:
        given = argument(call, name)
        if given is not None and not is_constant(given, None):
            return f"it has a {name} of its own"
    hidden = any(item.arg is None for item in call.keywords)
    if hidden and any(
        getattr(node, "value", None) in _SAMPLERS or getattr(node, "arg", None) in _SAMPLERS
        for node in script.scopes.of(ast.Constant, ast.keyword)
    ):
        return "it may have a sampler of its own, inside **"
    if "IterableDataset" in script.scopes.source.text:
        return "its dataset may be a stream (IterableDataset), which no sampler can share out"
    around = (script.scopes.function(loop) for loop in loader.loops)
    if not all(one is None or script.is_given(one, loader.name) for one in around):
        return "the function of that loop is called with a loader of another name, or not here"
    return ""


def find_wrap(script: Script, name: str, loops: Sequence[ast.For]) -> Wrap:
    """Where a variable holds the finished model.

    Raises CannotDistributeError if that cannot be told by the variable's name, or something else is trained as well.
    """
    scopes, stores = script.scopes, script.stores(name)
    hint = "name the model's variable with --model"
    if not stores:
        raise CannotDistributeError(None, f"{name}: no such variable is assigned here; {hint}")
    inside = [node for loop in loops for node in ast.walk(loop)]
    named = [node for node in inside if isinstance(node, ast.Name) and node.id == name]
    if not any(script.is_variable(name, node) for node in named):
        raise CannotDistributeError(stores[0], f"{name}: no training loop uses it; {hint}")
    if len({id(scopes.function(node)) for node in stores}) > 1:
        raise CannotDistributeError(stores[0], f"{name} is assigned in several functions")
    for loop in loops:
        function = scopes.function(loop)
        if function is not None and not script.is_given(function, name):
            reason = f"{function.name} is called with a model of another name, or not here"
            raise CannotDistributeError(function, f"{name}: {reason}")
    last = None
    for statement in _common_block(scopes, stores):
        binds = any(node in stores for node in ast.walk(statement))
        if binds or (last is not None and _prepares(script, statement, name)):
            last = statement
        elif last is not None and script.trains(statement) and not _defines(statement):
            break
    if last is None:
        raise CannotDistributeError(stores[0], f"{name} is not assigned in a block of statements")
    end = scopes.span(last).end
    if any(scopes.span(node).start > end for node in stores):
        raise CannotDistributeError(
            stores[-1], f"{name} is assigned again after training has begun"
        )
    return Wrap(name, last)


def check_models(script: Script, wraps: Sequence[Wrap]) -> None:
    """Make sure that nothing is trained unwrapped, and that no wrapped model is moved.

    Raises CannotDistributeError if so, or where it cannot be told; it says where.
    """
    names = [wrap.name for wrap in wraps]
    for call in script.calls:
        name = script.scopes.name(call.func)
        if name.startswith(("torch.optim.", "apex.optimizers.")) and ".lr_scheduler" not in name:
            _check_optimizer(script, call, names)
        target = getattr(call.func, "value", None)
        inside = any(call in ast.walk(wrap.statement) for wrap in wraps)
        if (
            getattr(call.func, "attr", "") in _MOVING
            and isinstance(target, ast.Name)
            and target.id in names
            and not inside
            and not is_before(script, wraps, call)
        ):
            reason = (
                "the model is moved after it would be wrapped; move it before the training begins"
            )
            raise CannotDistributeError(call, reason)


def is_before(script: Script, wraps: Sequence[Wrap], node: ast.AST) -> bool:
    """Whether a place comes before a wrap in the same function, or in the module itself."""
    scopes = script.scopes
    return any(
        scopes.function(node) is scopes.function(wrap.statement)
        and scopes.span(node).start < scopes.span(wrap.statement).end
        for wrap in wraps
    )


def _check_optimizer(script: Script, call: ast.Call, names: list[str]) -> None:
    """What an optimizer takes has to be the parameters of wrapped models."""
    if not call.args and not call.keywords:
        return
    taken = [
        node.value
        for given in [
            *call.args[:1],
            *(item.value for item in call.keywords if item.arg == "params"),
        ]
        for node in ast.walk(given)
        if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters")
    ]
    roots = [_root(node) for node in taken]
    other = next((root for root in roots if root not in names), None)
    if other and other != "self":
        given_names = ",".join([*names, other])
        reason = f"{other} is trained too, and would differ from process to process; give all: --model {given_names}"
        raise CannotDistributeError(call, reason)
    if not roots or other is not None:
        reason = (
            "which models this optimizer trains cannot be told here; give it model.parameters()"
        )
        raise CannotDistributeError(call, reason)


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def _common_block(scopes: ModuleScopes, nodes: Sequence[ast.AST]) -> list[ast.stmt]:
    """The innermost block that holds all nodes, themselves or inside others."""
    for above in scopes.ancestors(nodes[0]):
        for block in blocks_of(above):
            held = {inner for statement in block for inner in ast.walk(statement)}
            if held.issuperset(nodes):
                return block
    return []


def _prepares(script: Script, statement: ast.stmt, name: str) -> bool:
    """Whether a statement still makes the model ready: moves it, loads it, freezes a part of it."""
    if _defines(statement) or script.trains(statement):
        return False
    return any(
        (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _PREPARING
            and script.scopes.text(node.func.value) == name
        )
        or (
            isinstance(node, ast.Attribute)
            and node.attr == "requires_grad"
            and isinstance(node.ctx, ast.Store)
        )
        for node in ast.walk(statement)
    )


def _defines(statement: ast.stmt) -> bool:
    return isinstance(statement, Function | ast.ClassDef)
