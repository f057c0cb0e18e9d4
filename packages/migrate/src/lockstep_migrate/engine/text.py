"""The text of a source file, with a way back to its very bytes."""

from __future__ import annotations

import bisect
import codecs
import io
import re
import tokenize
from dataclasses import dataclass, field

_LINE_END = re.compile("\r\n|\r|\n")


class UndecodableError(ValueError):
    """The bytes are no text in the encoding that the file declares, or would not come back the same."""


@dataclass(frozen=True, slots=True)
class SourceText:
    """Text decoded from bytes so that encoding it again gives the same bytes.

    data: The file's bytes.
    text: The same, decoded: line ends as they are, without a byte order mark.
    encoding: Python's name of the codec.
    bom: The byte order mark, or nothing.
    """

    data: bytes
    text: str
    encoding: str
    bom: bytes = b""
    _starts: list[int] = field(default_factory=list, compare=False, repr=False)

    def encode(self, text: str) -> bytes:
        """Bytes of a changed text, in the file's own encoding.

        Raises UndecodableError if a new character has no place in that encoding.
        """
        try:
            return self.bom + text.encode(self.encoding)
        except UnicodeEncodeError as error:
            raise UndecodableError(f"the new text does not fit {self.encoding}: {error}") from error

    @property
    def line_starts(self) -> list[int]:
        """Offset of the first character of each line, by Python's own notion of a line end."""
        if not self._starts:
            self._starts.append(0)
            self._starts.extend(match.end() for match in _LINE_END.finditer(self.text))
        return self._starts

    def position(self, offset: int) -> tuple[int, int]:
        """Line and column of a character, both from 1."""
        line = bisect.bisect_right(self.line_starts, offset)
        return line, offset - self.line_starts[line - 1] + 1

    def line_start(self, offset: int) -> int:
        """Offset of the first character of the line that a character stands on."""
        return self.line_starts[self.position(offset)[0] - 1]

    def next_line(self, offset: int) -> int:
        """Offset behind the line that a character stands on, its end included."""
        line, _ = self.position(offset)
        return self.line_starts[line] if line < len(self.line_starts) else len(self.text)

    @property
    def line_end(self) -> str:
        """How the file ends its lines: what its first line ends with, `\\n` where there is one line."""
        match = _LINE_END.search(self.text)
        return match.group() if match else "\n"


def read_python(data: bytes) -> SourceText:
    """Decode Python source as Python does (PEP 263): byte order mark, coding comment, else UTF-8.

    Raises UndecodableError if the declared encoding is unknown or does not fit, or if the file holds a null byte.
    """
    if b"\0" in data:
        raise UndecodableError("holds null bytes: is not Python source")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except (SyntaxError, LookupError) as error:
        raise UndecodableError(str(error)) from error
    return _decode(data, encoding.removesuffix("-sig"))


def read_plain(data: bytes) -> SourceText:
    """Decode any other text: UTF-8, or Latin-1, which takes all bytes.

    Raises UndecodableError if the file holds a null byte.
    """
    if b"\0" in data:
        raise UndecodableError("holds null bytes: is not a text")
    try:
        return _decode(data, "utf-8")
    except UndecodableError:
        return _decode(data, "latin-1")


def _decode(data: bytes, encoding: str) -> SourceText:
    bom = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    body = data[len(bom) :]
    try:
        text = body.decode(encoding)
        same = text.encode(encoding) == body
    except (UnicodeError, LookupError) as error:
        raise UndecodableError(f"is no {encoding}: {error}") from error
    if not same:
        raise UndecodableError(f"does not come back the same from {encoding}")
    return SourceText(data, text, encoding, bom)
