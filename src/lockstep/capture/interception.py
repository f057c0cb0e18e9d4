"""The places in torch that Lockstep taps while it records, and how each is put back.

`Taps.install` and `Taps.remove` are exact opposites. Around a compiled region all taps are removed, so that what is
compiled and run there is what runs without Lockstep.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from torch.overrides import (
    TorchFunctionMode,
    _len_torch_function_stack,
    _pop_mode,
    _push_mode,
    resolve_name,
)
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode

_TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})
_NEVER_TENSORS = frozenset(
    "__set__ __delete__ __len__ __bool__ __int__ __float__ __index__ __repr__ __format__ __hash__ __contains__ "
    "backward grad _set_grad_enabled register_hook register_post_accumulate_grad_hook retain_grad requires_grad_ "
    "item tolist numpy size dim ndimension numel nelement stride storage_offset element_size get_device data_ptr "
    "is_contiguous is_floating_point is_complex is_signed is_nonzero is_same_size is_shared is_pinned untyped_storage "
    "type_as_string allclose equal is_tensor storage typed_storage is_inference result_type".split()
)
_original_module_call = torch.nn.Module.__call__
_original_function_apply = torch.autograd.Function.__dict__["apply"]
_original_run_backward = torch.autograd._engine_run_backward


class Listener(Protocol):
    """What the taps report to."""

    def module_call(
        self, call: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A module is called; must call `call(module, *args, **kwargs)` once and return its result."""

    def operator_call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool]:
        """A torch function is called; returns its result and whether it deals in tensors at all."""

    def custom_function_call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A custom autograd function, or a compiled plain function, is called."""

    def aten_call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An aten operator is called (level aten)."""

    def backward_call(self, losses: list[torch.Tensor], run: Callable[[], Any]) -> Any:
        """The autograd engine starts from `losses`; must call `run` once and return its result."""


