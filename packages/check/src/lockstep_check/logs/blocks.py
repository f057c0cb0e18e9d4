"""Logs in blocks of whole lines: bounded memory, however large the log and however long its lines."""

from __future__ import annotations

import bz2
import codecs
import gzip
import lzma
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedIOBase
from pathlib import Path
from typing import BinaryIO, Protocol

BLOCK_BYTES = 4 << 20
"""Read at a time: large enough that what is done once a block does not count."""
LONGEST_LINE_BYTES = 1 << 20
"""What is longer is looked at in parts."""
CONTEXT_BYTES = 4096
"""What is seen in front of a line; and, of a longer line, on either side of a text that is searched for."""

_COLOUR = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")
_UNPACKERS: dict[bytes, Callable[[BinaryIO], BufferedIOBase]] = {
    b"\x1f\x8b": lambda file: gzip.GzipFile(fileobj=file, mode="rb"),
    b"BZh": partial(bz2.open, mode="rb"),
    b"\xfd7zXZ\x00": partial(lzma.open, mode="rb"),
}
"""By a file's first bytes (RFC 1952; the formats of bzip2 and xz)."""
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_SAMPLE_BYTES = 1 << 16
_TEXT = bytes(range(32, 256)) + b"\t\n\r\x0b\x0c\x08\x1b\x07\x00"
"""Bytes of texts in any encoding; zeros are there where a log was cut while it was written."""
_MOST_ZEROS, _MOST_OTHERS = 0.3, 0.05


class Source(Protocol):
    """Where bytes come from."""

    def read(self, size: int, /) -> bytes:
        """At most so many bytes; none at the end."""
        ...


@dataclass(frozen=True, slots=True)
class Block:
    """A part of a log.

    data: Whole lines, without colours; of a line that is too long, a part of it.
    fresh, end: Texts that begin between these places are this block's: what stands before is there as context.
    line: The number of the line that `data` begins in, from 1; lines end in a newline.
    """

    data: bytes
    fresh: int
    end: int
    line: int


class NotALogError(Exception):
    """The file is no text."""


def blocks(source: Source) -> Iterator[Block]:
    """Cut what is read into blocks. Raises NotALogError if it begins as no text does."""
    rest, fresh, line = b"", 0, 1
    for piece in _pieces(source):
        data = rest + piece
        if b"\x1b" in data:
            data = _COLOUR.sub(b"", data)
        end = max(data.rfind(b"\n"), data.rfind(b"\r", fresh)) + 1
        if end <= fresh:
            if len(data) < LONGEST_LINE_BYTES:
                rest = data
                continue
            end = len(data) - CONTEXT_BYTES
        yield Block(data, fresh, end, line)
        keep = max(end - CONTEXT_BYTES, 0)
        line += data.count(b"\n", 0, keep)
        rest, fresh = data[keep:], end - keep
    if rest:
        yield Block(rest, fresh, len(rest), line)


def _pieces(source: Source) -> Iterator[bytes]:
    first = source.read(BLOCK_BYTES)
    decoder = None
    if first.startswith(_UTF16):
        decoder = codecs.getincrementaldecoder("utf-16")("replace")
    elif not _is_text(first[:_SAMPLE_BYTES]):
        raise NotALogError
    piece = first
    while piece:
        yield piece if decoder is None else decoder.decode(piece).encode("utf-8", "replace")
        piece = source.read(BLOCK_BYTES)


def _is_text(sample: bytes) -> bool:
    others = len(sample.translate(None, _TEXT))
    return others <= _MOST_OTHERS * len(sample) and sample.count(0) <= _MOST_ZEROS * len(sample)


@contextmanager
def opened(path: Path) -> Iterator[Source]:
    """A log, unpacked where it is packed by gzip, bzip2 or xz."""
    with path.open("rb") as file:
        head = file.peek(8)[:8]
        unpackers = [unpack for magic, unpack in _UNPACKERS.items() if head.startswith(magic)]
        if not unpackers:
            yield file
            return
        with unpackers[0](file) as unpacked:
            yield unpacked
