"""Advice on loaders: the last batch, and how batches reach the device."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep.wings.migrate.advice.advisor import Advisor
from lockstep.wings.migrate.advice.loops import BatchLoop, Loader
from lockstep.wings.migrate.engine.arguments import (
    appended,
    argument,
    argument_end,
    has_stars,
    in_order,
    insertion,
    is_constant,
    keyword,
    opening,
)
from lockstep.wings.migrate.engine.scopes import ModuleScopes
from lockstep.wings.migrate.plan import Edit

_EVALUATION = ("val", "test", "eval", "dev", "infer", "predict")


def find_loading(advisor: Advisor) -> None:
    """Advise on every loader of the module, and on every copy of its batches."""
    loops = advisor.batch_loops
    training: set[ast.AST] = {loop.node for loop in advisor.training_loops}
    trained = {loop.loader for loop in loops if _trains(loop, training)}
    for loader in advisor.loaders:
        if loader in trained or _is_named_training(loader):
            _advise_last_batch(advisor, loader)
    waiting: dict[Loader, list[ast.Call]] = {}
    for loop in loops:
        for call in copies(advisor.scopes, loop):
            if keyword(call, "non_blocking") is None:
                _advise_copy(advisor, loop, call)
            elif is_constant(argument(call, "non_blocking"), True):
                waiting.setdefault(loop.loader, []).append(call)
    for loader, calls in waiting.items():
        if loader.is_readable and loader.is_set("pin_memory") is False:
            advisor.suggest("advice/unpinned-copy", loader.call, "pin_memory=True", others=calls)


def copies(scopes: ModuleScopes, loop: BatchLoop) -> Iterator[ast.Call]:
    """Calls that copy a part of a batch to the device: `images.cuda()`, `batch["x"].to(device)`."""
    for node in ast.walk(loop.node):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        part = node.func.value
        while isinstance(part, ast.Subscript):
            part = part.value
        if isinstance(part, ast.Name) and part.id in loop.batch and _moves(scopes, node):
            yield node


def _moves(scopes: ModuleScopes, call: ast.Call) -> bool:
    """Whether a call moves to a device and does nothing else."""
    function = call.func
    if not isinstance(function, ast.Attribute) or has_stars(call):
        return False
    if any(item.arg not in ("device", "non_blocking") for item in call.keywords):
        return False
    if function.attr == "cuda":
        return len(call.args) <= 1
    given = [*call.args, *(item.value for item in call.keywords if item.arg == "device")]
    if function.attr != "to" or len(given) != 1:
        return False
    text = scopes.text(given[0]).lower()
    return (
        not scopes.name(given[0]).startswith("torch.") and "type" not in text and "cpu" not in text
    )


def _advise_copy(advisor: Advisor, loop: BatchLoop, call: ast.Call) -> None:
    """From a loader that collates by itself all that has `.to` is a tensor, so that the keyword is known to it."""
    loader = loop.loader
    if not loader.is_readable or loader.is_set("pin_memory") is not True:
        return
    replacement = "non_blocking=True"
    if loader.argument("collate_fn") is not None:
        advisor.suggest("advice/pinned-copy", call, replacement)
        return
    edits = _append(advisor, call, replacement)
    advisor.offer("advice/pinned-copy", advisor.scopes.span(call), replacement, edits)


def _append(advisor: Advisor, call: ast.Call, text: str) -> list[Edit]:
    """Append a keyword behind what other rules put into the call."""
    scopes = advisor.scopes
    if call.args or call.keywords:
        return appended(scopes, call, text)
    at = opening(scopes, call)
    filled = any(
        edit.span.start == at and edit.text
        for mention in advisor.unit.mentions
        for edit in mention.edits
    )
    return [insertion(at, f", {text}" if filled else text)]


def _trains(loop: BatchLoop, training: set[ast.AST]) -> bool:
    return any(node in training for node in ast.walk(loop.node))


def _is_named_training(loader: Loader) -> bool:
    name = loader.name.lower()
    return "train" in name and not any(word in name for word in _EVALUATION)


def _advise_last_batch(advisor: Advisor, loader: Loader) -> None:
    size = loader.argument("batch_size")
    if not loader.is_readable or size is None or loader.argument("batch_sampler") is not None:
        return
    if loader.argument("drop_last") is not None or (
        isinstance(size, ast.Constant) and size.value in (None, 1)
    ):
        return
    scopes = advisor.scopes
    last = in_order(loader.call, scopes)[-1]
    edit = insertion(argument_end(scopes, loader.call, last), ", drop_last=True")
    advisor.offer("advice/drop-last", scopes.span(loader.call), "drop_last=True", [edit])
