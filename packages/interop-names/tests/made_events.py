"""Dumps of TensorFlow 2's debugger after its published messages, put together by hand: bytes, lengths, checksums."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from made_device_dumps import message, number, varint

Array = np.ndarray
DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "bool": 10, "float16": 19}
FULL_TENSOR = 7


def crc32c(data: bytes) -> int:
    """The CRC-32 of RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 * (crc & 1))
    return crc ^ 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """One record of a file."""

    def masked(part: bytes) -> bytes:
        crc = crc32c(part)
        return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def tensor(value: Array, *, typed: bool = False) -> bytes:
    """A TensorProto: its content as bytes, or in the field of its dtype."""
    shape = b"".join(message(2, number(1, one)) for one in value.shape)
    content = message(4, value.tobytes())
    if typed and value.dtype == np.float32:
        content = message(5, value.tobytes())
    elif typed:
        content = message(7, b"".join(varint(int(one) & (1 << 64) - 1) for one in value.ravel()))
    return number(1, DTYPES[str(value.dtype)]) + message(2, shape) + content


@dataclass
class Directory:
    """A dump that is made event by event."""

    folder: Path
    host: str = "tfdbg_events.0000000000.machine"
    events: dict[str, bytes] = field(default_factory=dict)
    now: float = 1_700_000_000.0

    def add(self, kind: str, what: int, body: bytes) -> None:
        """An event of a file."""
        self.now += 1e-4
        data = varint(1 << 3 | 1) + struct.pack("<d", self.now) + message(what, body)
        self.events[kind] = self.events.get(kind, b"") + record(data)

    def create(self, graph: str, name: str, op: str, inputs: Sequence[str] = ()) -> None:
        """An operator of a graph."""
        names = b"".join(message(6, one.encode()) for one in inputs)
        self.add(
            "graphs",
            7,
            message(1, op.encode())
            + message(2, name.encode())
            + message(4, graph.encode())
            + names,
        )

    def run(
        self,
        op: str,
        inputs: Sequence[int],
        outputs: Sequence[tuple[int, Array]],
        *,
        graph: str = "",
        mode: int = FULL_TENSOR,
        typed: bool = False,
    ) -> None:
        """An operator that runs by itself, or a function."""
        body = message(1, op.encode()) + (message(3, graph.encode()) if graph else b"")
        body += message(4, b"".join(map(varint, inputs))) + message(
            5, b"".join(varint(one) for one, _ in outputs)
        )
        body += number(6, mode) + b"".join(
            message(7, tensor(value, typed=typed)) for _, value in outputs
        )
        self.add("execution", 9, body)

    def trace(self, graph: str, name: str, value: Array, slot: int = 0) -> None:
        """What an operator of a graph returned."""
        body = (
            message(1, graph.encode())
            + message(2, name.encode())
            + (number(3, slot) if slot else b"")
        )
        self.add(
            "graph_execution_traces", 10, body + number(4, FULL_TENSOR) + message(5, tensor(value))
        )

    def write(self) -> Path:
        """The files."""
        self.folder.mkdir(parents=True, exist_ok=True)
        metadata = message(3, message(1, b"2.15.0") + message(2, b"debug.Event:1"))
        for kind, data in {"metadata": record(metadata), **self.events}.items():
            (self.folder / f"{self.host}.{kind}").write_bytes(data)
        return self.folder
