"""Horovod's averaging of gradients: optimizers, tapes and `allreduce`."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.arguments import (
    argument,
    argument_end,
    has_stars,
    in_order,
    keyword,
    removals,
    wrapped,
)
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.tensorflow.script import (
    Generation,
    Script,
    is_harmless,
)
from lockstep_migrate.tensorflow.sessions import bridge

_RULE = "horovod"

# Settings of Horovod's own transport. Left out, gradients are averaged at their own precision.
_TRANSPORT = frozenset(
    {"name", "compression", "device_dense", "device_sparse", "sparse_as_dense", "use_locking", "op"}
)
# Values of other settings that ask for nothing.
_NEUTRAL = {
    "average_aggregated_gradients": (False,),
    "backward_passes_per_step": (1,),
    "gradient_predivide_factor": (1, 1.0),
    "groups": (None,),
    "num_groups": (0,),
    "process_set": (),
}
# Up to here the parameters of an optimizer are the optimizer and settings of the transport.
_POSITIONAL = 7


def distributed_optimizer(script: Script, node: ast.expr) -> None:
    """Decide `DistributedOptimizer`."""
    call = script.scopes.call_of(node)
    replacement = "npu_distributed_optimizer_wrapper(optimizer)"
    if call is None or has_stars(call) or _is_odd(call):
        script.list(call or node, _RULE, "its arguments cannot be told", replacement)
        return
    reason = _why_not_transport(script, call)
    if reason:
        script.list(call, _RULE, reason, replacement)
        return
    _drop_settings(script, call)
    if script.generation is Generation.TF2:
        npu = script.head.module("npu_device", "npu")
        function = f"{npu}.distribute.npu_distributed_keras_optimizer_wrapper"
    else:
        function = bridge(script, "npu_distributed_optimizer_wrapper")
    edits = [script.replaced(node, function), *_without_transport(script, call)]
    reason = "gradients are averaged by the NPU's collective library"
    if len(edits) > 1:
        reason += "; settings of Horovod's own transport are left out"
    script.rewrite(call, _RULE, reason, edits)


def _is_odd(call: ast.Call) -> bool:
    """Whether a call has no optimizer, or positional arguments that are more than the transport's settings."""
    return argument(call, "optimizer", 0) is None or len(call.args) > _POSITIONAL


def _why_not_transport(script: Script, call: ast.Call) -> str:
    """Why the settings of an optimizer may not be left out; nothing where they may."""
    extra = _settings(call)
    for item in call.keywords:
        if item.arg in _NEUTRAL and _is_one_of(item.value, _NEUTRAL[item.arg]):
            continue
        if item.arg != "optimizer" and item.arg not in _TRANSPORT:
            return (
                f"{item.arg} has no equal on the NPU, which averages every gradient at every step"
            )
        if item.arg == "op" and not script.name(item.value).endswith(".Average"):
            return "the NPU averages gradients, and knows no other reduction here"
    if not all(is_harmless(value) for value in extra):
        return "a setting of the transport is computed by a call, which would be lost"
    for binding in script.left_unused(extra):
        statement = script.scopes.statement(binding.node)
        if not _is_plain_assignment(statement):
            return f"{binding.name} is a setting of the transport, and nothing else uses it"
    return ""


def _settings(call: ast.Call) -> list[ast.expr]:
    """What a call is given besides the optimizer."""
    return [*call.args[1:], *(item.value for item in call.keywords if item.arg != "optimizer")]


def _is_plain_assignment(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and isinstance(statement.targets[0], ast.Name)
        and is_harmless(statement.value)
    )


def _drop_settings(script: Script, call: ast.Call) -> None:
    """Take assignments away that only made settings of the transport."""
    for binding in script.left_unused(_settings(call)):
        statement = script.scopes.statement(binding.node)
        reason = f"{binding.name} is a setting of Horovod's own transport, and nothing else uses it"
        script.rewrite(statement, _RULE, reason, [script.replaced(statement, "pass")])


def _is_one_of(node: ast.expr, values: tuple[object, ...]) -> bool:
    return isinstance(node, ast.Constant) and any(
        node.value is value or node.value == value for value in values
    )


def _without_transport(script: Script, call: ast.Call) -> list[Edit]:
    """The edits that leave the optimizer alone between the brackets."""
    first = call.args[0] if call.args else keyword(call, "optimizer")
    others = [item for item in in_order(call, script.scopes) if item is not first]
    script.removed(script.scopes.span(call), others)
    return removals(script.scopes, call, others)


