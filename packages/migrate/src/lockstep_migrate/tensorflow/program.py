"""Insert the start of a program: a session of Keras for the NPU, or the NPU as default device."""

from __future__ import annotations

import ast

from lockstep_migrate.engine.arguments import insertion
from lockstep_migrate.engine.blocks import Blocks
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.statements import main_guard, start_of
from lockstep_migrate.plan import Edit, Span
from lockstep_migrate.tensorflow.facts import names
from lockstep_migrate.tensorflow.script import Generation, Script, Start
from lockstep_migrate.tensorflow.sessions import bridge

# Methods that train, evaluate or run what was built.
_RUNNING = frozenset(names("training"))
_SETTING = "set_keras_session_npu_config"


def find_program(script: Script) -> None:
    """Decide what the start of a program needs."""
    if script.generation is Generation.TF2:
        _open_device(script)
    else:
        _give_session(script)


# ------------------------------------------------------------------------- TensorFlow 2: the device


def _open_device(script: Script) -> None:
    if _names(script, "npu_device.open"):
        return
    if any(
        edit.text.endswith(".as_default()") for mention in script.mentions for edit in mention.edits
    ):
        return  # Horovod was started here, and the device is opened in its place
    statement = _first_import(script)
    if script.start is not Start.HERE:
        if statement:
            text = "import npu_device as npu; npu.open().as_default()"
            _elsewhere(script, "npu-device", statement, text)
        return
    npu = script.head.module("npu_device", "npu")
    script.head.statement(f"{npu}.open().as_default()")
    if statement:
        script.keep(statement, "npu-device", "the NPU is opened as default device behind it")


# ------------------------------------------------------------------------- TensorFlow 1: the session


def _give_session(script: Script) -> None:
    """Keras makes a session of its own unless it is given one."""
    if not _uses_keras_models(script) or _names(script, _SETTING):
        return
    if any(mention.rule == "tensorflow/session" for mention in script.mentions):
        return  # the script makes sessions, and they have their options
    first = next((node for node in script.references if _is_model(script.name(node))), None)
    if first is None:
        return
    if script.start is not Start.HERE:
        _elsewhere(script, "keras-session", first, f"{_SETTING}() of npu_bridge.npu_init")
        return
    guard = main_guard(script.scopes)
    register = f"{script.head.module('atexit', 'atexit')}.register"
    text = f"{register}({bridge(script, 'close_session')}, {bridge(script, _SETTING)}())"
    if guard is None:
        script.head.statement(text)
        script.keep(
            first, "keras-session", "Keras is given a session for the NPU behind the imports"
        )
        return
    reason = "Keras is given a session for the NPU, which is closed when the program ends"
    script.rewrite(
        guard.test,
        "keras-session",
        reason,
        [_first_in(script, guard, text)],
        span=_head_of(script, guard),
    )


def _uses_keras_models(script: Script) -> bool:
    built = any(_is_model(script.name(node)) for node in script.references)
    bases = any(
        _is_model(script.name(base))
        for node in script.scopes.of(ast.ClassDef)
        for base in node.bases
    )
    return built or bases


def _is_model(name: str) -> bool:
    return name.startswith(
        (
            "tensorflow.keras.Model",
            "tensorflow.keras.Sequential",
            "tensorflow.keras.models.",
            "tensorflow.keras.applications.",
        )
    )


# ------------------------------------------------------------------------- where a program starts


def _elsewhere(script: Script, rule: str, node: ast.AST, statement: str) -> None:
    """What the start of a program has to do, seen from a module where none starts."""
    if script.start is Start.ELSEWHERE:
        script.keep(node, rule, "is set up where the program starts")
    else:
        reason = "no program starts here: the one that uses this module must set the NPU up first"
        script.list(node, rule, reason, statement)


def is_program(scopes: ModuleScopes) -> bool:
    """Whether a program starts in a module: behind a check of `__name__`, or by training as it is imported."""
    return main_guard(scopes) is not None or _runs_at_import(scopes)


def _runs_at_import(scopes: ModuleScopes) -> bool:
    """Whether a module trains or evaluates as soon as it is imported."""
    return any(
        isinstance(node.func, ast.Attribute)
        and node.func.attr in _RUNNING
        and scopes.function(node) is None
        and not scopes.name(node.func).startswith("re.")
        for node in scopes.of(ast.Call)
    )


def _first_import(script: Script) -> ast.stmt | None:
    for statement in script.scopes.tree.body:
        if any(binding.node is statement for binding in script.imports):
            return statement
    return None


def _names(script: Script, dotted: str) -> bool:
    """Whether the module names something already, so that a second run finds nothing to do."""
    return any(
        name == dotted or name.endswith(f".{dotted}")
        for node in script.references
        if (name := script.scopes.name(node))
    )


def _first_in(script: Script, guard: ast.If, text: str) -> Edit:
    """The edit that makes a statement the first of a block."""
    first = guard.body[0]
    edit = Blocks(script.scopes).before(first, [text])
    return edit or insertion(start_of(script.scopes, first), f"{text}; ")


def _head_of(script: Script, guard: ast.If) -> Span:
    """From the `if` to the first statement."""
    start = script.scopes.span(guard).start
    return Span(start, script.scopes.span(guard.body[0]).start)
