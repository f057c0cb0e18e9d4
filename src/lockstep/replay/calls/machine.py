"""Choose the device and the dtype in which a recorded call runs again."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from lockstep.core.errors import UsageError
from lockstep.replay.calls.rebuild import CPU


@dataclass(frozen=True, slots=True)
class Machine:
    """A device, and the numbers that it computes in.

    device: One of torch's.
    dtype: Stands for every floating-point dtype of a call; None leaves them.
    emulation: Profile of an emulated device, "" for none; see `lockstep.devices.emulation`.
    """

    device: torch.device = CPU
    dtype: torch.dtype | None = None
    emulation: str = ""

    def __str__(self) -> str:
        """As it is named in a table: `cuda:0`, `cpu as bfloat16`."""
        name = self.emulation or str(self.device)
        return name if self.dtype is None else f"{name} as {str(self.dtype).removeprefix('torch.')}"

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor there; floating-point ones in the machine's dtype."""
        return tensor.to(self.device, self.dtype_of(tensor.dtype))

    def dtype_of(self, dtype: torch.dtype) -> torch.dtype:
        """Return the dtype that stands for a recorded one."""
        return self.dtype if self.dtype is not None and dtype.is_floating_point else dtype

    def at_work(self) -> AbstractContextManager[Any]:
        """Compute as the emulated device does, if this is one."""
        return _emulated(self.emulation) if self.emulation else nullcontext()


HERE = Machine()
"""The CPU, in the dtypes that were recorded."""


def machine_of(device: str, dtype: str, emulation: str) -> Machine:
    """The machine that a user names.

    Parameters
    ----------
    device, dtype, emulation
        As in `cuda:1`, `bfloat16`, `npu-bf16`; "" for the recorded device, and for no emulation.

    Raises
    ------
    UsageError
        If torch has no such device or dtype here, or there is no such emulated device.
    """
    if emulation:
        with _emulated(emulation):  # raises if there is none
            pass
    return Machine(_device(device or "cpu"), _dtype(dtype), emulation)


def _emulated(profile: str) -> AbstractContextManager[Any]:
    from lockstep.devices.emulation.mode import emulate  # takes a tenth as long to load as torch

    return emulate(profile)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device).add_(1).cpu()
    except (
        RuntimeError,
        AssertionError,
        NotImplementedError,
        AttributeError,
        ImportError,
    ) as error:
        there = ", ".join(["cpu", *_accelerators()])
        reason = str(error).partition("\n")[0]
        raise UsageError(
            f"--device {name}: not to be had here ({reason}); there is {there}"
        ) from error
    return device


def _accelerators() -> list[str]:
    if not torch.accelerator.is_available():
        return []
    current = torch.accelerator.current_accelerator()
    kind = "" if current is None else current.type
    return [f"{kind}:{number}" for number in range(torch.accelerator.device_count())]


def _dtype(name: str) -> torch.dtype | None:
    if not name:
        return None
    found = vars(torch).get(name.removeprefix("torch."))
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise UsageError(
            f"--dtype {name}: torch has no such floating-point dtype; give one as float32 or bfloat16"
        )
    return found
