"""Loss scaling, dropout and GELU in the NPU's own forms."""

from __future__ import annotations

import ast
from collections.abc import Callable

from lockstep_migrate.engine.arguments import (
    appended,
    argument,
    argument_start,
    has_stars,
    insertion,
    renamed_keyword,
    wrapped,
)
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.tensorflow.equals import decided_by_row
from lockstep_migrate.tensorflow.script import Generation, Script, is_harmless
from lockstep_migrate.tensorflow.sessions import bridge

_SCALE = "loss-scale"
_SCALED = "overflow is found by the NPU's own check, so its own loss scaling is used"
_EXPERIMENTAL = "tensorflow.train.experimental"
_GRAPH_REWRITE = f"{_EXPERIMENTAL}.enable_mixed_precision_graph_rewrite"
_DYNAMIC = {
    "initial_loss_scale": ("init_loss_scale", "2**15"),
    "increment_period": ("incr_every_n_steps", "2000"),
    "multiplier": ("incr_ratio", "2"),
}
_CURVES = (
    "tensorflow.erf",
    "tensorflow.math.erf",
    "tensorflow.tanh",
    "tensorflow.math.tanh",
    "tensorflow.nn.tanh",
)


def find_precision(script: Script) -> None:
    """Decide loss scaling, dropout and GELU."""
    handlers = _TF1 if script.generation is Generation.TF1 else {}
    for node in script.references:
        call, name = script.scopes.call_of(node), script.name(node)
        if call is None or not name.startswith("tensorflow.") or script.is_gone(node):
            continue
        handle = handlers.get(name)
        if handle is not None:
            handle(script, node, call)
        else:
            decided_by_row(script, node)
    for statement in script.scopes.of(ast.FunctionDef):
        if statement.name == "gelu":
            _own_gelu(script, statement)


def _is_for_gpus(script: Script, call: ast.Call) -> bool:
    """Whether the file has graphs rewritten for GPUs, by a function that takes TensorFlow's own scales."""
    rewrites = any(script.name(node) == _GRAPH_REWRITE for node in script.references)
    if rewrites:
        reason = "may go into the graph rewrite for GPUs, which is listed too"
        script.list(call, _SCALE, reason, "a loss scale manager of npu_bridge.npu_init")
    return rewrites


def _fixed(script: Script, node: ast.expr, call: ast.Call) -> None:
    if _is_for_gpus(script, call):
        return
    edits = [script.replaced(node, bridge(script, "FixedLossScaleManager"))]
    edits += renamed_keyword(script.scopes, call, "loss_scale_value", "loss_scale")
    script.rewrite(call, _SCALE, _SCALED, edits)


def _dynamic(script: Script, node: ast.expr, call: ast.Call) -> None:
    if _is_for_gpus(script, call):
        return
    multiplier = argument(call, "multiplier", 2)
    if has_stars(call) or len(call.args) > len(_DYNAMIC):
        script.list(
            call, _SCALE, "its arguments cannot be told", "ExponentialUpdateLossScaleManager"
        )
        return
    if multiplier is not None and not is_harmless(multiplier):
        reason = "the NPU takes the multiplier and its inverse; computing it twice could differ"
        script.list(call, _SCALE, reason, "ExponentialUpdateLossScaleManager")
        return
    edits = [script.replaced(node, bridge(script, "ExponentialUpdateLossScaleManager"))]
    added = []
    for position, (old, (new, default)) in enumerate(_DYNAMIC.items()):
        named = renamed_keyword(script.scopes, call, old, new)
        if named:
            edits += named
        elif position < len(call.args):
            start = argument_start(script.scopes, call, call.args[position])
            edits.append(insertion(start, f"{new}="))
        else:
            added.append(f"{new}={default}")
    inverse = f"1 / ({script.scopes.text(multiplier)})" if multiplier is not None else "0.5"
    # TensorFlow lowers the scale at every overflow, by the factor that it is raised by.
    added += ["decr_every_n_nan_or_inf=1", f"decr_ratio={inverse}"]
    edits += appended(script.scopes, call, ", ".join(added))
    script.rewrite(call, _SCALE, _SCALED, edits)


