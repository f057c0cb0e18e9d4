"""One static arena in place of a generated program's own buffers, which lie on the stack and are never used twice.

The engine gives each value between nodes a variable of its own. Values that are not needed at the same time may share
memory: buffers are placed by size, largest first, each at the lowest place that is free as long as it lives (Pisarchyk
and Lee, Efficient Memory Management for Deep Neural Net Inference, 2020, "greedy by size for offset calculation").
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from lockstep.errors import UsageError

_ALIGNMENT = 8

_BYTES = {
    "float": 4, "double": 8, "_Bool": 1, "int8_t": 1, "uint8_t": 1, "int16_t": 2, "uint16_t": 2, "int32_t": 4,
    "uint32_t": 4, "int64_t": 8, "uint64_t": 8,
}  # fmt: skip

_BUFFER = re.compile(r"^    (?P<type>\w+) (?P<name>\w+)(?P<shape>(?:\[\d+\])*);$")
_CALL = re.compile(r"^    (?:\w+ = )?\w+\((?P<arguments>.*)\);$")


@dataclass(frozen=True, slots=True)
class Buffer:
    """A value between nodes.

    name, dtype, shape: As the program declares it.
    first, last: The calls between which it lives.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    first: int
    last: int

    @property
    def size_bytes(self) -> int:
        """Its size, in bytes."""
        return math.prod(self.shape) * _BYTES[self.dtype]


@dataclass(frozen=True)
class Arena:
    """Where each buffer lies.

    offsets: In bytes, by buffer.
    size_bytes: Of all of it.
    """

    offsets: dict[Buffer, int]
    size_bytes: int

    @property
    def largest(self) -> Buffer | None:
        """The largest buffer; None where there is none."""
        return max(self.offsets, key=lambda one: one.size_bytes, default=None)

    @property
    def unshared_bytes(self) -> int:
        """The size of all buffers side by side, in bytes."""
        return sum(one.size_bytes for one in self.offsets)


def placed(buffers: list[Buffer]) -> Arena:
    """Place buffers so that no two that live at the same call overlap."""
    offsets: dict[Buffer, int] = {}
    for buffer in sorted(buffers, key=lambda one: (-one.size_bytes, one.first, one.name)):
        at = 0
        taken = sorted(
            (offset, offset + other.size_bytes)
            for other, offset in offsets.items()
            if other.first <= buffer.last and buffer.first <= other.last
        )
        for start, end in taken:
            if at + buffer.size_bytes <= start:
                break
            at = max(at, -(-end // _ALIGNMENT) * _ALIGNMENT)
        offsets[buffer] = at
    return Arena(offsets, max((at + one.size_bytes for one, at in offsets.items()), default=0))


def with_arena(program: str, entry: str) -> tuple[str, Arena]:
    """Put the buffers of a program's entry function into one static arena.

    program: C source.
    entry: Name of the function.

    Raises UsageError if the function is of another form than declarations and calls one after the other.
    """
    lines = program.splitlines()
    starts = [at for at, line in enumerate(lines) if re.match(rf"void {re.escape(entry)}\(", line)]
    if not starts:
        raise UsageError(
            f"the engine wrote no function {entry}: its form is not known, so no arena can be planned"
        )
    start = starts[0] + 1
    end = next((at for at in range(start, len(lines)) if lines[at] == "}"), len(lines))
    arena = placed(_buffers(lines[start:end]))
    by_name = {one.name: one for one in arena.offsets}
    body = []
    for line in lines[start:end]:
        declared = _BUFFER.match(line)
        body.append(
            _pointer(by_name[declared["name"]], arena)
            if declared and declared["name"] in by_name
            else line
        )
    size = max(arena.size_bytes, 1)
    head = [
        "/* Every value between nodes; not to be entered twice at once. Compile with -fno-strict-aliasing. */",
        f"static union {{ double align; uint64_t words; unsigned char bytes[{size}]; }} lockstep_arena;", "",
    ]  # fmt: skip
    return "\n".join([*lines[: start - 1], *head, lines[start - 1], *body, *lines[end:], ""]), arena


def _buffers(body: list[str]) -> list[Buffer]:
    declared: dict[str, re.Match[str]] = {}
    lives: dict[str, tuple[int, int]] = {}
    for at, line in enumerate(body):
        buffer, call = _BUFFER.match(line), _CALL.match(line)
        if buffer and buffer["type"] in _BYTES:
            declared[buffer["name"]] = buffer
        elif call:
            for name in re.findall(r"\w+", call["arguments"]):
                if name in declared:
                    lives[name] = (lives.get(name, (at, at))[0], at)
        elif line.strip():
            raise UsageError(
                f"the engine wrote {line.strip()!r}, for which no arena can be planned; this model is not supported"
            )
    return [
        Buffer(name, one["type"], tuple(map(int, re.findall(r"\d+", one["shape"]))), *lives[name])
        for name, one in declared.items()
        if name in lives and one["shape"]
    ]


def _pointer(buffer: Buffer, arena: Arena) -> str:
    """A declaration that stands for an array: a pointer to its first row."""
    rest = "".join(f"[{extent}]" for extent in buffer.shape[1:])
    pointer = f"(*const {buffer.name}){rest}" if rest else f"*const {buffer.name}"
    kind = f"{buffer.dtype} (*){rest}" if rest else f"{buffer.dtype} *"
    at = f"(void *)(lockstep_arena.bytes + {arena.offsets[buffer]})"
    return f"    {buffer.dtype} {pointer} = ({kind}){at};"