def gradient_tape(script: Script, node: ast.expr) -> None:
    """Average what `gradient` of a tape gives, where every use of the tape can be seen."""
    call = script.scopes.call_of(node)
    statement = script.parent(call) if call else None
    tape = statement.targets[0] if isinstance(statement, ast.Assign) else None
    gradients = _gradients(script, statement, tape) if isinstance(tape, ast.Name) else []
    if (
        call is None
        or not gradients
        or len(call.args) != 1
        or has_stars(call)
        or not is_harmless(call.args[0])
        or _why_not_transport(script, call)
    ):
        replacement = "gradients = npu.distribute.all_reduce(tape.gradient(loss, variables))"
        script.list(call or node, _RULE, "gradients are averaged by hand", replacement)
        return
    _drop_settings(script, call)
    function = f"{script.head.module('npu_device', 'npu')}.distribute.all_reduce"
    reason = "gradients are averaged where the tape gives them"
    if (
        isinstance(tape, ast.Name)
        and isinstance(statement, ast.Assign)
        and _is_name(call.args[0], tape.id)
    ):
        edits = [script.replaced(statement, "pass")]
        script.rewrite(call, _RULE, reason, edits, span=script.scopes.span(statement))
    else:
        edits = [script.replaced(call, script.scopes.text(call.args[0]))]
        script.rewrite(call, _RULE, reason, edits)
    for gradient in gradients:
        reason = "gradients are averaged by the NPU's collective library"
        script.rewrite(gradient, _RULE, reason, wrapped(script.scopes.span(gradient), function))


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _gradients(script: Script, statement: ast.AST | None, tape: ast.Name) -> list[ast.Call]:
    """The calls of `gradient` on a tape behind a statement; none if the tape is handed on."""
    assert isinstance(statement, ast.stmt)
    scope, end = script.scopes.scope(tape), script.scopes.span(statement).end
    found = []
    for use in script.scopes.of(ast.Name):
        if use.id != tape.id or script.scopes.scope(use) is not scope:
            continue
        if not isinstance(use.ctx, ast.Load) or script.scopes.span(use).start < end:
            continue
        attribute = script.parent(use)
        call = script.scopes.call_of(attribute) if isinstance(attribute, ast.Attribute) else None
        if call is None:
            return []
        if isinstance(attribute, ast.Attribute) and attribute.attr == "gradient":
            found.append(call)
    return found


def allreduce(script: Script, node: ast.expr) -> None:
    """Decide `allreduce` of one tensor."""
    call = script.scopes.call_of(node)
    replacement = 'npu_allreduce(tensor, reduction="mean") of npu_bridge.npu_init'
    if call is None or len(call.args) != 1 or has_stars(call):
        script.list(call or node, _RULE, "its reduction cannot be told", replacement)
        return
    reduction = _reduction(script, call)
    if not reduction:
        script.list(call, _RULE, "its reduction has no equal on the NPU", replacement)
        return
    if script.generation is Generation.TF2:
        function = f"{script.head.module('npu_device', 'npu')}.distribute.all_reduce"
    else:
        function = bridge(script, "npu_allreduce")
    edits = [script.replaced(node, function)]
    start = argument_end(script.scopes, call, call.args[0])
    end = start
    if call.keywords:
        end = argument_end(script.scopes, call, in_order(call, script.scopes)[-1])
    script.removed(Span(start, end), call.keywords)
    edits.append(Edit(Span(start, end), f', reduction="{reduction}"'))
    script.rewrite(call, _RULE, "tensors are reduced by the NPU's collective library", edits)


def _reduction(script: Script, call: ast.Call) -> str:
    """What the NPU calls the reduction of a call; nothing where it has none."""
    reduction = "mean"
    for item in call.keywords:
        if item.arg == "average" and isinstance(item.value, ast.Constant):
            reduction = "mean" if item.value.value in (True, None) else "sum"
        elif item.arg == "op":
            last = script.name(item.value).rpartition(".")[2]
            reduction = {"Average": "mean", "Sum": "sum"}.get(last, "")
        elif item.arg != "name" or not is_harmless(item.value):
            return ""
    return reduction


def compression(script: Script, node: ast.expr) -> None:
    """Decide a kind of compression."""
    if any(isinstance(above, ast.keyword) for above in script.scopes.ancestors(node)):
        script.list(node, _RULE, "is a setting of a call that is listed itself")
        return
    reason = "compression is a matter of Horovod's transport, and has no meaning on the NPU"
    script.rewrite(node, _RULE, reason, [script.replaced(node, "None")])
