"""Estimators: their run configuration passes through `npu_run_config_init`, TPU switches are off."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.arguments import has_stars, is_constant, keyword
from lockstep_migrate.plan import Edit
from lockstep_migrate.tensorflow.facts import names
from lockstep_migrate.tensorflow.script import Script
from lockstep_migrate.tensorflow.sessions import options_of_call

# The position of `config`; `None` for those that have it far behind, where only a keyword reaches it.
_ESTIMATORS = {
    name: int(place) if place else None for name, (place, _) in names("estimator").items()
}
_TPU_ESTIMATORS = (
    "tensorflow.contrib.tpu.TPUEstimator",
    "tensorflow.estimator.tpu.TPUEstimator",
)
_TPU_SWITCHES = ("use_tpu", "eval_on_tpu", "export_to_tpu")
_FROM_KERAS = "tensorflow.keras.estimator.model_to_estimator"
_RUN_CONFIGS = (
    "tensorflow.estimator.RunConfig",
    "tensorflow.contrib.tpu.RunConfig",
    "tensorflow.estimator.tpu.RunConfig",
)
# `save_summary_steps` is the third parameter.
_BEFORE_SUMMARIES = 2


def find_estimators(script: Script) -> None:
    """Decide every estimator and every run configuration."""
    for node in script.references:
        if script.is_gone(node):
            continue
        name, call = script.name(node), script.scopes.call_of(node)
        package, _, last = name.rpartition(".")
        if package == "tensorflow.estimator" and last in _ESTIMATORS:
            _estimator(script, node, call, _ESTIMATORS[last])
        elif name == _FROM_KERAS:
            _estimator(script, node, call, 4)
        elif name in _TPU_ESTIMATORS:
            _tpu_estimator(script, node, call)
        elif name in _RUN_CONFIGS and call:
            _run_config(script, call)


def _estimator(script: Script, node: ast.expr, call: ast.Call | None, position: int | None) -> None:
    if call:
        options_of_call(
            script, call, "config", position, function="npu_run_config_init", rule="estimator"
        )
        return
    parent = script.parent(node)
    if isinstance(parent, ast.ClassDef):
        script.list(
            node,
            "estimator",
            f"{parent.name} derives from it and hands its configuration on itself",
            "pass config=npu_run_config_init(run_config=config) to super().__init__",
        )
    elif isinstance(parent, ast.arg | ast.AnnAssign | ast.FunctionDef):
        script.keep(node, "estimator", "is an annotation")
    else:
        reason = "is handed on, so its configuration is set elsewhere"
        script.list(node, "estimator", reason, "config=npu_run_config_init(run_config=config)")


def _tpu_estimator(script: Script, node: ast.expr, call: ast.Call | None) -> None:
    _estimator(script, node, call, 2)
    if call is None:
        return
    for switch in _TPU_SWITCHES:
        given = keyword(call, switch)
        if given is None or is_constant(given.value, False):
            continue
        if is_constant(given.value, True):
            reason = f"there is no TPU: {switch} is off"
            edit = Edit(script.scopes.span(given.value), "False")
            script.rewrite(given, "tpu", reason, [edit])
        else:
            script.list(given, "tpu", f"{switch} must be false on the NPU", f"{switch}=False")
    missing = [switch for switch in _TPU_SWITCHES if keyword(call, switch) is None]
    if missing and len(call.args) <= 4:
        _switch_off(script, call, missing)


def _switch_off(script: Script, call: ast.Call, switches: list[str]) -> None:
    text = ", ".join(f"{switch}=False" for switch in switches)
    if any(item.arg is None for item in call.keywords):
        script.list(call.func, "tpu", "its TPU switches may be among the ** of the call", text)
        return
    script.append(call, text, "tpu", "there is no TPU: its switches are off", node=call.func)


def _run_config(script: Script, call: ast.Call) -> None:
    if keyword(call, "save_summary_steps") or len(call.args) > _BEFORE_SUMMARIES:
        script.keep(
            call, "run-config", "passes through npu_run_config_init where the estimator is made"
        )
        return
    text = "save_summary_steps=0"
    if has_stars(call):
        script.list(
            call, "run-config", "summaries may be asked for among the stars of the call", text
        )
        return
    reason = "summaries are off, as the NPU's own run configuration has them; give save_summary_steps to keep them"
    script.append(call, text, "run-config", reason)
