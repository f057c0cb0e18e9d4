"""Devices: placement strings, switches and queries for GPUs, XLA, environment variables."""

from __future__ import annotations

import ast
import re

from lockstep_migrate.engine.arguments import argument, has_stars
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.tensorflow.facts import ENVIRONMENT, SWITCHES
from lockstep_migrate.tensorflow.script import Script, is_harmless

_GPU = re.compile(
    r"(?:/job:\w+)?(?:/replica:\d+)?(?:/task:\d+)?/(?:device:)?gpu:\d+\Z", re.IGNORECASE
)
_GPU_IN_PATTERN = re.compile(r"/(?:device:)?x?l?a?_?gpu:", re.IGNORECASE)
_DEVICE_CONTEXTS = ("tensorflow.device", "tensorflow.python.framework.ops.device")
_HOST = '"/cpu:0"'
_PLACED = "the NPU takes whole graphs, so nothing is placed by hand: the rest runs on the host"

_JIT_LEVELS = re.compile(r"tensorflow\.OptimizerOptions\.ON_[12]\Z")
_SCOPES = {
    "tensorflow.xla.experimental.jit_scope": 0,
    "tensorflow.contrib.compiler.jit.experimental_jit_scope": 0,
}
_COMPILED = ("jit_compile", "experimental_compile")


def find_devices(script: Script) -> None:
    """Decide everything that names a GPU or what is built for one."""
    placements = _placements(script)
    for node in script.references:
        if script.is_gone(node):
            continue
        name, call = script.name(node), script.scopes.call_of(node)
        if name in _DEVICE_CONTEXTS and call:
            _place(script, call, placements)
        elif name in SWITCHES:
            _switch(script, call or node)
        elif name == "tensorflow.config.optimizer.set_jit" and call:
            _constant_off(script, call, argument(call, "enabled", 0))
        elif name in _SCOPES and call:
            _scope(script, call)
        elif _JIT_LEVELS.match(name):
            span = script.scopes.span(node)
            edit = Edit(Span(span.end - len("ON_1"), span.end), "OFF")
            script.rewrite(node, "xla", "XLA does not compile for the NPU", [edit])
    for part in script.scopes.of(ast.keyword):
        if part.arg in _COMPILED and not script.is_gone(part):
            _compiled(script, part)
    for text in script.scopes.of(ast.Constant):
        if isinstance(text.value, str):
            _string(script, text, text.value)


def _place(script: Script, call: ast.Call, placements: list[ast.expr]) -> None:
    given = argument(call, "device_name_or_function", 0) or argument(call, "device_name")
    if given is None or not _names_gpu(script, given):
        return
    if not (is_harmless(given) or _is_format(given)):
        script.list(
            call, "device", "names a GPU by what other code computes", f"tf.device({_HOST})"
        )
        return
    read = {part.id for part in ast.walk(given) if isinstance(part, ast.Name)}
    unused = sorted(read & {binding.name for binding in script.left_unused(placements)})
    if unused:
        reason = f"names a GPU by {unused[0]}, which nothing else uses"
        script.list(call, "device", reason, f"tf.device({_HOST}), without {unused[0]}")
        return
    script.rewrite(call, "device", _PLACED, [script.replaced(given, _HOST)])


def _placements(script: Script) -> list[ast.expr]:
    """What every placement on a GPU is given."""
    return [
        part
        for node in script.references
        if script.name(node) in _DEVICE_CONTEXTS and (call := script.scopes.call_of(node))
        for part in call.args
        if _names_gpu(script, part)
    ]


def _names_gpu(script: Script, node: ast.expr) -> bool:
    return any(
        isinstance(inner, ast.Constant)
        and isinstance(inner.value, str)
        and _GPU_IN_PATTERN.search(inner.value)
        for inner in ast.walk(node)
    )


def _is_format(node: ast.expr) -> bool:
    """Whether an expression is `"...".format(...)` or `"..." + str(...)` of harmless values."""
    if isinstance(node, ast.BinOp):
        return all(is_harmless(side) or _is_format(side) for side in (node.left, node.right))
    if not isinstance(node, ast.Call):
        return False
    function = node.func
    formats = isinstance(function, ast.Attribute) and (
        function.attr == "format" and isinstance(function.value, ast.Constant)
    )
    converts = isinstance(function, ast.Name) and function.id in ("str", "int")
    return (formats or converts) and all(
        is_harmless(part) for part in (*node.args, *(item.value for item in node.keywords))
    )


