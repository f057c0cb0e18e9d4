"""Datasets: the NPU compiles one shape, so the last, smaller batch is dropped."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from lockstep_migrate.engine.arguments import argument, has_stars
from lockstep_migrate.tensorflow.facts import names
from lockstep_migrate.tensorflow.script import Script

_RULE = "batch"
_KEYWORD = "drop_remainder"
_REASON = "the NPU compiles one shape: the last, smaller batch is dropped"

# Methods of datasets that make batches, with the position of `drop_remainder`.
_METHODS = {"batch": 1, "padded_batch": 3}
_FUNCTIONS = {
    "tensorflow.data.experimental.map_and_batch": 3,
    "tensorflow.contrib.data.map_and_batch": 3,
    "tensorflow.data.experimental.dense_to_ragged_batch": 1,
    "tensorflow.data.experimental.bucket_by_sequence_length": None,
}
_DROPPING = (
    "tensorflow.contrib.data.batch_and_drop_remainder",
    "tensorflow.contrib.data.padded_batch_and_drop_remainder",
)
# Methods that datasets have and little else: one of them tells what is batched.
_TELLING = frozenset(names("of datasets"))
# Methods that other things have too: it takes two of them.
_HINTING = frozenset({"cache", "filter", "map", "repeat", "shuffle", "skip", "take"})
_MAKERS = (
    "tensorflow.data.",
    "tensorflow.contrib.data.",
    "tensorflow.python.data.",
    "tensorflow.keras.preprocessing.image_dataset_from_directory",
    "tensorflow_datasets.load",
)


def find_batches(script: Script) -> None:
    """Decide every batch that a dataset is cut into."""
    for node in script.references:
        name, call = script.name(node), script.scopes.call_of(node)
        if call is None or script.is_gone(node):
            continue
        if name in _FUNCTIONS:
            _batch(script, call, _FUNCTIONS[name])
        elif name in _DROPPING:
            script.keep(call, _RULE, "drops the last, smaller batch already")
    for method in script.scopes.of(ast.Call):
        if _is_batch_method(script, method):
            _method(script, method)


def _is_batch_method(script: Script, call: ast.Call) -> bool:
    function = call.func
    if not isinstance(function, ast.Attribute) or function.attr not in _METHODS:
        return False
    # A function of a module, such as tf.train.batch, is no method.
    return not script.is_gone(call) and not _is_module(script, function.value)


def _is_module(script: Script, node: ast.expr) -> bool:
    return bool(script.scopes.name(node)) and not _made(script, node)


def _method(script: Script, call: ast.Call) -> None:
    assert isinstance(call.func, ast.Attribute)
    position = _METHODS[call.func.attr]
    told = not script.defines(call.func.attr) and _has_telling_call(script, call)
    if told or _is_dataset(script, call.func.value):
        _batch(script, call, position)
    elif _is_own(script, call.func):
        script.keep(call, _RULE, f"{call.func.attr} is a method of the script's own class")
    elif argument(call, _KEYWORD, position) is None:
        reason = "makes batches if this is a dataset, which cannot be told from here"
        script.list(call, _RULE, reason, f"{call.func.attr}(..., {_KEYWORD}=True)")


def _batch(script: Script, call: ast.Call, position: int | None) -> None:
    given = argument(call, _KEYWORD, position)
    if isinstance(given, ast.Constant) and given.value is True:
        script.keep(call, _RULE, "drops the last, smaller batch already")
    elif given is not None:
        reason = (
            "keeps the last, smaller batch by the script's own choice; the NPU compiles one shape"
        )
        script.list(call, _RULE, reason, f"{_KEYWORD}=True")
    elif has_stars(call):
        reason = f"{_KEYWORD} may be among arguments that are passed on"
        script.list(call, _RULE, reason, f"{_KEYWORD}=True")
    else:
        script.append(call, f"{_KEYWORD}=True", _RULE, _REASON)


def _made(script: Script, node: ast.expr) -> bool:
    return script.name(node).startswith(_MAKERS)


def _is_dataset(script: Script, expression: ast.expr) -> bool:
    """Whether a chain begins with a function that makes datasets, or with a name that one is assigned to."""
    *_, first = _links(expression)
    bindings = (
        script.scopes.bindings(first.id, script.scopes.scope(first))
        if isinstance(first, ast.Name)
        else ()
    )
    values = [binding.value for binding in bindings if binding.value is not None]
    return any(_made(script, link) for value in (expression, *values) for link in _links(value))


def _links(node: ast.expr) -> Iterator[ast.expr]:
    """A chain of calls and attributes, from its end to its first name."""
    yield node
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
        yield node


def _is_own(script: Script, function: ast.Attribute) -> bool:
    """Whether a method of this name is called on `self` in a class that defines it."""
    if not isinstance(function.value, ast.Name) or function.value.id not in ("self", "cls"):
        return False
    return any(
        isinstance(above, ast.ClassDef)
        and any(
            isinstance(item, ast.FunctionDef) and item.name == function.attr for item in above.body
        )
        for above in script.scopes.ancestors(function)
    )


def _has_telling_call(script: Script, call: ast.Call) -> bool:
    """Whether methods that only datasets have are called on the same thing.

    That is in the same chain, or on the same name in the same function.
    """
    root, methods = _chain(call)
    if _tells(methods):
        return True
    if not isinstance(root, ast.Name):
        return False
    scope = script.scopes.scope(root)
    found: set[str] = set()
    for node in script.scopes.of(ast.Call):
        if isinstance(node.func, ast.Attribute):
            other, called = _chain(node)
            if (
                isinstance(other, ast.Name)
                and other.id == root.id
                and script.scopes.scope(other) is scope
            ):
                found |= called
    return _tells(found)


def _tells(methods: set[str]) -> bool:
    return bool(methods & _TELLING) or len(methods & _HINTING) > 1


def _chain(call: ast.Call) -> tuple[ast.expr, set[str]]:
    """What a chain of calls begins with, and the methods called in it."""
    methods: set[str] = set()
    node: ast.expr = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        methods.add(node.func.attr)
        node = node.func.value
    return node, methods
