"""Names of TensorFlow that have no equal on the NPU, and imports that say so."""

from __future__ import annotations

import ast

from lockstep_migrate.tensorflow.equals import Row, row_around
from lockstep_migrate.tensorflow.script import Script, canonical


def find_listed(script: Script) -> None:
    """Decide what no other rule has: names of the tables, `tf.contrib`, imports of unfit packages."""
    for node in script.references:
        if not script.is_gone(node) and not _is_decided(script, node):
            _reference(script, node, script.name(node))
    for binding in script.imports:
        if binding.alias is not None and not binding.qualified.startswith("horovod"):
            _import(script, binding.alias, canonical(binding.qualified))
    _stars(script)


def _is_decided(script: Script, node: ast.expr) -> bool:
    call = script.scopes.call_of(node)
    return script.is_claimed(node) or (call is not None and script.is_claimed(call))


def _reference(script: Script, node: ast.expr, name: str) -> None:
    row = row_around(name, script.generation)
    if row is not None and _is_spelled_out(script, node, name):
        _decide(script, node, row)


def _decide(script: Script, node: ast.AST, row: Row) -> None:
    if row.action == "keep":
        script.keep(node, row.rule, row.reason)
    else:
        script.list(node, row.rule, row.reason, row.becomes)


def _is_spelled_out(script: Script, node: ast.expr, name: str) -> bool:
    """Whether a use shows itself what it is; else the import or the assignment that it comes from does.

    `slim.conv2d` is not listed, `import tensorflow.contrib.slim as slim` is.
    """
    first = node
    while isinstance(first, ast.Attribute):
        first = first.value
    if isinstance(first, ast.Name) and not script.scopes.bindings(
        first.id, script.scopes.scope(first)
    ):
        return True  # behind a star import
    root = script.name(first)
    return bool(root) and row_around(root, script.generation) is None and root != name


def _import(script: Script, alias: ast.alias, name: str) -> None:
    row = row_around(name, script.generation)
    if row is not None:
        _decide(script, alias, row)
    elif name == "keras" or name.startswith("keras."):
        reason = "is Keras apart from TensorFlow, whose session the NPU's set-up does not reach"
        script.list(alias, "keras", reason, name.replace("keras", "tensorflow.keras", 1))


def _stars(script: Script) -> None:
    for node in script.scopes.of(ast.ImportFrom):
        if node.names[0].name == "*" and not node.level:
            module = canonical(f"{node.module}.")
            if module.startswith("horovod."):
                script.list(
                    node,
                    "import",
                    "takes every name of Horovod",
                    "import horovod.tensorflow as hvd",
                )
