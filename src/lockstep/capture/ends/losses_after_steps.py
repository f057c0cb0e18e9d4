"""Keep the losses after the recorded steps, without waiting for a device.

One Python call a backward is all that is left of recording then. Losses on the host are read at once; those of other
devices are kept as they are and read many at a time.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch

from lockstep.capture.patching.callers import passed_over
from lockstep.capture.patching.patches import Patch
from lockstep.capture.silence import Silence
from lockstep.capture.tensors.shards import local_part
from lockstep.devices.methods import is_floating_point, item, numel
from lockstep.devices.tensor_numbers import dtype_name
from lockstep.store.encoding import Row

_AT_ONCE = 1024
"""Losses of other devices that are read together."""
MOST_LOSSES = 1 << 20
"""Losses that are kept, some 60 MB; what comes after them is not."""


class LaterLosses:
    """Keeps the losses of the thread that it was begun in.

    step_now: Number of the step that is under way.
    """

    def __init__(self, step_now: Callable[[], int]) -> None:
        self._step_now = step_now
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._read: list[tuple[int, float, torch.dtype]] = []
        self._waiting: list[tuple[int, torch.Tensor]] = []
        self._patch = Patch(torch.autograd, "_engine_run_backward", self._wrap)

    def listen(self) -> None:
        """Begin to listen."""
        self._patch.put()

    def stop(self) -> None:
        """Listen no more."""
        self._patch.take_back()

    def rows(self) -> list[Row]:
        """Rows of `schema.LOSSES`, in order of time."""
        self._read_waiting()
        rows = [(step, value, dtype_name(dtype)) for step, value, dtype in self._read]
        return sorted(rows, key=lambda row: row[0])

    def of_this_thread(self) -> None:
        """Keep the losses of the thread that calls this."""
        self._thread = threading.get_ident()

    def take(self, *, before: int | None) -> list[tuple[int, float, torch.dtype]]:
        """Step, value and dtype of those that are known by now, to be forgotten here.

        Of other devices than the host, those are read that are of steps before this one; None for all.
        """
        later = [one for one in self._waiting if before is not None and one[0] >= before]
        self._waiting = [one for one in self._waiting if before is None or one[0] < before]
        self._read_waiting()
        taken, self._read, self._waiting = self._read, [], later
        return sorted(taken, key=lambda one: one[0])

    def _wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def run_backward(tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("accumulate_grad"):
                self._keep(tensors)
            return original(tensors, *args, **kwargs)

        changed: Any = run_backward
        changed.__code__ = passed_over(changed.__code__)
        _never_compiled(run_backward, all_within=False)
        _never_compiled(LaterLosses._keep, all_within=True)
        return run_backward

    def _keep(self, roots: Sequence[Any]) -> None:
        if threading.get_ident() != self._thread or os.getpid() != self._process:
            return
        if len(roots) == 1 and _is_read_without_trace(roots[0]):
            if len(self._read) < MOST_LOSSES:
                self._read.append((self._step_now(), item(roots[0]), roots[0].dtype))
            return
        with Silence(_ignored):
            for root in roots:
                if isinstance(root, torch.Tensor) and numel(root) == 1:
                    self._add(root)

    def _add(self, loss: torch.Tensor) -> None:
        if len(self._read) + len(self._waiting) >= MOST_LOSSES:
            return
        step = self._step_now()
        if type(loss) is not torch.Tensor:
            part = local_part(loss)
            if part is None:
                return
            loss = part
        if loss.device.type == "cpu":
            self._read.append((step, item(loss), loss.dtype))
            return
        self._waiting.append((step, loss.detach().clone()))
        if len(self._waiting) >= _AT_ONCE:
            self._read_waiting()

    def _read_waiting(self) -> None:
        """Bring the waiting ones to the host, those of one device and dtype together."""
        waiting, self._waiting = self._waiting, []
        kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for place, (_, loss) in enumerate(waiting):
            kinds.setdefault((loss.device, loss.dtype), []).append(place)
        values: dict[int, float] = {}
        with Silence(_ignored):
            for places in kinds.values():
                read = torch.stack([waiting[place][1].reshape(()) for place in places]).tolist()
                values.update(zip(places, read, strict=True))
        self._read += [
            (step, values[place], loss.dtype)
            for place, (step, loss) in enumerate(waiting)
            if place in values
        ]


def _is_read_without_trace(loss: Any) -> bool:
    """Whether a number can be read as it is: on the host, and with nobody else who sees what torch does."""
    return (
        type(loss) is torch.Tensor
        and loss.is_cpu
        and is_floating_point(loss)
        and numel(loss) == 1
        and not torch._C._len_torch_function_stack()
        and not torch._C._len_torch_dispatch_stack()
        and torch._C._functorch.peek_interpreter_stack() is None
    )


def _ignored(_: Exception) -> None:
    """A loss that cannot be read is not kept."""


def _never_compiled(function: Callable[..., Any], *, all_within: bool) -> None:
    """Keep Dynamo from looking at a function and, if asked, at all that it calls; also where it is loaded later."""
    compiler = torch._C._dynamo.eval_frame
    skip, default = compiler._FrameAction.SKIP, compiler._FrameAction.DEFAULT
    strategy = compiler._FrameExecStrategy(skip, skip if all_within else default)
    compiler.set_code_exec_strategy(function.__code__, strategy)
