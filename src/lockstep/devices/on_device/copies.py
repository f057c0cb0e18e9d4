"""Results on their way from a device to the host: copied asynchronously, on the stream that computes them.

What is copied to pinned memory needs no synchronisation: an event tells when it is there. Only `Copies.arrays` waits,
and for that event alone, not for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from lockstep.devices.methods import copy_, cpu

_PINS = frozenset({"cuda", "xpu"})
"""Devices whose torch has pinned memory and events; from others a copy is made at once."""


class Copies:
    """Some small tensors, all of one device, as they will be on the host.

    tensors: Their memory may be reused once this returns: copies run in the order of the stream.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        device = tensors[0].device
        self._event: Any = None
        if device.type not in _PINS:
            self._here = [cpu(tensor) for tensor in tensors]
            return
        self._here = [
            torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors
        ]
        for here, there in zip(self._here, tensors, strict=True):
            copy_(here, there, non_blocking=True)
        self._event = torch.Event(device=device)
        self._event.record()

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the copies once they are there."""
        if self._event is not None:
            self._event.synchronize()
            self._event = None
        return [np.asarray(tensor) for tensor in self._here]
