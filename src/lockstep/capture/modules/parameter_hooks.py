"""Hooks on parameters: they tell when a backward has added to a gradient."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lockstep.capture.modules.module_paths import ModuleNames
from lockstep.capture.patching.untraced import untraced
from lockstep.capture.tensors.memory import takes_gradient

Accumulated = Callable[[torch.Tensor], None]


class ParameterHooks:
    """Listens to the gradients of parameters.

    names: Which parameters there are.
    accumulated: Is told of a parameter whose gradient backward has added to.
    """

    def __init__(self, names: ModuleNames, accumulated: Accumulated) -> None:
        self._names = names
        self._accumulated = accumulated
        self._untraced: Accumulated | None = None
        self._handles: list[Any] = []
        self._hooked: dict[int, int] = {}

    def begin(self) -> None:
        """Recording begins: where a compiler is loaded, it must not trace the hooks."""
        if "torch._dynamo" in sys.modules:
            self._untraced = untraced(self._accumulated)

    def compiler_loaded(self) -> bool:
        """Something was compiled: hooks must not be traced; tells whether they were taken out for that."""
        if self._untraced is not None:
            return False
        self._untraced = untraced(self._accumulated)
        self.take_out()
        return True

    def put(self, new: Sequence[torch.Tensor] | None = None) -> None:
        """Listen to the gradients of `new` parameters, or of all that have none of our hooks yet."""
        hook = self._accumulated if self._untraced is None else self._untraced
        if new is None:
            new = [tensor for tensor, _, _ in list(self._names.owners.values())]
        for tensor in new:
            # Not by a weak reference to it, which would forbid to swap what is inside of it.
            hooks = getattr(tensor, "_post_accumulate_grad_hooks", None) or {}
            if self._hooked.get(id(tensor)) not in hooks and takes_gradient(tensor):
                handle = tensor.register_post_accumulate_grad_hook(hook)
                self._hooked[id(tensor)] = handle.id
                self._handles.append(handle)

    def take_out(self) -> None:
        """Listen no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._hooked.clear()
