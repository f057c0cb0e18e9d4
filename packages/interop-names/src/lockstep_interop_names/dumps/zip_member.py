"""A member of a zip that was not compressed, mapped rather than read: its checksum is looked at once."""

from __future__ import annotations

import copy
import mmap
import os
import struct
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from lockstep.recordings import Bytes

_HEAD = struct.Struct("<4s22xHH")
"""What stands before a member of a zip: its mark, and how long its name and what else is said of it are
(APPNOTE.TXT, 4.3.7)."""
_SOUND: set[tuple[str, int, int, int]] = set()
"""Members whose checksum was looked at, by path, time, place and checksum: once, as for a recording's own files."""


def member_bytes(path: Path, info: zipfile.ZipInfo) -> Bytes:
    """The bytes of a member that is stored as it is, where they lie in the file.

    A checksum of 0 is none: `torch.save` writes it under `set_crc32_options(False)`.

    Raises ValueError if they are not what was written.
    """
    with path.open("rb") as file:
        file.seek(info.header_offset)
        mark, name, more = _HEAD.unpack(file.read(_HEAD.size))
        if mark != b"PK\x03\x04" or info.flag_bits & 1:
            raise ValueError(f"{info.filename} begins no member, or is locked")
        start, when = (
            info.header_offset + _HEAD.size + name + more,
            os.fstat(file.fileno()).st_mtime_ns,
        )
        if not info.file_size:
            return np.empty(0, np.uint8)
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    data = np.frombuffer(held, np.uint8, info.file_size, start)
    known = (str(path), when, start, info.CRC)
    if known not in _SOUND:
        if info.CRC and zlib.crc32(data.data) != info.CRC:
            raise ValueError(f"{info.filename} is not what was written")
        _SOUND.add(known)
    return data


def opened_member(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> IO[bytes]:
    """A member to read, compressed or not, held against its checksum where it has one."""
    if not info.CRC:
        info = copy.copy(info)
        del info.CRC  # without which `zipfile` reads as it is
    return archive.open(info)


__all__ = ["member_bytes", "opened_member"]
