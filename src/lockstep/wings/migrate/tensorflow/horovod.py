"""Horovod calls become calls of the NPU's collective library."""

from __future__ import annotations

import ast
from collections.abc import Callable

from lockstep.wings.migrate.engine.arguments import appended, argument, has_stars, renamed_keyword
from lockstep.wings.migrate.tensorflow.facts import names
from lockstep.wings.migrate.tensorflow.gradients import (
    allreduce,
    compression,
    distributed_optimizer,
    gradient_tape,
)
from lockstep.wings.migrate.tensorflow.script import Generation, Script
from lockstep.wings.migrate.tensorflow.sessions import bridge

_RULE = "horovod"

# Graphs: what asks for a rank may also be handed on without a call.
_RANKS = {name: function for name, (function, _) in names("rank").items()}
# Eager execution: the open device knows its place among the others.
_EAGER_RANKS = names("eager rank")
_TRANSPORTS = frozenset(names("transport"))
_LISTED = names("horovod")


def find_horovod(script: Script) -> None:
    """Decide every use of Horovod."""
    for node in script.references:
        name = script.name(node)
        if not name.startswith("horovod") or script.is_gone(node) or _is_carried(script, node):
            continue
        handle = _HANDLERS[script.generation].get(name, _unknown)
        if not _is_import_test(script, node):
            handle(script, node)
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
            if last in _USUAL and f"horovod.{node.attr}" in _HANDLERS[Generation.TF1] | _LISTED:
                known = _RANKS.get(f"horovod.{node.attr}")
                reason = "is Horovod's, by its name; it came in from elsewhere"
                script.list(node, _RULE, reason, f"{known} of npu_bridge.npu_init" if known else "")


_USUAL = ("hvd", "_hvd", "horovod")
_MODULES = ("horovod.tensorflow", "horovod.keras", "horovod.tensorflow.keras")


def _unknown(script: Script, node: ast.expr) -> None:
    nothing = ("has no equal in the NPU's collective library", "")
    script.list(node, _RULE, *_LISTED.get(script.name(node), nothing))


def _rank(script: Script, node: ast.expr) -> None:
    edit = script.replaced(node, bridge(script, _RANKS[script.name(node)]))
    script.rewrite(node, _RULE, "asks the NPU's collective library", [edit])


def _eager_rank(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    dotted, rest = _EAGER_RANKS[script.name(node)]
    if call is None:
        script.list(node, _RULE, "is handed on without a call", f"lambda: {dotted}{rest}")
        return
    edit = script.replaced(call, script.head.name(dotted) + rest)
    script.rewrite(call, _RULE, "asks the NPU's collective library", [edit])


def _init(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    if call is None or call.args or call.keywords or not script.is_statement(call):
        reason = "starts Horovod in a way that the NPU does not know"
        script.list(call or node, _RULE, reason, "init_resource() of npu_bridge.npu_init")
        return
    if script.generation is Generation.TF2:
        text = f"{script.head.module('npu_device', 'npu')}.open().as_default()"
        reason = "opens the NPU as default device, which also joins the other ranks"
    else:
        register = f"{script.head.module('atexit', 'atexit')}.register"
        text = f"{register}({bridge(script, 'shutdown_resource')}, *{bridge(script, 'init_resource')}())"
        reason = "joins the NPU's collective group, and leaves it when the program ends"
    script.rewrite(call, _RULE, reason, [script.replaced(call, text)])


def _shutdown(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    if call and script.is_statement(call):
        edit = script.replaced(call, "pass")
        script.rewrite(call, _RULE, "the group is left when the program ends", [edit])
    else:
        script.list(node, _RULE, "the group is left when the program ends", "")


def _hook(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    replacement = "NPUBroadcastGlobalVariablesHook(root_rank, get_npu_rank_id())"
    if not _takes_only_root(call):
        script.list(
            call or node, _RULE, "only the rank to broadcast from can be given", replacement
        )
        return
    assert call is not None
    index = f"{bridge(script, 'get_npu_rank_id')}()"
    given = f"index={index}" if call.keywords else index
    edits = [
        script.replaced(node, bridge(script, "NPUBroadcastGlobalVariablesHook")),
        *appended(script.scopes, call, given),
    ]
    script.rewrite(call, _RULE, "variables are broadcast by the NPU's collective library", edits)


def _callback(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    replacement = "NPUBroadcastGlobalVariablesCallback(root_rank)"
    if script.generation is Generation.TF2:
        reason = "the NPU's callback of this name does not broadcast under TensorFlow 2"
        script.list(
            call or node,
            _RULE,
            reason,
            "npu.distribute.broadcast(model.trainable_variables, root_rank=0) before training",
        )
    elif not _takes_only_root(call):
        script.list(
            call or node, _RULE, "only the rank to broadcast from can be given", replacement
        )
    else:
        edit = script.replaced(node, bridge(script, "NPUBroadcastGlobalVariablesCallback"))
        reason = "variables are broadcast by the NPU's collective library"
        script.rewrite(call or node, _RULE, reason, [edit])


def _broadcast_variables(script: Script, node: ast.expr) -> None:
    name, call = script.name(node), script.scopes.call_of(node)
    if name == "horovod.broadcast_global_variables" and _takes_only_root(call):
        dotted = "npu_bridge.estimator.npu.npu_hook.broadcast_global_variables"
        edits = [script.replaced(node, script.head.name(dotted))]
    elif name == "horovod.broadcast_variables" and call and not has_stars(call):
        npu = script.head.module("npu_device", "npu")
        edits = [
            script.replaced(node, f"{npu}.distribute.broadcast"),
            *renamed_keyword(script.scopes, call, "variables", "values"),
        ]
    else:
        script.list(call or node, _RULE, "its arguments cannot be told")
        return
    script.rewrite(
        call or node, _RULE, "variables are broadcast by the NPU's collective library", edits
    )


def _transport(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    if call is None or call.args or call.keywords:
        script.list(node, _RULE, "asks about Horovod's own transport", "False")
        return
    name = script.name(node).rpartition(".")[2]
    reason = f"{name} asks about Horovod's own transport, which is not used"
    script.rewrite(call, _RULE, reason, [script.replaced(call, "False")])


def _takes_only_root(call: ast.Call | None) -> bool:
    if call is None or has_stars(call):
        return False
    return len(call.args) + len(call.keywords) == 1 and argument(call, "root_rank", 0) is not None


_Handler = Callable[[Script, ast.expr], None]
_COMMON: dict[str, _Handler] = {
    "horovod.init": _init,
    "horovod.shutdown": _shutdown,
    "horovod.DistributedOptimizer": distributed_optimizer,
    "horovod.callbacks.BroadcastGlobalVariablesCallback": _callback,
    "horovod.allreduce": allreduce,
    **dict.fromkeys(_TRANSPORTS, _transport),
    "horovod.Compression.none": compression,
    "horovod.Compression.fp16": compression,
}
_HANDLERS: dict[Generation, dict[str, _Handler]] = {
    Generation.TF1: {
        **_COMMON,
        **dict.fromkeys(_RANKS, _rank),
        "horovod.BroadcastGlobalVariablesHook": _hook,
        "horovod.broadcast_global_variables": _broadcast_variables,
    },
    Generation.TF2: {
        **_COMMON,
        **dict.fromkeys(_EAGER_RANKS, _eager_rank),
        "horovod.DistributedGradientTape": gradient_tape,
        "horovod.broadcast_variables": _broadcast_variables,
    },
}
