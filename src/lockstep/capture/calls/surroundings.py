"""Questions to torch that the taps ask about a call and its tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch

from lockstep.capture.calls.gradients import graph_node
from lockstep.capture.calls.leaves import NamedTensor, tensors_in

_FAST_PATH_MODULES = (
    torch.nn.MultiheadAttention,
    torch.nn.TransformerEncoder,
    torch.nn.TransformerEncoderLayer,
)
"""Modules that run one fused kernel in evaluation, but not where a function mode is on."""


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether calling the module runs what `torch.compile` made of it."""
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    kind = type(module)
    return kind.__name__ == "OptimizedModule" and kind.__module__.startswith("torch._dynamo")


def buffers_of(module: torch.nn.Module, *, inside: bool = True) -> Iterator[NamedTensor]:
    """Buffers that a call of the module itself may change; of a compiled one, all below it.

    `inside` is false where what a compiled module calls is seen.
    """
    if is_compiled(module):
        if inside:
            yield from module.named_buffers()
            return
        module = getattr(module, "_orig_mod", module)
    for name, tensor in module._buffers.items():
        if tensor is not None:
            yield name, tensor


SET_ITEM = "torch.Tensor.__setitem__"


def has_parameters(module: torch.nn.Module) -> bool:
    """Whether a parameter of the module, or of one below it, takes a gradient."""
    with torch._C.DisableTorchFunctionSubclass():
        return any(parameter.requires_grad for parameter in module.parameters())


def may_take_fast_path(module: torch.nn.Module, grad: bool) -> bool:
    """Whether a module would run as one fused kernel if nobody watched."""
    if module.training or not isinstance(module, _FAST_PATH_MODULES):
        return False
    return not grad or not has_parameters(module)


def in_backward() -> bool:
    """Whether the autograd engine is at work around this code."""
    return bool(torch._C._current_graph_task_id() != -1)


def in_transform() -> bool:
    """Whether a `torch.func` transform is at work around this code."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that a `torch.func` transform wrapped."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


_AS_ANOTHER = frozenset({"view_as", "reshape_as", "expand_as", "type_as"})
"""Operators that take the shape or the dtype of their second tensor, and nothing else of it."""


def trains(name: str, tensors: list[NamedTensor]) -> bool:
    """Whether a call outside of any module builds a graph on a parameter, as functional models do.

    What writes to a parameter builds none: autograd allows it without gradients only, as `torch.nn.init` code does it.
    Nor does what asks for no more than its shape, as hand-written optimizers do for their states.
    """
    if name.endswith("_like"):
        return False
    if name.rpartition(".")[2] in _AS_ANOTHER:
        tensors = tensors[:1]
    with torch._C.DisableTorchFunctionSubclass():  # asking a tensor runs no code of the script's
        if name == "torch.Tensor.detach" or (
            changes_in_place(name) and any(map(_is_leaf, tensors[:1]))
        ):
            return False
        return any(map(_is_leaf, tensors))


def changes_in_place(name: str) -> bool:
    """Whether a call of this name writes to its first argument."""
    return name == SET_ITEM or (name.endswith("_") and not name.endswith("__"))


@cache
def arguments_written(name: str) -> tuple[str, ...]:
    """Names that a recording gives the arguments which an operator without results writes to, as its schema says.

    Autograd counts no version of some of these writes, as of gradients that `GradScaler` unscales.
    """
    if not changes_in_place(name):
        return ()
    schemas = torch._C._jit_get_schemas_for_operator(f"aten::{name.rpartition('.')[2]}")
    found = [_written_by(schema) for schema in schemas if not schema.returns]
    return tuple(sorted(set.intersection(*found))) if found else ()


def _written_by(schema: Any) -> set[str]:
    places = [
        (f"args.{position}", argument.name)
        for position, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return {name for names in places for name in names}


def _is_leaf(named: NamedTensor) -> bool:
    return named[1].requires_grad and graph_node(named[1]) is None


def written(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[torch.Tensor]:
    """Tensors that an aten operator writes to, as its schema says."""
    schema = getattr(function, "_schema", None)
    if schema is None or not schema.is_mutable:
        return
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            given = args[position] if position < len(args) else kwargs.get(argument.name)
            for _, tensor in tensors_in(given, ""):
                yield tensor


_PLAIN_KINDS = frozenset({torch.Tensor, torch.nn.Parameter})


def below_functions(tensors: list[NamedTensor]) -> AbstractContextManager[object]:
    """Where an aten operator runs: a subclass that only listens to functions was asked already, above autograd.

    One that takes part in dispatch is left as it is: its own code runs there without Lockstep too.
    """
    kinds = {type(tensor) for _, tensor in tensors} - _PLAIN_KINDS
    disabled = torch._C._disabled_torch_dispatch_impl
    if kinds and all(getattr(kind, "__torch_dispatch__", disabled) is disabled for kind in kinds):
        return torch._C.DisableTorchFunctionSubclass()
    return _AS_IT_IS


_AS_IT_IS = nullcontext()


def has_tensor(result: Any) -> bool:
    """Whether a call returned a tensor, as far as its first results tell."""
    if isinstance(result, torch.Tensor):
        return True
    return isinstance(result, (tuple, list)) and any(has_tensor(item) for item in result[:4])
