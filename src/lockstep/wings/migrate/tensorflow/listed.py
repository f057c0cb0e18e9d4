"""Names of TensorFlow that have no equal on the NPU, and imports that say so."""

from __future__ import annotations

import ast

from lockstep.wings.migrate.tensorflow.facts import (
    CONTRIB,
    KEPT,
    LISTED,
    LISTED_FOR_TF1_ONLY,
    LISTED_FOR_TF2,
)
from lockstep.wings.migrate.tensorflow.script import Generation, Script, canonical, prefixes

_CONTRIB = "tensorflow.contrib"


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
    rule, reason, replacement = _entry(script, name)
    if reason and _is_spelled_out(script, node, name):
        if rule == "kept":
            script.keep(node, "known", reason)
        else:
            script.list(node, rule, reason, replacement)


def _entry(script: Script, name: str) -> tuple[str, str, str]:
    for prefix in prefixes(name):
        if prefix in KEPT:
            return "kept", KEPT[prefix], ""
        if prefix in LISTED:
            if prefix in LISTED_FOR_TF1_ONLY and script.generation is Generation.TF2:
                return "", "", ""
            newer = LISTED_FOR_TF2 if script.generation is Generation.TF2 else {}
            return "unsupported", *newer.get(prefix, LISTED[prefix])
    if name == _CONTRIB or name.startswith(f"{_CONTRIB}."):
        return "contrib", *CONTRIB
    return "", "", ""


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
    return bool(root) and not _entry(script, root)[1] and root != name


def _import(script: Script, alias: ast.alias, name: str) -> None:
    rule, reason, replacement = _entry(script, name)
    if rule == "kept":
        script.keep(alias, "known", reason)
    elif reason:
        script.list(alias, rule, reason, replacement)
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
