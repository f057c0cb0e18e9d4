"""Read files of TensorFlow's debugger: records of `DebugEvent`, each after its length (TFRecord).

The checksum of a length is looked at; that of a record is not.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.files import size_of
from lockstep_interop_names.dumps.wire import Fields, fields_of

_HEAD, _FOOT = 12, 4


@dataclass(frozen=True, slots=True)
class Event:
    """One event, and where it lies."""

    file: Path
    start: int
    size_bytes: int
    fields: Fields

    @property
    def seconds(self) -> float:
        """When it was, since 1970."""
        told = [one for one in self.fields.get(1, []) if isinstance(one, int)]
        return float(struct.unpack("<d", told[-1].to_bytes(8, "little"))[0]) if told else 0.0


def events_in(file: Path, cut: list[str]) -> Iterator[Event]:
    """The events of a file, one at a time; where it ends within one, a word on that is added to `cut`.

    Raises ValueError if it is no such file, or a record is no event.
    """
    size, at = size_of(file), 0
    with file.open("rb") as opened:
        while at < size:
            head = opened.read(_HEAD)
            length = int.from_bytes(head[:8], "little")
            if len(head) == _HEAD and _masked(head[:8]) != int.from_bytes(head[8:], "little"):
                raise ValueError(f"byte {at} begins no record")
            if len(head) < _HEAD or at + _HEAD + length + _FOOT > size:
                cut.append(f"{file.name} ends within a record")
                return
            data = opened.read(length)
            opened.read(_FOOT)
            yield Event(file, at + _HEAD, length, fields_of(memoryview(data)))
            at += _HEAD + length + _FOOT


def fields_at(file: Path, start: int, size_bytes: int) -> Fields:
    """The fields of an event, by where it lies."""
    with file.open("rb") as opened:
        opened.seek(start)
        return fields_of(memoryview(opened.read(size_bytes)))


def _masked(data: bytes) -> int:
    """The CRC-32C of some bytes, turned and shifted as TFRecord keeps it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _row(value: int) -> int:
    for _ in range(8):
        value = value >> 1 ^ (
            0x82F63B78 if value & 1 else 0
        )  # Castagnoli's polynomial, turned round (RFC 3720)
    return value


_TABLE = tuple(map(_row, range(256)))

__all__ = ["Event", "events_in", "fields_at"]
