"""Which data loaders feed the training, told by the loops that compute gradients, and which loops count the epochs."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from lockstep.wings.migrate.distributed.flow import Flow, Function
from lockstep.wings.migrate.engine.arguments import argument, called, is_constant
from lockstep.wings.migrate.engine.scopes import Bound, ModuleScopes
from lockstep.wings.migrate.engine.tree import is_own_attribute

LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
_COUNTING = frozenset({"range", "trange", "count"})
_POSITIONAL = 3
_DEPTH = 6


@dataclass(slots=True)
class Loader:
    """A call that makes a data loader, and the loops that iterate over it.

    Parameters
    ----------
    call
        `DataLoader(...)`.
    training
        What iterates over it and computes gradients.
    evaluation
        What iterates over it and does not.
    """

    call: ast.Call
    training: list[Iteration] = field(default_factory=list)
    evaluation: list[Iteration] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Iteration:
    """A loop, and the expression in it that stands for the loader."""

    loop: ast.For | ast.AsyncFor | ast.While
    loader: ast.expr


@dataclass(frozen=True, slots=True)
class Epoch:
    """The loop over epochs around a training loop.

    Parameters
    ----------
    loop
        The loop; its target counts the epochs.
    loader
        The loader, as the source calls it inside that loop.
    """

    loop: ast.For
    loader: str


def find_loaders(flow: Flow) -> list[Loader]:
    """Every call of torch's `DataLoader`, with the loops over it."""
    scopes = flow.scopes
    found = {call: Loader(call) for call in flow.calls if scopes.name(call.func) in LOADERS}
    for iteration in iterations(flow):
        made = [call for call in found if iteration.loader in flow.reaching([call])]
        trains = bool(made) and flow.trains(_body(iteration.loop))
        for call in made:
            (found[call].training if trains else found[call].evaluation).append(iteration)
    return list(found.values())


def foreign_loops(flow: Flow, loaders: list[Loader]) -> list[Iteration]:
    """Innermost training loops over something whose making is not seen here."""
    known = {id(item.loop) for loader in loaders for item in loader.training}
    return [
        item
        for item in iterations(flow)
        if id(item.loop) not in known
        and isinstance(item.loop, ast.For)
        and flow.trains(_body(item.loop))
        and "loader" in flow.scopes.text(item.loader).lower()
    ]


def iterations(flow: Flow) -> Iterator[Iteration]:
    """Every loop with what it iterates over; `next(batches)` counts for the loop around it."""
    for node in flow.scopes.nodes:
        if isinstance(node, ast.For | ast.AsyncFor):
            for value in _iterated(node.iter):
                yield Iteration(node, value)
        elif isinstance(node, ast.Call) and called(node) == "next" and node.args:
            loop = next(
                (a for a in flow.scopes.ancestors(node) if isinstance(a, ast.For | ast.While)), None
            )
            if loop is not None and isinstance(node.func, ast.Name):
                yield Iteration(loop, node.args[0])


def obstacle(flow: Flow, call: ast.Call) -> str:
    """Why a training loader cannot be given a sampler; nothing where it can."""
    if any(isinstance(item, ast.Starred) for item in call.args):
        return "its arguments are inside a *"
    if len(call.args) > _POSITIONAL:
        return "it is given a sampler, or what follows it, by position"
    for name in ("sampler", "batch_sampler"):
        given = argument(call, name)
        if given is not None and not is_constant(given, None):
            return f"it has a {name} of its own"
        if any(name in _keys(flow, star.value) for star in call.keywords if star.arg is None):
            return f"it has a {name} of its own, inside **"
    if _is_stream(flow, call):
        return "its dataset is a stream (IterableDataset), which no sampler can share out"
    return ""


def evidence(flow: Flow, loader: Loader) -> str:
    """Why a loader is taken for the training's, or not, in words."""
    scopes = flow.scopes
    if loader.training:
        line, _ = scopes.source.position(scopes.span(loader.training[0].loop).start)
        return f"the loop over it in line {line} computes gradients"
    signs = [f"is called {name}" for name in _names(flow, loader.call) if "train" in name.lower()]
    if is_constant(argument(loader.call, "shuffle"), True):
        signs.append("is shuffled")
    inside = [node for node in ast.walk(loader.call) if isinstance(node, ast.Call)]
    if any(is_constant(argument(call, "train"), True) for call in inside):
        signs.append("holds train=True")
    return " and ".join(signs)


