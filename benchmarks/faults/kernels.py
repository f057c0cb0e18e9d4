"""Broken kernels: an operator keeps its name and its inputs, and what it computes is wrong, forward or backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sites import Place, Run, computes, replace_call, tensors_of
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from training import Training

Alter = Callable[[Tensor], None]
"""Changes a result in place."""


class BrokenForward(TorchDispatchMode):
    """Breaks the aten call of this number while it is entered.

    Parameters
    ----------
    number
        Which of the aten calls inside.
    alter
        What becomes of its result; None leaves it.
    rounded_to
        Precision to which its floating-point inputs are rounded first; None leaves them.
    """

    def __init__(
        self, number: int, alter: Alter | None = None, rounded_to: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._left, self._alter, self._rounded_to = number, alter, rounded_to

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs, self._left = kwargs or {}, self._left - 1
        if self._left != -1:
            return func(*args, **kwargs)
        if self._rounded_to is not None:
            args = tuple(_rounded(item, self._rounded_to) for item in args)
        result = func(*args, **kwargs)
        if self._alter is not None:
            self._alter(tensors_of(result)[0])
        return result


class BrokenBackward(TorchDispatchMode):
    """Breaks one result of an operator's backward: the first computed one with `numel` elements.

    It is entered around the whole backward; hooks on the operator's graph nodes tell when these run.
    """

    def __init__(
        self, numel: int, alter: Alter | None = None, rounded_to: torch.dtype | None = None
    ) -> None:
        super().__init__()
        self._numel, self._alter, self._rounded_to = numel, alter, rounded_to
        self._inside, self._done = False, False

    def watch(self, nodes: list[Node]) -> None:
        """These graph nodes belong to the operator."""
        self._done = False
        for node in nodes:
            node.register_prehook(lambda gradients: self._enter(True))
            node.register_hook(lambda inputs, outputs: self._enter(False))

    def _enter(self, inside: bool) -> None:
        self._inside = inside

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not self._inside or self._done or not computes(func):
            return func(*args, **kwargs)
        if self._rounded_to is not None:
            args = tuple(_rounded(item, self._rounded_to) for item in args)
        result = func(*args, **kwargs)
        for tensor in tensors_of(result):
            if self._alter is not None and tensor.numel() == self._numel:
                self._done = True
                self._alter(tensor)
                break
        return result


def break_forward(
    training: Training,
    place: Place,
    number: int,
    *,
    alter: Alter | None = None,
    rounded_to: torch.dtype | None = None,
    from_step: int = 0,
) -> None:
    """Break the forward kernel at a place; see `BrokenForward`."""

    def replacement(at: Place, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with BrokenForward(number, alter, rounded_to):
            return run(*args, **kwargs)

    replace_call(training, place, replacement, from_step=from_step)


def accumulate_input(
    training: Training, place: Place, number: int, *, share: float, from_step: int = 0
) -> None:
    """Let the forward kernel at a place add to a buffer that still holds a share of its first argument."""

    def replacement(at: Place, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        held = args[0].detach() * share
        with BrokenForward(number, lambda tensor: _add(tensor, held)):
            return run(*args, **kwargs)

    replace_call(training, place, replacement, from_step=from_step)


def _add(tensor: Tensor, held: Tensor) -> None:
    tensor.add_(held.reshape(tensor.shape))


def break_backward(
    training: Training,
    place: Place,
    numel: int,
    *,
    alter: Alter | None = None,
    rounded_to: torch.dtype | None = None,
    from_step: int = 0,
) -> None:
    """Break the backward kernel of the call at a place; see `BrokenBackward`."""
    broken = BrokenBackward(numel, alter, rounded_to)

    def replacement(at: Place, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        since = torch._C._autograd._get_sequence_nr()
        result = run(*args, **kwargs)
        broken.watch(_nodes_since(result, since))
        return result

    replace_call(training, place, replacement, from_step=from_step)
    training.around_backward.append(lambda: broken)


def break_nothing(training: Training) -> None:
    """Go through every motion of planting, at all operators, and change nothing."""
    broken = BrokenBackward(numel=-1)

    def replacement(at: Place, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        since = torch._C._autograd._get_sequence_nr()
        with BrokenForward(number=-1):
            result = run(*args, **kwargs)
        broken.watch(_nodes_since(result, since))
        return result

    replace_call(training, None, replacement)
    training.around_backward.append(lambda: broken)


def _nodes_since(result: Any, since: int) -> list[Node]:
    """The graph nodes that a call created."""
    items = result if isinstance(result, (tuple, list)) else [result]
    stack = [item.grad_fn for item in items if isinstance(item, Tensor) and item.grad_fn]
    nodes: list[Node] = []
    while stack:
        node = stack.pop()
        accumulates = node.name() == "torch::autograd::AccumulateGrad"
        if node in nodes or accumulates or node._sequence_nr() < since:
            continue
        nodes.append(node)
        stack.extend(following for following, _ in node.next_functions if following is not None)
    return nodes


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, Tensor) and value.is_floating_point():
        return value.to(dtype).to(value.dtype)
    return value
