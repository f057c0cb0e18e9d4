"""Horovod calls become calls of the NPU's collective library."""

from __future__ import annotations

import ast
from collections.abc import Callable

from lockstep_migrate.engine.arguments import appended, takes_only
from lockstep_migrate.tensorflow.equals import decided_by_row, equal_of, has_row
from lockstep_migrate.tensorflow.gradients import (
    allreduce,
    compression,
    distributed_optimizer,
    gradient_tape,
)
from lockstep_migrate.tensorflow.script import Generation, Script
from lockstep_migrate.tensorflow.sessions import bridge

_RULE = "horovod"


def find_horovod(script: Script) -> None:
    """Decide every use of Horovod."""
    for node in script.references:
        name = script.name(node)
        if not name.startswith("horovod") or script.is_gone(node) or _is_carried(script, node):
            continue
        if _is_import_test(script, node) or decided_by_row(script, node):
            continue
        handle = _HANDLERS[script.generation].get(name)
        if handle is not None:
            handle(script, node)
        else:
            script.list(node, _RULE, "has no equal in the NPU's collective library")
    _find_handed_in(script)


def _is_carried(script: Script, node: ast.expr) -> bool:
    """Whether an assigned variable carries the name here: what is assigned is a site of its own."""
    meanings = script.scopes.meanings(node)
    return isinstance(node, ast.Name) and bool(meanings) and meanings[0].assigned


def _is_import_test(script: Script, node: ast.expr) -> bool:
    """A bare module, as in `if hvd:` or `build(hvd)`: the import stays for it."""
    if script.name(node) not in ("horovod", *_MODULES):
        return False
    script.list(node, _RULE, "asks whether Horovod is there, or hands it on as a module")
    return True


def _find_handed_in(script: Script) -> None:
    """List what is called on Horovod where it came in as an argument or an attribute."""
    for node in script.references:
        if isinstance(node, ast.Attribute) and not script.name(node) and not script.is_gone(node):
            holder = node.value
            last = holder.attr if isinstance(holder, ast.Attribute) else getattr(holder, "id", "")
            name = f"horovod.{node.attr}"
            rows = has_row(name, Generation.TF1)
            if last in _USUAL and (rows or name in _HANDLERS[Generation.TF1]):
                reason = "is Horovod's, by its name; it came in from elsewhere"
                script.list(node, _RULE, reason, equal_of(name, Generation.TF1) if rows else "")


_USUAL = ("hvd", "_hvd", "horovod")
_MODULES = ("horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")


def _hook(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    if call is None or not takes_only(call, "root_rank"):
        reason = "only the rank to broadcast from can be given"
        replacement = "NPUBroadcastGlobalVariablesHook(root_rank, get_npu_rank_id())"
        script.list(call or node, _RULE, reason, replacement)
        return
    index = f"{bridge(script, 'get_npu_rank_id')}()"
    given = f"index={index}" if call.keywords else index
    edits = [
        script.replaced(node, bridge(script, "NPUBroadcastGlobalVariablesHook")),
        *appended(script.scopes, call, given),
    ]
    script.rewrite(call, _RULE, "variables are broadcast by the NPU's collective library", edits)


_Handler = Callable[[Script, ast.expr], None]
_COMMON: dict[str, _Handler] = {
    "horovod.DistributedOptimizer": distributed_optimizer,
    "horovod.allreduce": allreduce,
    "horovod.Compression.none": compression,
    "horovod.Compression.fp16": compression,
}
_HANDLERS: dict[Generation, dict[str, _Handler]] = {
    Generation.TF1: {**_COMMON, "horovod.BroadcastGlobalVariablesHook": _hook},
    Generation.TF2: {**_COMMON, "horovod.DistributedGradientTape": gradient_tape},
}
