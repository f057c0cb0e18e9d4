"""Where faults go: the operator calls of a training, found by running it once, and altered at one of them.

A fault is planted at one operator call of one module instance, either in the code (the call is replaced, as if somebody
had written something else there) or in the kernel (the call stays, its result is wrong, as on a broken device). Both go
through PyTorch's own override modes; nothing of Lockstep is touched, and no recording can tell where a fault came from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from training import Training

Run = Callable[..., Any]
"""The function that a call was of."""


@dataclass(frozen=True)
class Place:
    """One operator call: module path, operator, number among the calls of this operator in this module in one step."""

    module: str
    op: str
    call: int


@dataclass
class OperatorCall:
    """One call of the torch API as the survey saw it; `kernels` are the aten calls inside."""

    place: Place
    module: nn.Module | None
    function: Run
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any
    kernels: list[Kernel]

    def tensor(self, position: int, name: str = "") -> Tensor | None:
        """An argument by position or name where it is a tensor, else None."""
        value = self.args[position] if position < len(self.args) else self.kwargs.get(name)
        return value if isinstance(value, Tensor) else None

    @property
    def output(self) -> Tensor | None:
        """The result, or its first element where it is a tuple of tensors."""
        value = self.result[0] if isinstance(self.result, tuple) and self.result else self.result
        return value if isinstance(value, Tensor) else None

    @property
    def differentiable(self) -> bool:
        """Whether the result is floating point and takes a gradient."""
        output = self.output
        return output is not None and output.is_floating_point() and output.requires_grad


@dataclass(frozen=True)
class Kernel:
    """One aten call: its name, number of elements of its first result, whether it computes (no view, no copy)."""

    name: str
    numel: int
    computes: bool


class ModulePaths:
    """Tells which module's own code runs: patches `torch.nn.Module.__call__` while it is entered."""

    def __init__(self, model: nn.Module) -> None:
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[tuple[str, nn.Module]] = []

    @property
    def current(self) -> str:
        """Path of the innermost running module, "" outside."""
        return self._stack[-1][0] if self._stack else ""

    @property
    def current_module(self) -> nn.Module | None:
        """The innermost running module."""
        return self._stack[-1][1] if self._stack else None

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Keep track."""
        original = nn.Module.__call__

        def call(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # A loss module made on the spot is outside of the tree; recordings call it by its class.
            self._stack.append((self._paths.get(id(module), type(module).__name__), module))
            try:
                return original(module, *args, **kwargs)
            finally:
                self._stack.pop()

        nn.Module.__call__ = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            nn.Module.__call__ = original  # type: ignore[method-assign]


OnCall = Callable[[Place, Run, tuple[Any, ...], dict[str, Any]], Any]


class OperatorMode(TorchFunctionMode):
    """Hands every call of the torch API, with its place, to `on_call`, which runs it."""

    def __init__(self, paths: ModulePaths, on_call: OnCall) -> None:
        super().__init__()
        self._paths, self._on_call = paths, on_call
        self._calls: Counter[tuple[str, str]] = Counter()

    def next_step(self) -> None:
        """A step begins: calls are counted anew."""
        self._calls.clear()

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not torch.is_grad_enabled():
            return func(*args, **kwargs)
        key = (self._paths.current, resolve_name(func) or "")
        place = Place(*key, self._calls[key])
        result = self._on_call(place, func, args, kwargs)
        if not _is_empty(result):
            self._calls[key] += 1
        return result


def _is_empty(result: Any) -> bool:
    """Whether no tensor came out: such calls have no number."""
    if isinstance(result, (tuple, list)):
        return not any(isinstance(item, Tensor) for item in result)
    return not isinstance(result, Tensor)


class KernelLog(TorchDispatchMode):
    """Lists the aten calls made while it is entered."""

    def __init__(self) -> None:
        super().__init__()
        self.kernels: list[Kernel] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        tensors = tensors_of(result)
        numel = tensors[0].numel() if tensors else 0
        self.kernels.append(Kernel(func.overloadpacket.__name__, numel, computes(func)))
        return result


_COPIES = frozenset({
    "clone", "_to_copy", "copy_", "detach", "empty", "empty_like", "zeros", "zeros_like", "ones_like",
    "new_empty", "new_zeros", "new_ones", "full", "full_like", "arange", "fill_", "add", "add_", "sum",
    "bernoulli_", "_unsafe_view", "resize_", "transpose_", "squeeze_", "unsqueeze_", "set_",
})  # fmt: skip
"""Kernels that move, fill or accumulate: a fault in one of them is not a fault of the operator around."""


def computes(func: Any) -> bool:
    """Whether an aten operator makes new numbers."""
    name = func.overloadpacket.__name__
    returns = func._schema.returns
    is_view = any(item.alias_info is not None and not item.alias_info.is_write for item in returns)
    return not is_view and name not in _COPIES


def tensors_of(value: Any) -> list[Tensor]:
    """The floating-point tensors of an aten result."""
    items = value if isinstance(value, (tuple, list)) else [value]
    return [item for item in items if isinstance(item, Tensor) and item.is_floating_point()]


def survey(training: Training, visit: Callable[[OperatorCall], None]) -> None:
    """Run the first step and show every operator call of its forward pass to `visit`."""
    paths = ModulePaths(training.model)

    def on_call(place: Place, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with KernelLog() as log:
            result = run(*args, **kwargs)
        visit(OperatorCall(place, paths.current_module, run, args, kwargs, result, log.kernels))
        return result

    training.batches = training.batches[:1]
    training.around_run += [paths.watching, lambda: OperatorMode(paths, on_call)]
    training.run()


def replace_call(
    training: Training, place: Place | None, replacement: OnCall, *, from_step: int = 0
) -> None:
    """Plant a fault: at this place (or all), from this step on, `replacement` runs instead of the call."""
    paths = ModulePaths(training.model)
    step = 0

    def on_call(at: Place, run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if place in (None, at) and step >= from_step:
            return replacement(at, run, args, kwargs)
        return run(*args, **kwargs)

    mode = OperatorMode(paths, on_call)

    def begin(number: int) -> None:
        nonlocal step
        step = number
        mode.next_step()

    training.before_step.append(begin)
    training.around_run += [paths.watching, lambda: mode]
