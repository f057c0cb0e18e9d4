"""What the taps tell of what they see: `Calls`, in `capture/handlers`, hears it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any, Protocol

import torch
from torch._C._functorch import is_legacy_batchedtensor

from lockstep.capture.patching.callers import Caller

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class EngineRun:
    """What a run of the autograd engine is asked for.

    roots: The tensors that it begins at.
    gradients: What it begins with at each; none for ones.
    inputs: Of `torch.autograd.grad`: the tensors whose gradients it gives.
    accumulates: Whether gradients go to `.grad`, as those of `backward` do.
    create_graph: Whether they have gradients of their own.
    """

    roots: list[torch.Tensor]
    gradients: list[torch.Tensor]
    inputs: list[torch.Tensor]
    accumulates: bool
    create_graph: bool

    @property
    def is_batched(self) -> bool:
        """Whether it runs once for several gradients (`is_grads_batched`), so that these are no plain tensors."""
        return any(map(is_legacy_batchedtensor, self.gradients))


class Listener(Protocol):
    """Hears of every call; what it is given to run, it runs once and returns the result of."""

    waited: Callable[[Any], None]
    """Is told that the script has waited for what a collective brings."""

    def module_call(
        self, call: Run, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A module is called."""

    def operator_call(
        self,
        name: str,
        function: Run,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: Caller,
        frame: FrameType,
    ) -> tuple[Any, bool]:
        """A function of torch is called; also returns whether it deals in tensors."""

    def aten_call(
        self,
        name: str,
        function: Run,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        caller: Caller,
    ) -> Any:
        """An operator of the dispatcher is called."""

    def custom_function_call(
        self, name: str, function: Run, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """An autograd function of a script is applied."""

    def hook_told(self, tensor: torch.Tensor, hook: Run) -> Run:
        """A hook is registered on a tensor; returns the one that is to be."""

    def module_hooks_set(self, around: Any, hooks: str, args: Any, run: Callable[[], Any]) -> Any:
        """Torch sets the hooks of a module, which `around` has by this name, on what it takes or gives."""

    def plumbing_call(self, function: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Torch works between ranks."""

    def recomputed_here(self, function: Run) -> Run:
        """Return a checkpointed function that knows its place in backward too."""

    def backward_call(self, asked: EngineRun, run: Callable[[], Any]) -> Any:
        """The autograd engine is to run."""

    def gradient_given(self, parameter: Any) -> None:
        """A script sets a gradient itself."""

    def read_by_python(self, tensor: Any) -> None:
        """Python takes the numbers of a tensor."""

    def taken_by_python(self, values: tuple[Any, ...]) -> None:
        """Python decides by the numbers of tensors."""

    def number_read(self, number: float, tensor: Any) -> None:
        """Python was given the number of a tensor."""