class Taps:
    """Everything that is patched while a step is recorded.

    Parameters
    ----------
    listener
        Gets the calls.
    level
        "module", "api" or "aten".
    """

    def __init__(self, listener: Listener, level: str) -> None:
        self.listener = listener
        self.installed = False
        self._functions = FunctionTap(self) if level != "module" else None
        self._aten = AtenTap(self) if level == "aten" else None
        self._aten_entered = False

    def install(self) -> None:
        """Put every tap in place."""
        if self.installed:
            return
        self.installed = True
        taps = self

        def module_call(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            if not taps.installed:
                return _original_module_call(module, *args, **kwargs)
            return taps.listener.module_call(_original_module_call, module, args, kwargs)

        def function_apply(kind: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            apply = functools.partial(_original_function_apply.__func__, kind)
            if not taps.installed:
                return apply(*args, **kwargs)
            name = f"{kind.__module__}.{kind.__qualname__}"
            return taps.listener.custom_function_call(name, apply, args, kwargs)

        torch.nn.Module.__call__ = module_call  # type: ignore[method-assign,assignment]
        torch.autograd.Function.apply = classmethod(function_apply)  # type: ignore[assignment]
        torch.autograd._engine_run_backward = self._run_backward
        if self._functions is not None:
            _insert_at_bottom(self._functions)
        if self._aten is not None and not self._aten_entered:
            self._aten.__enter__()
            self._aten_entered = True

    def remove(self) -> None:
        """Put everything back as it was."""
        if not self.installed:
            return
        self.installed = False
        torch.nn.Module.__call__ = _original_module_call  # type: ignore[method-assign]
        torch.autograd.Function.apply = _original_function_apply
        torch.autograd._engine_run_backward = _original_run_backward
        if self._functions is not None:
            _take_out(self._functions)
        if self._aten is not None and self._aten_entered and _top_dispatch_mode() is self._aten:
            self._aten.__exit__(None, None, None)
            self._aten_entered = False

    def call_untapped(self, run: Callable[[], Any]) -> Any:
        """Run something, a compiled region say, as if Lockstep were not there."""
        self.remove()
        try:
            return run()
        finally:
            self.install()

    def _run_backward(self, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        """The autograd engine starts, for `backward` (which accumulates into `.grad`) or for `autograd.grad`."""
        # From Tensor.backward the function mode arrives switched off; recomputation inside backward needs it.
        mode = self._functions
        again = mode is not None and self.installed and not _is_on_stack(mode)

        def run() -> Any:
            with mode if again and mode is not None else nullcontext():
                return _original_run_backward(tensors, *args, **kwargs)

        if not self.installed:
            return run()
        roots = [root for root in tensors if isinstance(root, torch.Tensor)]
        return self.listener.backward_call(roots if kwargs.get("accumulate_grad") else [], run)


class FunctionTap(TorchFunctionMode):
    """Sees every call of the torch Python API."""

    def __init__(self, taps: Taps) -> None:
        super().__init__()
        self._taps = taps
        self._names: dict[Any, str] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = operator_name(func)
        if not name:
            return func(*args, **kwargs)
        result, deals_in_tensors = self._taps.listener.operator_call(name, func, args, kwargs)
        if not deals_in_tensors:
            self._names[func] = ""
        return result


class AtenTap(TorchDispatchMode):
    """Sees every aten operator, in backward and in optimizers too."""

    def __init__(self, taps: Taps) -> None:
        super().__init__()
        self._taps = taps

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not self._taps.installed:
            return func(*args, **(kwargs or {}))
        return self._taps.listener.aten_call(str(func), func, args, kwargs or {})


def operator_name(function: Any) -> str:
    """Full public name of a torch function, "" for what never makes a tensor (attribute access, hooks, settings).

    >>> operator_name(torch.nn.functional.gelu)
    'torch.nn.functional.gelu'
    """
    plain = getattr(function, "__name__", "")
    if plain == "__get__":
        name = resolve_name(function) or ""
        return name.removesuffix(".__get__") if name.split(".")[-2] in _TENSOR_PROPERTIES else ""
    if plain in _NEVER_TENSORS:
        return ""
    name = resolve_name(function)
    if name:
        return name
    module = getattr(function, "__module__", None) or "torch"
    return f"{module}.{plain}" if plain else ""


def wrap_compile(compile_: Callable[..., Any], taps_now: Callable[[], Taps | None]) -> Callable[..., Any]:
    """`torch.compile` whose plain compiled functions run untapped; modules are caught when they are called."""

    @functools.wraps(compile_)
    def compile_with_taps(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = compile_(model, *args, **kwargs)
        if model is None or isinstance(compiled, torch.nn.Module) or not callable(compiled):
            return compiled

        @functools.wraps(compiled)
        def call(*inner_args: Any, **inner_kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return compiled(*inner_args, **inner_kwargs)
            taps = taps_now()
            if taps is None or not taps.installed:
                return compiled(*inner_args, **inner_kwargs)
            name = f"torch.compile({getattr(model, '__qualname__', type(model).__name__)})"
            return taps.listener.custom_function_call(
                name, lambda *a, **k: taps.call_untapped(lambda: compiled(*a, **k)), inner_args, inner_kwargs
            )

        return call

    return compile_with_taps


def _insert_at_bottom(mode: TorchFunctionMode) -> None:
    """Below the user's own modes, which leave in the order they came, and above a default-device context."""
    above = [_pop_mode() for _ in range(_len_torch_function_stack())]
    if above and isinstance(above[-1], DeviceContext):
        _push_mode(above.pop())
    _push_mode(mode)
    for other in reversed(above):
        _push_mode(other)


def _take_out(mode: TorchFunctionMode) -> None:
    above = [_pop_mode() for _ in range(_len_torch_function_stack())]
    for other in reversed(above):
        if other is not mode:
            _push_mode(other)


def _is_on_stack(mode: TorchFunctionMode) -> bool:
    count = _len_torch_function_stack()
    return any(torch._C._get_function_stack_at(position) is mode for position in range(count))


def _top_dispatch_mode() -> Any:
    count = torch._C._len_torch_dispatch_stack()
    return torch._C._get_dispatch_stack_at(count - 1) if count else None
