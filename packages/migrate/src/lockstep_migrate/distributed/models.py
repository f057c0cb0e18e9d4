"""Find uses of a model that its wrapper does not offer, and variables that look like models."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from lockstep.plugin import devices
from lockstep_migrate.distributed.training import Function, Script, Wrap, is_before
from lockstep_migrate.engine.arguments import called
from lockstep_migrate.name_lists import listed_names

_OF_THE_WRAPPER = listed_names("of the wrapper") | {one.name for one in devices() if one.method}
_OF_ANY_MODULE = listed_names("of any module")
_TAKING_THE_MODEL = listed_names("taking the model")
_INDIFFERENT = frozenset({"id", "bool", "wandb.watch", "torch.compile", "next", "hasattr"})
_OF_LAYERS = frozenset({"len", "list", "tuple", "iter", "enumerate", "reversed", "zip"})
"""Functions that go over the layers of an `nn.Sequential`, which the wrapper has not."""
_NO_GRADIENTS = ("no_grad", "inference_mode")


@dataclass(frozen=True, slots=True)
class Use:
    """A place that gets the wrapper where it may mean the model; `obstacle` says why it is not rewritten."""

    node: ast.Name
    shown: ast.AST
    obstacle: str = ""


def uses(script: Script, wraps: Sequence[Wrap]) -> Iterator[Use]:
    """Every place behind the wrap that asks for what the wrapper does not give."""
    names = {wrap.name for wrap in wraps}
    for node in script.scopes.of(ast.Name):
        if (
            node.id in names
            and isinstance(node.ctx, ast.Load)
            and not is_before(script, wraps, node)
        ):
            use = _use(script, node)
            if use is not None:
                yield use


def _use(script: Script, node: ast.Name) -> Use | None:
    parents = script.scopes.parents
    parent = parents[node]
    if isinstance(parent, ast.Attribute):
        return _attribute_use(script, node, parent)
    if isinstance(parent, ast.Subscript | ast.For | ast.comprehension | ast.Starred):
        return Use(node, node)  # its layers are asked for
    keyword = parent.arg if isinstance(parent, ast.keyword) else None
    call = parents[parent] if isinstance(parent, ast.keyword) else parent
    if isinstance(call, ast.Call) and (node in call.args or keyword or node is call.func):
        return None if node is call.func else _argument_use(script, node, call, keyword)
    if isinstance(parent, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.If | ast.Expr):
        return None
    return Use(
        node, parent, "gets the model in its wrapper under another name: ask it for .module there"
    )


def _attribute_use(script: Script, node: ast.Name, attribute: ast.Attribute) -> Use | None:
    if attribute.attr in _OF_THE_WRAPPER:
        return None
    call = script.scopes.parents[attribute]
    calls = isinstance(call, ast.Call) and call.func is attribute
    if calls and attribute.attr not in _OF_ANY_MODULE and _computes_gradients(script, node):
        reason = (
            f"calls {attribute.attr} of the model, not the model: gradients of what it computes would not be "
            "averaged between processes; compute it inside forward"
        )
        return Use(node, call, reason)
    return Use(node, attribute)


def _argument_use(
    script: Script, node: ast.Name, call: ast.Call, keyword: str | None
) -> Use | None:
    name = script.scopes.name(call.func) or script.scopes.text(call.func)
    function = script.functions.get(called(call))
    if name in _INDIFFERENT:
        return None
    if name in _OF_LAYERS:
        return Use(node, call)
    if function is not None:
        if node.id == (keyword or _parameter(script, function, call.args.index(node))):
            return None
    elif name in _TAKING_THE_MODEL:
        return Use(node, call)
    return Use(node, call, f"{name} gets the model in its wrapper; look whether that serves it")


def _parameter(script: Script, function: Function, place: int) -> str:
    """What a function calls the argument that it is given in some place."""
    names = [item.arg for item in (*function.args.posonlyargs, *function.args.args)]
    bound = isinstance(script.scopes.parents[function], ast.ClassDef)
    return next(iter(names[place + bound :]), "")


def _computes_gradients(script: Script, node: ast.AST) -> bool:
    """Whether a place may be part of a training step: beside a `backward()`, and under no `no_grad`."""
    for above in script.scopes.ancestors(node):
        items = [item.context_expr for item in getattr(above, "items", ())]
        texts = [
            script.scopes.text(item) for item in (*items, *getattr(above, "decorator_list", ()))
        ]
        if any(word in text for text in texts for word in _NO_GRADIENTS):
            return False
    loops = (ast.For, ast.While)
    if any(isinstance(one, loops) and script.trains(one) for one in script.scopes.ancestors(node)):
        return True
    # A function that takes one step, for a loop elsewhere.
    function = script.scopes.function(node)
    inner = list(ast.walk(function)) if function is not None else []
    has_loop = any(isinstance(one, loops) and script.trains(one) for one in inner)
    return function is not None and script.trains(function) and not has_loop


def likely_models(tree: ast.Module) -> tuple[str, ...]:
    """Variables that are used as a model is: those whose parameters something asks for, or else its mode."""
    assigned = assigned_names(tree)
    for attributes in (("parameters", "named_parameters"), ("train", "eval", "state_dict")):
        found = {
            node.value.id: None
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute)
            and node.attr in attributes
            and isinstance(node.value, ast.Name)
            and node.value.id in assigned
        }
        if found:
            return tuple(found)
    return ()


def assigned_names(tree: ast.Module) -> frozenset[str]:
    """All variables that a script assigns, anywhere."""
    return frozenset(
        node.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    )
