"""The context in which Lockstep does its own tensor work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar, cast

import torch
from torch.utils._python_dispatch import _disable_current_modes

# Looked up once: every recorded call enters it several times.
_is_grad_enabled = torch.is_grad_enabled
_DisableTorchFunction = torch._C.DisableTorchFunction
_set_grad_enabled = torch._C._set_grad_enabled
_is_any_autocast_enabled = torch._C._is_any_autocast_enabled
_len_torch_dispatch_stack = torch._C._len_torch_dispatch_stack


class Silence:
    """Context in which tensor work leaves no trace: no autograd history, no mode, no autocast.

    Parameters
    ----------
    on_error
        Takes an error of the work inside, which then does not reach the training; without it the
        error is raised.
    """

    __slots__ = ("_autocast", "_dispatch", "_function", "_grad", "_on_error")

    def __init__(self, on_error: Callable[[Exception], None] | None = None) -> None:
        self._on_error = on_error

    def __enter__(self) -> None:
        self._grad = _is_grad_enabled()
        self._function = _DisableTorchFunction()
        self._function.__enter__()
        if self._grad:
            _set_grad_enabled(False)
        self._autocast = None
        if _is_any_autocast_enabled():
            self._autocast = torch._C._DisableAutocast()
            self._autocast.__enter__()
        self._dispatch = None
        if _len_torch_dispatch_stack():
            self._dispatch = _disable_current_modes()
            self._dispatch.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        if self._dispatch is not None:
            self._dispatch.__exit__(None, None, None)
        if self._autocast is not None:
            self._autocast.__exit__(None, None, None)
        _set_grad_enabled(self._grad)
        self._function.__exit__(None, None, None)
        if self._on_error is None or not isinstance(value, Exception):
            return False
        self._on_error(value)
        return True


Method = TypeVar("Method", bound=Callable[..., Any])


def silently(work: Method) -> Method:
    """Have a method run as in `Silence(self.fail)`, for what every call does: it returns None where it fails.

    The same in fewer calls of Python, where neither autocast nor a dispatch mode is on.
    """

    @functools.wraps(work)
    def run(self: Any, *given: Any) -> Any:
        if _is_any_autocast_enabled() or _len_torch_dispatch_stack():
            with Silence(self.fail):
                return work(self, *given)
            return None
        grad = _is_grad_enabled()
        with _DisableTorchFunction():
            _set_grad_enabled(False)
            try:
                return work(self, *given)
            except Exception as error:
                self.fail(error)
            finally:
                _set_grad_enabled(grad)
        return None

    return cast(Method, run)
