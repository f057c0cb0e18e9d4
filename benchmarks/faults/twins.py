"""Sound twins: what may differ between two healthy runs, and must not be called a fault; and emulated devices."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from kernels import break_nothing
from torch.nn.attention import SDPBackend, sdpa_kernel
from training import Training


@dataclass(frozen=True)
class Twin:
    """A run that is as right as the reference.

    `uniform` says that a precision change of a whole class of operators has to be named; `bitwise` that the training
    must stay the same bit by bit, else the benchmark itself is broken.
    """

    name: str
    alter: Callable[[Training], None]
    uniform: bool = False
    bitwise: bool = False


def _nothing(training: Training) -> None:
    pass


def _threads(training: Training) -> None:
    torch.set_num_threads(2)


def _no_onednn(training: Training) -> None:
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def _deterministic(training: Training) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)


def _math_attention(training: Training) -> None:
    training.around_run.append(lambda: sdpa_kernel(SDPBackend.MATH))


def _bfloat16(training: Training) -> None:
    training.model.to(torch.bfloat16)
    for batch in training.batches:
        for name, tensor in batch.items():
            if tensor.is_floating_point():
                batch[name] = tensor.to(torch.bfloat16)


def _emulated(device: str) -> Callable[[Training], None]:
    def alter(training: Training) -> None:
        training.around_run.append(lambda: emulation(device))

    return alter


def emulation(device: str) -> AbstractContextManager[Any]:
    """The emulated device of this name."""
    from lockstep.devices.emulation.mode import emulate

    return emulate(device)


TWINS = {
    twin.name: twin
    for twin in (
        Twin("same-again", _nothing, bitwise=True),
        Twin("nothing-planted", break_nothing, bitwise=True),
        Twin("deterministic", _deterministic),
        Twin("two-threads", _threads),
        Twin("onednn-off", _no_onednn),
        Twin("attention-math", _math_attention),
        Twin("emulated-reorder", _emulated("reorder")),
        Twin("bfloat16", _bfloat16),
        Twin("emulated-npu-fp16", _emulated("npu-fp16"), uniform=True),
        Twin("emulated-npu-bf16", _emulated("npu-bf16"), uniform=True),
        Twin("emulated-tf32", _emulated("tf32"), uniform=True),
    )
}
