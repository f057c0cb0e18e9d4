"""The lines of ptdbg_ascend's `dump.pkl`, by the pass of an operator that they are about."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError, UsageError
from lockstep.files import read_manifest, values_of

_NAME = re.compile(r"(?P<api>.+?)[_.](?P<count>\d+)[_.](?P<phase>forward|backward)(?P<place>.*)")


@dataclass(frozen=True, slots=True)
class TensorLine:
    """The line of a dump for one tensor, or one plain number.

    name: `Functional_linear_0_forward_input.0`, which is that of its file too.
    dtype, shape: As they are written.
    numbers: Largest, smallest, mean.
    """

    name: str
    dtype: str
    shape: list[Any]
    numbers: list[Any]


@dataclass(frozen=True, slots=True)
class PassLines:
    """The lines of a dump for one pass: its tensors by their place (`_input.0`), and its stack."""

    tensors: dict[str, TensorLine] = field(default_factory=dict)
    stack: list[Any] = field(default_factory=list)


Key = tuple[str, str, int]
"""An operator, its phase, and its number."""


def passes_in(path: Path, *, by_order: bool) -> Mapping[Key, PassLines]:
    """The passes of a dump, in order.

    by_order: Whether calls of an operator are numbered anew as they come, whatever number they have.

    Raises UsageError if there is no such file. Raises CorruptError if it is none, or cut off.
    """
    if not path.is_file():
        raise UsageError(f"{path}: there is no such dump; give the dump.pkl of a rank")
    passes: dict[Key, PassLines] = {}
    numbers: dict[tuple[str, str], list[str]] = {}
    for number, text in enumerate(read_manifest(path).splitlines(), 1):
        if not text.strip():
            continue
        line = _values(path, number, text)
        found = _NAME.fullmatch(line[0])
        if found is None:
            continue
        api, phase, place = found["api"], found["phase"], found["place"]
        seen = numbers.setdefault((api, phase), [])
        if found["count"] not in seen[-1:]:
            seen.append(found["count"])
        count = len(seen) - 1 if by_order else int(found["count"])
        one = passes.setdefault((api, phase, count), PassLines())
        if place.endswith("stack_info"):
            one.stack.extend(line[1] if isinstance(line[1], list) else [])
        elif len(line) > 5:
            one.tensors[place] = TensorLine(line[0], str(line[3]), _list(line[4]), _list(line[5]))
    return passes


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _values(path: Path, number: int, text: bytes) -> list[Any]:
    try:
        line = values_of(text)
    except ValueError as error:
        raise CorruptError(
            path, f"line {number} is not valid JSON, or cut off ({error})", advice="dump again"
        ) from error
    if not isinstance(line, list) or len(line) < 2 or not isinstance(line[0], str):
        raise CorruptError(path, f"line {number} is not a record", advice="dump again")
    return line