def _string(script: Script, node: ast.Constant, text: str) -> None:
    if script.is_gone(node) or script.is_statement(node):
        return
    if text in ENVIRONMENT:
        _environment(script, node, text)
    elif _GPU.match(text) and _may_be_placed(script, node):
        pieces = script.scopes.pieces(node)
        if len(pieces) == 1:
            found = re.search(r"gpu:\d+\Z", text, re.IGNORECASE)
            start = pieces[0].body.end - len(found.group()) if found else pieces[0].body.start
            edit = Edit(Span(start, pieces[0].body.end), "cpu:0" if "gpu" in text else "CPU:0")
            script.rewrite(node, "device", _PLACED, [edit])
            return
        script.list(node, "device", "names a GPU in several pieces", _HOST)
    elif text.startswith("/") and _GPU_IN_PATTERN.search(text):
        script.list(node, "device", "names a GPU; what for cannot be told from here", _HOST)


def _may_be_placed(script: Script, node: ast.Constant) -> bool:
    """Whether a string is given or kept as it is, not compared or looked up."""
    parent = script.parent(node)
    while isinstance(parent, ast.IfExp | ast.BoolOp):
        parent = script.parent(parent)
    return isinstance(
        parent, ast.Assign | ast.AnnAssign | ast.Return | ast.arguments | ast.keyword
    ) and not (isinstance(parent, ast.keyword) and parent.arg in ("choices", "help"))


def _environment(script: Script, node: ast.Constant, name: str) -> None:
    reason, replacement = ENVIRONMENT[name]
    if name != "CUDA_VISIBLE_DEVICES":
        script.list(node, "environment", reason, replacement)
        return
    value = _assigned(script, node)
    number = (
        isinstance(value, ast.Constant)
        and isinstance(value.value, str)
        and value.value.strip().isdigit()
    )
    pieces = script.scopes.pieces(node)
    if number and len(pieces) == 1:
        edit = Edit(pieces[0].body, "ASCEND_DEVICE_ID")
        script.rewrite(node, "environment", "a process on the NPU is given one device", [edit])
    else:
        script.list(node, "environment", reason, replacement)


def _assigned(script: Script, node: ast.Constant) -> ast.expr | None:
    """What is assigned to the environment variable that a string names."""
    holder = script.parent(node)
    statement = script.parent(holder) if holder else None
    if (
        isinstance(holder, ast.Subscript)
        and script.scopes.name(holder.value) == "os.environ"
        and isinstance(statement, ast.Assign)
        and len(statement.targets) == 1
        and statement.targets[0] is holder
    ):
        return statement.value
    return None


def _switch(script: Script, node: ast.expr) -> None:
    harmless = isinstance(node, ast.Call) and all(
        is_harmless(part) or _is_rank(script, part)
        for part in (*node.args, *(item.value for item in node.keywords))
    )
    if harmless and script.is_statement(node) and not script.left_unused([node]):
        reason = "sets up GPUs, of which there are none"
        script.rewrite(node, "gpu-switch", reason, [script.replaced(node, "pass")])
    else:
        script.list(node, "gpu-switch", "sets up GPUs, of which there are none", "leave it out")


def _is_rank(script: Script, node: ast.expr) -> bool:
    """Whether all that an expression calls is Horovod's rank or a conversion."""
    calls = [inner for inner in ast.walk(node) if isinstance(inner, ast.Call)]
    known = all(
        script.name(call.func) in ("horovod.local_rank", "horovod.rank", "horovod.size")
        and not call.args
        for call in calls
    )
    return known and bool(calls)


def _constant_off(script: Script, call: ast.AST, value: ast.expr | None) -> None:
    if isinstance(value, ast.Constant) and value.value is not False:
        edit = Edit(script.scopes.span(value), "False")
        script.rewrite(call, "xla", "XLA does not compile for the NPU", [edit])
    elif isinstance(value, ast.Constant):
        script.keep(call, "xla", "is off already")
    else:
        script.list(call, "xla", "must be off: XLA does not compile for the NPU", "False")


def _scope(script: Script, call: ast.Call) -> None:
    given = argument(call, "compile_ops", 0)
    if given is not None:
        _constant_off(script, call, given)
    elif has_stars(call):
        script.list(
            call, "xla", "must be off: XLA does not compile for the NPU", "compile_ops=False"
        )
    else:
        script.append(call, "compile_ops=False", "xla", "XLA does not compile for the NPU")


def _compiled(script: Script, item: ast.keyword) -> None:
    """A switch that has a function compiled by XLA."""
    call = script.parent(item)
    function = call.func if isinstance(call, ast.Call) else None
    of_model = isinstance(function, ast.Attribute) and function.attr == "compile"
    if function is None or not (of_model or script.name(function).startswith("tensorflow.")):
        return
    if isinstance(item.value, ast.Constant) and item.value.value is None:
        script.keep(item, "xla", "is off already")
    else:
        _constant_off(script, item, item.value)
