"""Protocol buffers as bytes (https://protobuf.dev/programming-guides/encoding) and as text, without a schema."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

Part = bytes | memoryview
Fields = dict[int, list["int | Part"]]
Message = dict[str, list["str | Message"]]
_VARINT_BYTES, _DEPTH = 10, 64
_MOST_FIELDS = 1 << 20
_TOKEN = re.compile(
    r'\s+|#[^\n]*|("(?:[^"\\\n]|\\.)*")|([{}<>])|([^\s{}<>":;,#]+)|[:;,]', re.DOTALL
)


def fields_of(data: Part) -> Fields:
    """The fields of a message by number, in order: varints and fixed numbers as int, the rest as bytes.

    Of a memoryview they are views, so that a tensor in a message in a message is not copied each time.

    Raises ValueError if it is none, or cut off.
    """
    found: Fields = defaultdict(list)
    at = count = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        count += 1
        if not number or count > _MOST_FIELDS:
            raise ValueError("a message with an impossible field")
        if kind == 0:
            value, at = _varint(data, at)
            found[number].append(value)
            continue
        size, at = _varint(data, at) if kind == 2 else ({1: 8, 5: 4}.get(kind, -1), at)
        if size < 0 or at + size > len(data):
            raise ValueError("a message that is cut off, or none")
        part, at = data[at : at + size], at + size
        found[number].append(part if kind == 2 else int.from_bytes(part, "little"))
    return found


def _varint(data: Part, at: int) -> tuple[int, int]:
    value = 0
    for number, byte in enumerate(data[at : at + _VARINT_BYTES]):
        value |= (byte & 127) << (7 * number)
        if byte < 128:
            return value & (1 << 64) - 1, at + number + 1
    raise ValueError("a number that is cut off")


def numbers_of(values: list[int | Part]) -> Iterator[int]:
    """A repeated number, packed or not."""
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        at = 0
        while at < len(value):
            one, at = _varint(value, at)
            yield one


@dataclass
class _Open:
    name: str
    message: Message


def text_message(text: str) -> Message:
    """A message as text: what stands under each name, in order; texts without their quotes.

    Raises ValueError if it is none, or cut off.
    """
    top = _Open("", defaultdict(list))
    around, name, at = [top], "", 0
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"odd text at character {at}")
        at = found.end()
        quoted, bracket, word = found.groups()
        if bracket in ("{", "<"):
            if not name or len(around) > _DEPTH:
                raise ValueError(f"a message without a name, or too deep, at character {at}")
            around.append(_Open(name, defaultdict(list)))
            name = ""
        elif bracket:
            inner = around.pop()
            if not around or name:
                raise ValueError(f"an end without a beginning at character {at}")
            around[-1].message[inner.name].append(inner.message)
        elif quoted is not None or word is not None:
            value = quoted[1:-1] if quoted is not None else word
            if not name:
                name = value
            else:
                around[-1].message[name].append(value)
                name = ""
    if len(around) > 1 or name:
        raise ValueError("text that is cut off")
    return top.message
