"""Sessions and their options, into which `npu_config_proto` puts the NPU's optimizer."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.arguments import (
    appended,
    argument,
    has_stars,
    wrapped,
)
from lockstep_migrate.tensorflow.facts import names
from lockstep_migrate.tensorflow.script import Generation, Script

_BRIDGE = "npu_bridge.npu_init"

# Functions that make sessions, with the parameter that takes the options and its position.
_MAKERS = {
    name: (parameter, int(place) if place else None)
    for name, (parameter, place) in names("session").items()
}
# Methods with names of their own that make sessions.
_METHODS = {"managed_session": ("config", 1), "prepare_or_wait_for_session": ("config", 1)}
# Up to this many positional arguments, none of them can be the options of a function with no known position.
_FEW = 6

# Makes its session by another object, which has the options.
_CREATED = "tensorflow.train.MonitoredSession"
_OPTIONS = ("tensorflow.ConfigProto",)
_GPU_OPTIONS = "tensorflow.GPUOptions"


def bridge(script: Script, name: str) -> str:
    """How the module calls a name of the bridge's `npu_init`."""
    return script.head.name(f"{_BRIDGE}.{name}")


def is_bridged(script: Script, node: ast.expr, name: str) -> bool:
    """Whether an expression is a call of a name of the bridge."""
    if not isinstance(node, ast.Call):
        return False
    return script.scopes.name(node.func) == f"{_BRIDGE}.{name}"


def find_sessions(script: Script) -> None:
    """Decide every session that is made."""
    for node in script.references:
        maker = _MAKERS.get(script.name(node))
        if maker and not script.is_gone(node):
            call = script.scopes.call_of(node)
            if call:
                options_of_call(script, call, *maker, function="npu_config_proto", rule="session")
            else:
                _mentioned(script, node)
        elif script.name(node) == _CREATED and not script.is_gone(node):
            _created(script, node)
    for method in script.scopes.of(ast.Call):
        if not script.is_gone(method):
            _method(script, method)


def find_options(script: Script) -> None:
    """Decide every set of options, once it is known which sessions take them."""
    takers = ("tensorflow/session", "tensorflow/estimator")
    has_session = any(mention.rule in takers for mention in script.mentions)
    for node in script.references:
        if not script.is_gone(node):
            _options(script, node, has_session)
    for part in script.scopes.of(ast.Attribute):
        if part.attr == "gpu_options" and not script.name(part):
            script.keep(_whole(script, part), "gpu-options", "has no effect on the NPU")


def options_of_call(
    script: Script,
    call: ast.Call,
    name: str,
    position: int | None,
    *,
    function: str,
    rule: str,
) -> None:
    """Pass the options of a call through a function of the bridge; where it has none, give it some."""
    if script.generation is Generation.TF2:
        reason = "a session among eager code: on the NPU sessions need TensorFlow's behaviour of version 1"
        script.list(call, rule, reason, "npu.compat.enable_v1() of npu_device, or no session")
        return
    given = argument(call, name, position)
    if given is not None and not isinstance(given, ast.Starred):
        if is_bridged(script, given, function):
            script.keep(call, rule, f"{name} has the NPU's entry already")
            return
        edits = wrapped(script.scopes.span(given), bridge(script, function))
        script.rewrite(call, rule, _REASONS[rule], edits)
        return
    if has_stars(call) or (position is None and len(call.args) > _FEW):
        reason = f"its {name} cannot be told: it may be among arguments that are passed on"
        script.list(call, rule, reason, f"pass {name}={function}(...) of {_BRIDGE}")
        return
    edits = appended(script.scopes, call, f"{name}={bridge(script, function)}()")
    script.rewrite(call, rule, _REASONS[rule], edits)


_REASONS = {
    "session": "the session's options get the NPU's optimizer, with remapping and memory optimization off",
    "estimator": "the run configuration's session gets the NPU's optimizer, with remapping and memory optimization off",
}


def _mentioned(script: Script, node: ast.expr) -> None:
    """A session class that is not called here."""
    parent = script.parent(node)
    if isinstance(parent, ast.Call) and _is_question(parent.func):
        script.keep(node, "session", "is asked for only")
    elif isinstance(parent, ast.arg | ast.AnnAssign) or _returns(parent, node):
        script.keep(node, "session", "is an annotation")
    elif _is_alias(script, parent):
        script.keep(node, "session", "gets another name; the calls by it are sites of their own")
    else:
        script.list(
            node,
            "session",
            "is handed on, so its options are set elsewhere",
            "pass config=npu_config_proto(config) where it is called",
        )


def _created(script: Script, node: ast.expr) -> None:
    call = script.scopes.call_of(node)
    if call and argument(call, "session_creator", 0) is not None:
        script.keep(call, "session", "takes its options from the object that creates it")
    else:
        replacement = "session_creator=tf.train.ChiefSessionCreator(config=npu_config_proto())"
        script.list(call or node, "session", "has options of its own making", replacement)


def _is_question(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("isinstance", "issubclass")


def _returns(parent: ast.AST | None, node: ast.expr) -> bool:
    return isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef) and parent.returns is node


def _is_alias(script: Script, parent: ast.AST | None) -> bool:
    return isinstance(parent, ast.Assign) and all(
        isinstance(target, ast.Name) for target in parent.targets
    )


def _method(script: Script, call: ast.Call) -> None:
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in _METHODS:
        return
    if script.scopes.name(call.func).split(".")[0] not in ("", "tensorflow"):
        return
    if script.defines(call.func.attr):
        script.keep(call, "session", f"{call.func.attr} is a name of the script's own")
        return
    name, position = _METHODS[call.func.attr]
    options_of_call(script, call, name, position, function="npu_config_proto", rule="session")


def _options(script: Script, node: ast.Attribute | ast.Name, has_session: bool) -> None:
    name, call = script.name(node), script.scopes.call_of(node)
    if name in _OPTIONS and call:
        holder = script.parent(call)
        if isinstance(holder, ast.Call) and is_bridged(script, holder, "npu_config_proto"):
            return
        if has_session or script.is_rewritten(call):
            script.keep(call, "options", "gets the NPU's entry where the session is made")
        elif script.generation is Generation.TF2:
            script.keep(call, "options", "are given to no session")
        else:
            edits = wrapped(script.scopes.span(call), bridge(script, "npu_config_proto"))
            reason = "no session is made in this file: the options get the NPU's entry here"
            script.rewrite(call, "options", reason, edits)
    elif name == _GPU_OPTIONS and call:
        script.keep(call, "gpu-options", "has no effect on the NPU")


def _whole(script: Script, node: ast.expr) -> ast.expr:
    """An expression with all the attributes that follow it."""
    parent = script.parent(node)
    while isinstance(parent, ast.Attribute):
        node, parent = parent, script.parent(parent)
    return node
