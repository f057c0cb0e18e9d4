"""Operators that an emulated device gets wrong on purpose, and where in the model they are."""

from __future__ import annotations

import fnmatch
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lockstep.core.selection import matches, nearest_names
from lockstep.devices.emulation.profiles import WrongOperator, named_operator
from lockstep.devices.emulation.rounding import Generators


class ModuleStack(threading.local):
    """Which modules are being called in this thread, outermost first."""

    def __init__(self) -> None:
        self._stack: list[torch.nn.Module] = []
        self._paths: dict[int, str] = {}
        self._root: torch.nn.Module | None = None

    def __len__(self) -> int:
        return len(self._stack)

    @property
    def path(self) -> str:
        """Path of the innermost one below the outermost one, as in `named_modules()`."""
        if not self._stack:
            return ""
        root, inside = self._stack[0], self._stack[-1]
        if root is not self._root or id(inside) not in self._paths:
            self._root = root
            self._paths = {id(module): name for name, module in root.named_modules()}
        name = self._paths.get(id(inside), "")
        wrapped = isinstance(root, torch.nn.parallel.DistributedDataParallel)
        return name.removeprefix("module.") if wrapped else name

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """`torch.nn.Module.__call__` that keeps the stack."""

        @functools.wraps(call)
        def module_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            self._stack.append(module)
            try:
                return call(module, *args, **kwargs)
            finally:
                self._stack.pop()

        return module_call


class ModuleTap:
    """Keeps the stack of modules, where an emulation needs to know where in the model the code is."""

    def __init__(self, *, follow: bool) -> None:
        self.stack = ModuleStack()
        self._needed = follow
        self._original: Any = None
        self._ours: Any = None
        self._on = False

    def put(self) -> None:
        """Begin to follow calls of modules."""
        if self._needed:
            self._on = True
            self._original = torch.nn.Module.__call__
            self._ours = self._wrap(self._original)
            torch.nn.Module.__call__ = self._ours  # type: ignore[method-assign]

    def take_back(self) -> None:
        """Stop; where somebody else has replaced the method since, ours stays below theirs and does nothing."""
        self._on = False
        if self._ours is not None and torch.nn.Module.__call__ is self._ours:
            torch.nn.Module.__call__ = self._original  # type: ignore[method-assign]

    def _wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        followed = self.stack.wrap(call)

        @functools.wraps(call)
        def module_call(*args: Any, **kwargs: Any) -> Any:
            return (followed if self._on else call)(*args, **kwargs)

        return module_call


class Fault:
    """A wrong operator at work.

    wrong: What is wrong.
    modules: Where in the model the code is.

    wrong: As given.
    met: Whether a call matched so far.
    """

    def __init__(self, wrong: WrongOperator, modules: ModuleStack) -> None:
        self.wrong = wrong
        self.met = False
        self._modules = modules
        self._pattern = named_operator(wrong.operator)
        self._calls = 0
        self._generators = Generators(0)
        self._names: dict[Any, bool] = {}

    def hits(self, function: Any) -> bool:
        """Whether this call of an overload is to be wrong; counts it."""
        if function not in self._names:
            self._names[function] = any(
                fnmatch.fnmatchcase(name, self._pattern) for name in names_of(function)
            )
        if not self._names[function]:
            return False
        if self.wrong.module and not matches(self.wrong.module, self._modules.path, ""):
            return False
        self._calls += 1
        hit = self.wrong.call in (None, self._calls - 1)
        self.met = self.met or hit
        return hit

    def nearest(self) -> list[str]:
        """Names of operators met so far that are most like the one that was asked for."""
        return nearest_names(self._pattern, {names_of(function)[0] for function in self._names})

    def spoiled(self, value: Tensor) -> Tensor:
        """The result as the wrong operator gives it."""
        kind, amount = self.wrong.kind, self.wrong.amount
        if kind == "scale":
            return value * amount
        if kind == "offset":
            return value + amount
        if kind == "noise":
            generator = self._generators.on(value.device)
            noise = torch.randn(value.shape, generator=generator, device=value.device)
            return value * (1 + amount * noise).to(value.dtype)
        if kind == "fp16":
            return value.to(torch.float16).to(value.dtype)
        count = round(amount * value.numel()) if kind == "zero" else int(amount)
        flat = value.clone(memory_format=torch.contiguous_format).view(-1)
        flat[:count] = 0 if kind == "zero" else torch.nan
        return flat.view(value.shape)


_PUBLIC_NAMES = {
    "addmm": ("linear",),
    "mm": ("linear", "matmul"),
    "bmm": ("matmul",),
    "convolution": ("conv1d", "conv2d", "conv3d"),
    "native_layer_norm": ("layer_norm",),
    "native_group_norm": ("group_norm",),
    "native_batch_norm": ("batch_norm",),
    "_softmax": ("softmax",),
    "_log_softmax": ("log_softmax",),
    "mkldnn_rnn_layer": ("lstm",),
    "_scaled_dot_product_flash_attention_for_cpu": ("scaled_dot_product_attention",),
}
"""What torch's API calls the operators whose aten names differ."""


@functools.cache
def names_of(function: Any) -> tuple[str, ...]:
    """Names by which an overload can be asked for, the plainest first.

    >>> names_of(torch.ops.aten.add_.Tensor)
    ('add', 'add_', 'aten.add', 'aten.add_', 'aten.add_.Tensor', 'aten.add.Tensor')
    """
    namespace, _, name = function._schema.name.partition("::")
    plain = name.rstrip("_") or name
    full = str(function)
    overload = full.rpartition(".")[2]
    names = [plain, name, f"{namespace}.{plain}", f"{namespace}.{name}", full]
    names += _PUBLIC_NAMES.get(plain, ())
    return tuple(dict.fromkeys([*names, f"{namespace}.{plain}.{overload}"]))