def _optimizer(script: Script, node: ast.expr, call: ast.Call) -> None:
    scale = argument(call, "loss_scale", 1)
    if has_stars(call) or scale is None:
        script.list(call, _SCALE, "its arguments cannot be told", "NPULossScaleOptimizer")
        return
    manager = _manager(script, scale)
    if manager is None:
        reason = "the NPU takes a loss scale manager; what this is cannot be told"
        script.list(
            call,
            _SCALE,
            reason,
            "NPULossScaleOptimizer(optimizer, FixedLossScaleManager(loss_scale))",
        )
        return
    edits = [script.replaced(node, bridge(script, "NPULossScaleOptimizer")), *manager]
    edits += renamed_keyword(script.scopes, call, "loss_scale", "loss_scale_manager")
    if script.uses_horovod:
        edits += appended(script.scopes, call, "is_distributed=True")
    script.rewrite(call, _SCALE, _SCALED, edits)


def _manager(script: Script, scale: ast.expr) -> list[Edit] | None:
    """The edits that make a loss scale a manager; `None` where it may be anything."""
    if isinstance(scale, ast.Constant) and scale.value == "dynamic":
        text = (
            f"{bridge(script, 'ExponentialUpdateLossScaleManager')}(init_loss_scale=2**15, "
            "incr_every_n_steps=2000, decr_every_n_nan_or_inf=1, decr_ratio=0.5)"
        )
        return [script.replaced(scale, text)]
    if isinstance(scale, ast.Constant) and isinstance(scale.value, int | float):
        return wrapped(script.scopes.span(scale), bridge(script, "FixedLossScaleManager"))
    return [] if _is_manager(script, scale) else None


def _is_manager(script: Script, scale: ast.expr) -> bool:
    if isinstance(scale, ast.Call):
        name = script.name(scale.func)
        return name in (f"{_EXPERIMENTAL}.FixedLossScale", f"{_EXPERIMENTAL}.DynamicLossScale") or (
            name.split(".")[0] == "npu_bridge"
        )
    if not isinstance(scale, ast.Name):
        return False
    bindings = script.scopes.bindings(scale.id, script.scopes.scope(scale))
    return bool(bindings) and all(
        isinstance(binding.value, ast.Call) and _is_manager(script, binding.value)
        for binding in bindings
    )


def _dropout(script: Script, node: ast.expr, call: ast.Call) -> None:
    rate, keep = argument(call, "rate", 5), argument(call, "keep_prob", 1)
    replacement = "npu_ops.dropout(x, keep_prob) of npu_bridge.estimator"
    if has_stars(call) or (rate is None) == (keep is None):
        script.list(call, "dropout", "its rate cannot be told", replacement)
        return
    if rate is not None and len(call.args) > 1:
        script.list(call, "dropout", "gives the rate by position", replacement)
        return
    function = f"{script.head.name('npu_bridge.estimator.npu_ops')}.dropout"
    edits = [script.replaced(node, function)]
    edits += renamed_keyword(script.scopes, call, "rate", "keep_prob")
    if rate is not None:
        value = script.scopes.span(rate)
        edits.append(insertion(value.start, "1 - ("))
        edits.append(insertion(value.end, ")"))
    script.rewrite(call, "dropout", "the NPU has a dropout of its own", edits)


def _own_gelu(script: Script, statement: ast.FunctionDef) -> None:
    if any(script.name(node) in _CURVES for node in ast.walk(statement)):
        start = script.scopes.span(statement).start
        script.list(
            statement,
            "gelu",
            "computes GELU from its parts; the NPU has one operator for it, by the formula with tanh",
            f"return npu_unary_ops.gelu({_first_parameter(statement)}) of npu_bridge.npu_init",
            span=Span(start, script.scopes.source.text.index("gelu", start) + len("gelu")),
        )


def _first_parameter(statement: ast.FunctionDef) -> str:
    parameters = [*statement.args.posonlyargs, *statement.args.args]
    return parameters[0].arg if parameters else "x"


_Handler = Callable[[Script, ast.expr, ast.Call], None]
_TF1: dict[str, _Handler] = {
    f"{_EXPERIMENTAL}.FixedLossScale": _fixed,
    f"{_EXPERIMENTAL}.DynamicLossScale": _dynamic,
    f"{_EXPERIMENTAL}.MixedPrecisionLossScaleOptimizer": _optimizer,
    "tensorflow.nn.dropout": _dropout,
}
