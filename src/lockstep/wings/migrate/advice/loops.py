"""Training loops and the loaders that feed them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lockstep.wings.migrate.engine.arguments import argument, called, has_stars
from lockstep.wings.migrate.engine.scopes import ModuleScopes
from lockstep.wings.migrate.engine.tree import parts_of

_LOADER = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
_WRAPPERS = frozenset({"enumerate", "tqdm", "trange", "track", "iter", "islice"})
_POSITIONAL = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.Match)


@dataclass(frozen=True, slots=True, eq=False)
class Loader:
    """A call of `DataLoader` that is assigned to a name.

    Parameters
    ----------
    call
        The call.
    name
        What it is assigned to, as written: `train_loader`, `self.train_loader`.
    """

    call: ast.Call
    name: str

    @property
    def is_readable(self) -> bool:
        """Whether every argument can be seen."""
        return not has_stars(self.call)

    def argument(self, name: str) -> ast.expr | None:
        """An argument by its name, wherever it is given."""
        return argument(self.call, name, _POSITIONAL.index(name))

    def is_set(self, name: str) -> bool | None:
        """Whether a switch is on, by a constant; off where it is not given, `None` where it cannot be told."""
        value = self.argument(name)
        if value is None:
            return False
        return bool(value.value) if isinstance(value, ast.Constant) else None


@dataclass(frozen=True, slots=True, eq=False)
class TrainingLoop:
    """The innermost loop around a `backward()`.

    Parameters
    ----------
    node
        The loop.
    losses
        Names that `backward()` is called on in it.
    """

    node: ast.For | ast.AsyncFor | ast.While
    losses: frozenset[str]


@dataclass(frozen=True, slots=True, eq=False)
class BatchLoop:
    """A loop over the batches of a known loader.

    Parameters
    ----------
    node
        The loop.
    loader
        Where its batches come from.
    batch
        Names that each batch is taken into.
    """

    node: ast.For | ast.AsyncFor
    loader: Loader
    batch: frozenset[str]


def find_loaders(scopes: ModuleScopes) -> list[Loader]:
    """Every `DataLoader` of torch that a module makes and names."""
    found = []
    for node in scopes.of(ast.Assign):
        target, value = node.targets[0], node.value
        if not isinstance(value, ast.Call) or not isinstance(target, ast.Name | ast.Attribute):
            continue
        if scopes.name(value.func) in _LOADER:
            found.append(Loader(value, scopes.text(target)))
    return found


def find_training_loops(scopes: ModuleScopes) -> list[TrainingLoop]:
    """Every loop in which gradients are computed, in the order of the text."""
    losses: dict[ast.AST, set[str]] = {}
    for node in scopes.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            loop = _loop_around(scopes, node)
            if loop is not None:
                losses.setdefault(loop, set()).update(_losses(node))
    return [TrainingLoop(loop, frozenset(names)) for loop, names in losses.items()]  # type: ignore[arg-type]


def find_batch_loops(scopes: ModuleScopes, loaders: Iterable[Loader]) -> list[BatchLoop]:
    """Every loop over a loader that the module makes, found by its name.

    A function may take the loader as a parameter: what the module calls the same is taken to be the same, if every
    loader of that name is made alike.
    """
    known: dict[str, Loader | None] = {}
    for loader in loaders:
        known[loader.name] = None if loader.name in known else loader
    found = []
    loops: Iterator[ast.For | ast.AsyncFor] = scopes.of(ast.For, ast.AsyncFor)
    for node in loops:
        loader_of = known.get(scopes.text(_iterated(node.iter)))
        if loader_of is not None:
            target = node.target
            if _is_enumerated(node.iter) and isinstance(target, ast.Tuple):
                target = target.elts[-1]
            found.append(BatchLoop(node, loader_of, frozenset(_names(target))))
    return found


def inside(loop: ast.AST) -> Iterator[ast.AST]:
    """What runs in every turn of a loop: neither behind a condition nor in a function that is only defined there."""
    waiting: list[ast.AST] = list(reversed(getattr(loop, "body", [])))
    while waiting:
        node = waiting.pop()
        if isinstance(node, (*_SCOPES, *_CONDITIONS)):
            continue
        yield node
        waiting.extend(reversed(list(parts_of(node))))


def is_forward(scopes: ModuleScopes, node: ast.AST) -> bool:
    """Whether a node runs in the `forward` of a module of torch."""
    function = scopes.function(node)
    if function is None or function.name not in ("forward", "__call__"):
        return False
    owner = scopes.parents.get(function)
    return isinstance(owner, ast.ClassDef) and any(
        scopes.text(base).rpartition(".")[2].endswith("Module") for base in owner.bases
    )


def _loop_around(scopes: ModuleScopes, node: ast.AST) -> ast.AST | None:
    for above in scopes.ancestors(node):
        if isinstance(above, _LOOPS):
            return above
        if isinstance(above, _SCOPES):
            return None
    return None


def _losses(call: ast.Call) -> Iterator[str]:
    function = call.func
    if isinstance(function, ast.Attribute):
        for node in ast.walk(function.value):
            if isinstance(node, ast.Name):
                yield node.id
    for given in call.args:
        if isinstance(given, ast.Name):
            yield given.id


def _iterated(node: ast.expr) -> ast.expr:
    while isinstance(node, ast.Call) and node.args and called(node) in _WRAPPERS:
        node = node.args[0]
    return node


def _is_enumerated(node: ast.expr) -> bool:
    while isinstance(node, ast.Call) and node.args:
        if called(node) == "enumerate":
            return True
        node = node.args[0]
    return False


def _names(target: ast.expr) -> Iterator[str]:
    for node in ast.walk(target):
        if isinstance(node, ast.Name):
            yield node.id
