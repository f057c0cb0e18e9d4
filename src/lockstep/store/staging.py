"""Memory for tensors that wait to be written: a few large buffers, used again and again, and never more than a cap.

To copy into memory that was used before is five times as fast as into fresh memory, whose pages the system first has to
find and to clear.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Buffer = npt.NDArray[np.uint8]


class Buffers:
    """Hands out buffers below a cap; a caller that asks for more waits until some come back.

    cap_bytes: Size of all buffers together. One that is larger than that by itself is handed out alone.
    size_bytes: Size of an ordinary buffer; these are kept when they come back.
    """

    def __init__(self, cap_bytes: int, size_bytes: int) -> None:
        self.size_bytes = min(size_bytes, cap_bytes)
        self._cap_bytes = cap_bytes
        self._allocated_bytes = 0
        self._in_use_bytes = 0
        self._free: list[Buffer] = []
        self._came_back = threading.Condition()

    def take(self, size_bytes: int, before_waiting: Callable[[], None]) -> Buffer:
        """Return a buffer of at least this many bytes, uint8; calls `before_waiting` if it has to wait."""
        size_bytes = max(size_bytes, self.size_bytes)
        with self._came_back:
            buffer = self._at_once(size_bytes)
        if buffer is None:
            before_waiting()
            with self._came_back:
                while (buffer := self._at_once(size_bytes)) is None:
                    self._came_back.wait()
        return buffer

    def give_back(self, buffer: Buffer) -> None:
        """Take a buffer that is not needed any more."""
        with self._came_back:
            self._in_use_bytes -= buffer.nbytes
            if buffer.nbytes == self.size_bytes:
                self._free.append(buffer)
            else:
                self._allocated_bytes -= buffer.nbytes
            self._came_back.notify_all()

    def _at_once(self, size_bytes: int) -> Buffer | None:
        """A buffer without waiting, or None."""
        ordinary = size_bytes == self.size_bytes
        if ordinary and self._free:
            self._in_use_bytes += size_bytes
            return self._free.pop()
        while self._free and self._allocated_bytes + size_bytes > self._cap_bytes:
            self._allocated_bytes -= self._free.pop().nbytes
        if self._in_use_bytes and self._allocated_bytes + size_bytes > self._cap_bytes:
            return None
        self._allocated_bytes += size_bytes
        self._in_use_bytes += size_bytes
        return np.empty(size_bytes, np.uint8)
