"""The model: where it is ready to be wrapped, and who asks for more of it than the wrapper gives."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.wings.migrate.distributed.flow import Flow
from lockstep.wings.migrate.engine.arguments import called
from lockstep.wings.migrate.engine.scopes import Binding, Scope
from lockstep.wings.migrate.engine.statements import blocks_of
from lockstep.wings.migrate.engine.tree import is_own_attribute

_PREPARING = frozenset(
    {
        "to", "cuda", "cpu", "npu", "xpu", "hpu", "half", "float", "double", "bfloat16", "type",
        "apply", "load_state_dict", "requires_grad_", "share_memory",
    }
)  # fmt: skip
_OF_THE_WRAPPER = frozenset(
    {
        "train", "eval", "parameters", "buffers", "zero_grad", "to", "cuda", "cpu", "npu", "xpu",
        "hpu", "half", "float", "double", "bfloat16", "type", "requires_grad_", "apply", "modules",
        "forward", "training", "no_sync", "join", "module", "share_memory", "compile",
        "register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook",
        "register_comm_hook", "__class__", "__call__", "device_ids", "device",
    }
)  # fmt: skip
_OF_ANY_MODULE = frozenset(
    {
        "state_dict", "load_state_dict", "named_parameters", "named_modules", "named_buffers",
        "named_children", "children", "get_submodule", "get_parameter", "get_buffer", "extra_repr",
        "register_buffer", "register_parameter", "add_module",
    }
)  # fmt: skip
_TAKING_THE_MODEL = frozenset(
    {
        "torch.save", "copy.deepcopy", "copy.copy", "torch.onnx.export", "torch.jit.trace",
        "torch.jit.script", "torchsummary.summary", "torchinfo.summary", "torchviz.make_dot",
        "isinstance", "print", "str", "repr", "type", "pickle.dump",
    }
)  # fmt: skip
_INDIFFERENT = frozenset({"id", "bool", "wandb.watch", "torch.compile", "next", "len", "hasattr"})
_CONTAINERS = frozenset(
    {"append", "list", "tuple", "dict", "zip", "enumerate", "getattr", "format"}
)
_MOVING = frozenset({"to", "cuda", "npu", "xpu", "hpu"})
_REPLICATING = frozenset({"torch.nn.DataParallel", "torch.nn.parallel.DataParallel"})
_NO_GRADIENTS = frozenset({"torch.no_grad", "torch.inference_mode"})


@dataclass(frozen=True, slots=True)
class Wrap:
    """Where the model is wrapped.

    Parameters
    ----------
    name
        The variable.
    bindings
        What is assigned to it.
    statement
        The statement behind which it is wrapped.
    scope
        The variable's scope.
    """

    name: str
    bindings: tuple[Binding, ...]
    statement: ast.stmt
    scope: Scope


class ModelError(ValueError):
    """The model cannot be wrapped; the message is the reason that is shown."""

    def __init__(self, node: ast.AST | None, reason: str) -> None:
        super().__init__(reason)
        self.node = node


def find_wrap(flow: Flow, name: str, loops: list[ast.AST]) -> Wrap:
    """Where a variable holds the finished model.

    Parameters
    ----------
    flow
        The module.
    name
        The variable.
    loops
        The training loops.

    Raises
    ------
    ModelError
        If there is no such variable, or several, or it is changed where no wrap can follow.
    """
    scope, bindings = _bindings(flow, name, loops)
    block = _common_block(flow, [flow.scopes.statement(item.node) for item in bindings])
    # Checkpoints of DataParallel have its names: they are loaded into the wrapper that follows it.
    replicated = any(is_replicating(flow, item.value) for item in bindings)
    last = None
    for statement in block:
        still_ready = last is not None and not replicated and _prepares(flow, statement, name)
        if still_ready or _binds(statement, bindings):
            last = statement
        elif last is not None and flow.trains(statement) and _is_run(statement):
            break
    if last is None:
        raise ModelError(bindings[0].node, f"{name} is not assigned in a block of statements")
    later = [item for item in bindings if flow.scopes.span(item.node) > flow.scopes.span(last)]
    if later:
        raise ModelError(later[0].node, f"{name} is assigned again after training has begun")
    return Wrap(name, bindings, last, scope)


def likely_models(tree: ast.Module) -> tuple[str, ...]:
    """Variables of a script that are used as a model is: those whose parameters something asks for, or else its mode.

    Parameters
    ----------
    tree
        The script.
    """
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


def _bindings(flow: Flow, name: str, loops: list[ast.AST]) -> tuple[Scope, tuple[Binding, ...]]:
    """The scope whose variable is trained, and its assignments."""
    used = {node for loop in loops for part in flow.reaches(loop) for node in ast.walk(part)}
    found: dict[int, tuple[Scope, tuple[Binding, ...]]] = {}
    first: ast.AST | None = None
    for node in flow.scopes.nodes:
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store):
            first = first or node
            scope = flow.scopes.scope(node)
            bindings = flow.scopes.bindings(name, scope)
            if not used.isdisjoint(flow.reaching(item.node for item in bindings)):
                owner = _owner(flow, bindings)
                found[id(owner)] = (owner, bindings)
    if not found:
        reason = "no training loop uses it" if first else "no such variable is assigned here"
        raise ModelError(first, f"{name}: {reason}; name the model's variable with --model")
    for key, (_, bindings) in list(found.items()):
        others = [item for other, (_, items) in found.items() if other != key for item in items]
        if any(bindings[0].node in flow.origins(item) for item in others):
            del found[key]  # handed on to another
    if len(found) != 1:
        raise ModelError(first, f"{name} is assigned in several functions that train")
    return next(iter(found.values()))


def is_replicating(flow: Flow, node: ast.AST | None) -> bool:
    """Whether an expression is `DataParallel(model)`."""
    return isinstance(node, ast.Call) and flow.scopes.name(node.func) in _REPLICATING


def _owner(flow: Flow, bindings: tuple[Binding, ...]) -> Scope:
    scope: Scope | None = flow.scopes.scope(bindings[0].node)
    while scope is not None and bindings[0] not in scope.bindings.get(bindings[0].name, ()):
        scope = scope.parent
    return scope or flow.scopes.module


def _common_block(flow: Flow, statements: list[ast.stmt]) -> list[ast.stmt]:
    """The innermost block that holds all statements, themselves or inside others."""
    above: ast.AST = statements[0]
    while above in flow.scopes.parents:
        above = flow.scopes.parents[above]
        for block in blocks_of(above):
            held = {inner for item in block for inner in ast.walk(item)}
            if all(statement in held for statement in statements):
                return block
    return []


def _binds(statement: ast.stmt, bindings: tuple[Binding, ...]) -> bool:
    inside = set(ast.walk(statement))
    return any(item.node in inside for item in bindings)


def _prepares(flow: Flow, statement: ast.stmt, name: str) -> bool:
    """Whether a statement still makes the model ready: moves it, loads it, freezes a part of it."""
    if not _is_run(statement):
        return False
    for node in ast.walk(statement):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in _PREPARING
            and flow.scopes.text(node.func.value) == name
        ):
            return not flow.trains(statement)
        if isinstance(node, ast.Attribute) and node.attr == "requires_grad":
            return isinstance(node.ctx, ast.Store) and not flow.trains(statement)
    return False


def _is_run(statement: ast.stmt) -> bool:
    return not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)


# -- after the wrap


@dataclass(frozen=True, slots=True)
class Use:
    """A place that gets the wrapper where it may mean the model.

    Parameters
    ----------
    node
        The name that stands for the model.
    shown
        The expression around it.
    obstacle
        Why it is not rewritten; empty where it is.
    """

    node: ast.expr
    shown: ast.AST
    obstacle: str = ""


def uses(flow: Flow, wraps: list[Wrap], loops: list[ast.AST]) -> Iterator[Use]:
    """Every place behind the wrap that asks for what the wrapper does not give."""
    training = {node for loop in loops for part in flow.reaches(loop) for node in ast.walk(part)}
    for node in flow.scopes.nodes:
        if not (isinstance(node, ast.Name) or is_own_attribute(node)):
            continue
        if not isinstance(getattr(node, "ctx", None), ast.Load) or _is_before(flow, wraps, node):
            continue
        if not refers(flow, wraps, node):
            continue
        use = _use(flow, node, training)
        if use is not None:
            yield use


def refers(flow: Flow, wraps: list[Wrap], node: ast.AST) -> bool:
    """Whether an expression may stand for a wrapped model."""
    return node in flow.reaching(item.node for wrap in wraps for item in wrap.bindings)


def _is_before(flow: Flow, wraps: list[Wrap], node: ast.AST) -> bool:
    """Whether a place runs before the wrap: in the same scope, further up."""
    scope = _owning_scope(flow, node)
    return any(
        wrap.scope is scope and flow.scopes.span(node).start < flow.scopes.span(wrap.statement).end
        for wrap in wraps
    )


def _owning_scope(flow: Flow, node: ast.AST) -> Scope:
    scope = flow.scopes.scope(node)
    while isinstance(scope.node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        if scope.parent is None:
            break
        scope = scope.parent
    return scope


def _use(flow: Flow, node: ast.expr, training: set[ast.AST]) -> Use | None:
    parent = flow.scopes.parents[node]
    if isinstance(parent, ast.Attribute):
        return _attribute_use(flow, node, parent, training)
    if isinstance(parent, ast.keyword):
        parent = flow.scopes.parents[parent]
    if isinstance(parent, ast.Call) and node is not parent.func:
        return _argument_use(flow, node, parent)
    return None


def _attribute_use(
    flow: Flow, node: ast.expr, attribute: ast.Attribute, training: set[ast.AST]
) -> Use | None:
    if attribute.attr in _OF_THE_WRAPPER:
        return None
    call = flow.scopes.parents[attribute]
    calls = isinstance(call, ast.Call) and call.func is attribute
    if (
        calls
        and attribute.attr not in _OF_ANY_MODULE
        and node in training
        and not without_gradients(flow, node)
    ):
        reason = (
            f"calls {attribute.attr} of the model, not the model: gradients of what it computes would not be "
            "averaged between processes; compute it inside forward"
        )
        return Use(node, call, reason)
    return Use(node, attribute)


def _argument_use(flow: Flow, node: ast.expr, call: ast.Call) -> Use | None:
    name = flow.scopes.name(call.func) or flow.scopes.text(call.func)
    if flow.callee(call) is not None or name in _INDIFFERENT:
        return None
    if name in _TAKING_THE_MODEL:
        return Use(node, call)
    if called(call) in _CONTAINERS or name.rpartition(".")[2] == "DistributedDataParallel":
        return None
    return Use(node, call, f"{name} gets the model in its wrapper; look whether that serves it")


def without_gradients(flow: Flow, node: ast.AST) -> bool:
    """Whether a place computes no gradients: under `no_grad`, in the `with` or as a decorator."""
    for above in flow.scopes.ancestors(node):
        items = [item.context_expr for item in getattr(above, "items", ())]
        for expression in [*items, *getattr(above, "decorator_list", ())]:
            inner = expression.func if isinstance(expression, ast.Call) else expression
            if flow.scopes.name(inner) in _NO_GRADIENTS:
                return True
    return False


def check_uses(flow: Flow, wraps: list[Wrap]) -> None:
    """Make sure that nothing is trained unwrapped, and that no wrapped model is moved.

    Raises
    ------
    ModelError
        If so; it says where.
    """
    for node in _trained_besides(flow, wraps) if wraps else ():
        names = ",".join([*(wrap.name for wrap in wraps), node.id])
        reason = f"{node.id} is trained too, and would differ from process to process; give all: --model {names}"
        raise ModelError(node, reason)
    for call in flow.calls:
        if (
            isinstance(call.func, ast.Attribute)
            and call.func.attr in _MOVING
            and refers(flow, wraps, call.func.value)
            and not _is_before(flow, wraps, call)
            and not any(call in ast.walk(wrap.statement) for wrap in wraps)
        ):
            raise ModelError(
                call,
                "the model is moved after it would be wrapped; move it before the training begins",
            )


def _trained_besides(flow: Flow, wraps: list[Wrap]) -> list[ast.Name]:
    """Models whose parameters an optimizer takes although nothing wraps them."""
    found: dict[str, ast.Name] = {}
    for call in flow.calls:
        name = flow.scopes.name(call.func)
        if not (name.startswith(("torch.optim.", "apex.optimizers.")) and call.args):
            continue
        for source in flow.trail(call.args[0]):
            for node in ast.walk(source):
                if (
                    isinstance(node, ast.Attribute)
                    and node.attr in ("parameters", "named_parameters")
                    and isinstance(node.value, ast.Name)
                    and not refers(flow, wraps, node.value)
                ):
                    found.setdefault(node.value.id, node.value)
    return list(found.values())
