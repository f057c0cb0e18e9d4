"""Whether a value lies in memory that other processes may write to."""

from __future__ import annotations

import bisect
import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import torch

_CData: Any = ctypes.c_int.__mro__[-2]
"""What all of ctypes' kinds are."""


class SharedMappings:
    """The mappings of this process, as they are now, that others share and that can be written to.

    The kernel lists them in `/proc/self/maps` (proc(5)): `w` and `s` in the permissions. A file that is mapped for
    reading is none: it is told by its size and times.
    """

    def __init__(self) -> None:
        self._starts, self._ends = list[int](), list[int]()
        for line in Path("/proc/self/maps").read_text(errors="replace").splitlines():
            span, permissions = line.split(maxsplit=2)[:2]
            if "w" in permissions and "s" in permissions:
                start, _, end = span.partition("-")
                self._starts.append(int(start, 16))
                self._ends.append(int(end, 16))

    def hold(self, address: int) -> bool:
        """Whether an address lies in one of them."""
        place = bisect.bisect_right(self._starts, address) - 1
        return place >= 0 and address < self._ends[place]


def address_of(value: Any) -> int:
    """Return where an array, a tensor, a view or a value of ctypes begins; 0 for anything else."""
    if isinstance(value, torch.Tensor):
        is_plain = value.layout is torch.strided and value.device.type == "cpu"
        return value.data_ptr() if is_plain else 0
    if isinstance(value, np.ndarray):
        return int(value.__array_interface__["data"][0])
    if isinstance(value, memoryview):
        return (
            address_of(np.frombuffer(value, np.uint8)) if value.contiguous and value.nbytes else 0
        )
    return ctypes.addressof(value) if isinstance(value, _CData) else 0