def epochs(flow: Flow, iteration: Iteration) -> list[Epoch]:
    """The loops over epochs around a training loop, through the calls that lead to it."""
    found: dict[ast.For, Epoch] = {}
    for epoch in _around(flow, iteration.loop, iteration.loader, _DEPTH):
        found.setdefault(epoch.loop, epoch)
    return list(found.values())


def _around(flow: Flow, node: ast.AST, loader: ast.expr, depth: int) -> Iterator[Epoch]:
    scopes = flow.scopes
    function = scopes.function(node)
    above = [
        loop
        for loop in _loops_above(scopes, node, function)
        if isinstance(loop.target, ast.Name) and _counts(loop) and _is_visible(flow, loader, loop)
    ]
    named = [loop for loop in above if "epoch" in loop.target.id.lower()]  # type: ignore[attr-defined]
    chosen = (named or above)[:1] if named or len(above) == 1 else []
    if chosen:
        yield Epoch(chosen[0], scopes.text(loader))
    elif not above and function is not None and depth > 0:
        for call in flow.callers(function):
            value = _outside(flow, call, function, loader)
            if value is not None:
                yield from _around(flow, call, value, depth - 1)


def _loops_above(
    scopes: ModuleScopes, node: ast.AST, function: Function | None
) -> Iterator[ast.For]:
    for above in scopes.ancestors(node):
        if above is function:
            return
        if isinstance(above, ast.For):
            yield above


def _outside(flow: Flow, call: ast.Call, function: Function, loader: ast.expr) -> ast.expr | None:
    """What stands for the loader where a function is called."""
    if isinstance(loader, ast.Name):
        bindings = flow.scopes.bindings(loader.id, flow.scopes.scope(loader))
        if len(bindings) == 1 and isinstance(bindings[0].node, ast.arg):
            value = flow.argument(call, function, loader.id)
            return value if isinstance(value, ast.Name) or is_own_attribute(value or call) else None
        at_call = flow.scopes.bindings(loader.id, flow.scopes.scope(call))
        return loader if at_call and at_call == bindings else None
    around = flow.scopes.class_of(call)
    same_class = around is not None and around is flow.scopes.class_of(function)
    return loader if is_own_attribute(loader) and same_class else None


def _is_visible(flow: Flow, loader: ast.expr, loop: ast.For) -> bool:
    """Whether the loader is there already where the loop starts."""
    if not isinstance(loader, ast.Name):
        return is_own_attribute(loader)
    inside = flow.scopes.span(loop)
    return not any(
        binding.kind is not Bound.DEFINITION and inside.contains(flow.scopes.span(binding.node))
        for binding in flow.scopes.bindings(loader.id, flow.scopes.scope(loader))
    )


def _counts(loop: ast.For) -> bool:
    """Whether a loop counts, also behind a progress bar."""
    return any(
        isinstance(node, ast.Call) and called(node) in _COUNTING for node in ast.walk(loop.iter)
    )


def _iterated(node: ast.expr) -> Iterator[ast.expr]:
    """The names that a loop iterates over, out of `enumerate(...)`, `zip(...)` and progress bars."""
    if isinstance(node, ast.Name | ast.Attribute):
        yield node
    elif isinstance(node, ast.Call) and called(node) not in _COUNTING:
        if called(node).endswith("DataLoader"):
            yield node
            return
        for given in node.args:
            yield from _iterated(given)


def _body(loop: ast.AST) -> ast.AST:
    """What a loop repeats."""
    return ast.Module(list(getattr(loop, "body", [])), [])


def _keys(flow: Flow, node: ast.expr) -> set[object]:
    """The keys of dictionaries that an expression is known to hold."""
    return {
        key.value
        for value in flow.trail(node)
        if isinstance(value, ast.Dict)
        for key in value.keys
        if isinstance(key, ast.Constant)
    } | {
        item.arg
        for value in flow.trail(node)
        if isinstance(value, ast.Call) and called(value) == "dict"
        for item in value.keywords
    }


def _is_stream(flow: Flow, call: ast.Call) -> bool:
    dataset = call.args[0] if call.args else argument(call, "dataset")
    for value in flow.trail(dataset) if dataset is not None else ():
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Name):
            continue
        for binding in flow.scopes.bindings(value.func.id, flow.scopes.scope(value.func)):
            bases = binding.node.bases if isinstance(binding.node, ast.ClassDef) else []
            if any(flow.scopes.text(base).endswith("IterableDataset") for base in bases):
                return True
    return False


def _names(flow: Flow, call: ast.Call) -> list[str]:
    parent = flow.scopes.parents[call]
    if isinstance(parent, ast.Assign):
        return [flow.scopes.text(target) for target in parent.targets]
    return []
