"""Advice on training loops, and on the loaders and losses of a training."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep_migrate.advice.advisor import Advisor
from lockstep_migrate.engine.arguments import (
    argument,
    argument_end,
    has_stars,
    in_order,
    insertion,
)
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.tree import parts_of
from lockstep_migrate.name_lists import listed_names

_LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
_EVALUATION = ("val", "test", "eval", "dev", "infer", "predict")
_POSITIONS = {"batch_size": 1, "batch_sampler": 4, "drop_last": 8}
_CLASS_LOSSES = listed_names("class losses")
_READS = frozenset({"item", "tolist", "numpy", "cpu"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_CONDITIONS = (ast.If, ast.IfExp, ast.BoolOp, ast.ExceptHandler, ast.Match)


def find_loaders(advisor: Advisor) -> None:
    """Advise on the last batch of every loader that a training loop goes over, or that is called the training's."""
    scopes = advisor.scopes
    trained = {
        scopes.text(part)
        for loop in training_loops(scopes)
        for part in ast.walk(getattr(loop, "iter", loop))
        if isinstance(part, ast.Name | ast.Attribute)
    }
    for node in scopes.of(ast.Assign):
        name, call = scopes.text(node.targets[0]), node.value
        if not isinstance(call, ast.Call) or scopes.name(call.func) not in _LOADERS:
            continue
        words = name.lower()
        named = "train" in words and not any(word in words for word in _EVALUATION)
        if named or name in trained:
            _advise_last_batch(advisor, call)


def _advise_last_batch(advisor: Advisor, call: ast.Call) -> None:
    size, sampler, drop = (argument(call, name, place) for name, place in _POSITIONS.items())
    single = isinstance(size, ast.Constant) and size.value in (None, 1)
    if has_stars(call) or size is None or single or sampler is not None or drop is not None:
        return
    end = argument_end(advisor.scopes, call, in_order(call, advisor.scopes)[-1])
    edit = insertion(end, ", drop_last=True")
    advisor.offer("advice/drop-last", call, "drop_last=True", [edit])


def find_losses(advisor: Advisor) -> None:
    """Advise once on the losses over classes, whose targets a device may want in another dtype."""
    found = [call for call in advisor.scopes.of(ast.Call) if _is_class_loss(advisor.scopes, call)]
    if found:
        advisor.suggest("advice/int32-targets", found[0], "target.to(torch.int32)", others=found)


def _is_class_loss(scopes: ModuleScopes, call: ast.Call) -> bool:
    return scopes.name(call.func) in _CLASS_LOSSES


def find_waits(advisor: Advisor) -> None:
    """Advise once a training loop, at the first place that waits in every step."""
    for loop, losses in training_loops(advisor.scopes).items():
        waits = [node for node in inside(loop) if _waits(losses, node)]
        if waits:
            waits.sort(key=advisor.scopes.span)
            advisor.suggest(
                "advice/synchronising-read",
                waits[0],
                "keep the tensor, as in total += loss.detach(), and read it where it is shown",
                others=waits,
            )


def training_loops(scopes: ModuleScopes) -> dict[ast.AST, set[str]]:
    """The innermost loop around each `backward()`, with the names that it is called on."""
    found: dict[ast.AST, set[str]] = {}
    for node in scopes.of(ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr == "backward":
            above = next(
                (a for a in scopes.ancestors(node) if isinstance(a, (*_LOOPS, *_SCOPES))), None
            )
            if isinstance(above, _LOOPS):
                found.setdefault(above, set()).update(_names(node.func.value, *node.args))
    return found


def inside(loop: ast.AST) -> Iterator[ast.AST]:
    """What runs in every turn of a loop: neither behind a condition nor in a function that is only defined there."""
    waiting: list[ast.AST] = list(reversed(getattr(loop, "body", [])))
    while waiting:
        node = waiting.pop()
        if not isinstance(node, (*_SCOPES, *_CONDITIONS)):
            yield node
            waiting.extend(reversed(list(parts_of(node))))


def _waits(losses: set[str], node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    if isinstance(function, ast.Attribute):
        return function.attr in _READS and not node.args and not node.keywords
    if not isinstance(function, ast.Name) or not node.args:
        return False
    if function.id in ("float", "int", "bool"):
        return isinstance(node.args[0], ast.Name) and node.args[0].id in losses
    return function.id == "print" and any(_shows(losses, given) for given in node.args)


def _shows(losses: set[str], node: ast.expr) -> bool:
    """Whether printing an expression reads the value of a loss: it is one, or puts one into a text."""
    if isinstance(node, ast.JoinedStr):
        parts = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        parts = getattr(node.right, "elts", [node.right])
    elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "format":
        parts = node.args
    else:
        parts = [node]
    return any(isinstance(part, ast.Name) and part.id in losses for part in parts)


def _names(*nodes: ast.AST) -> set[str]:
    found = (part for node in nodes for part in ast.walk(node))
    return {part.id for part in found if isinstance(part, ast.Name)}
