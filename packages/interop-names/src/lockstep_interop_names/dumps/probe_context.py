"""Read `construct.json` and `stack.json` beside a dump of mindstudio-probe, and name missing parts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError
from lockstep.recordings import MODULES, OPERATORS, Frame, NotSeen
from lockstep_interop_names.dumps.places import is_library, json_in

_FRAME = re.compile(r"File (.+?), line (\d+), in ([^,\n]+)")

GRADIENTS = re.compile(r"(?:Module|Cell)\.(?:(.+)\.)?[^.]+\.parameters_grad\.\d+")
"""Names of the records of a module's gradients of parameters."""


def missing_in(task: str, level: str, names: Collection[str]) -> Iterator[NotSeen]:
    """Return the parts of a recording that a dump of this task and level lacks."""
    yield NotSeen("losses, batches and optimizers", "mindstudio-probe dumps none")
    if task != "tensor":
        yield NotSeen("tensors' elements", f"the dump's task was {task}")
    if level == "L1":
        yield NotSeen(MODULES, "the dump's level was L1: every operator is told outside of them")
    if level == "L0":
        yield NotSeen(
            OPERATORS, f"not recorded at {level}: that level has modules alone", level=level
        )
    if not any(".backward" in name or GRADIENTS.fullmatch(name) for name in names):
        yield NotSeen("gradients", "the dump holds no backward")
    elif not any(map(GRADIENTS.fullmatch, names)):
        yield NotSeen("gradients of parameters", "the dump holds none")


def parents_in(path: Path) -> Mapping[str, str]:
    """The call around each, by name; none where there is no such file. Raises CorruptError if it is damaged."""
    found = json_in(path) if path.is_file() else {}
    if not isinstance(found, dict):
        raise CorruptError(path, "is not a JSON object", advice="dump again")
    first = {
        name: above[0] if isinstance(above, list) and above else above
        for name, above in found.items()
    }
    return {name: above for name, above in first.items() if isinstance(above, str)}


def stacks_in(path: Path) -> Mapping[str, tuple[Frame, ...]]:
    """Where each call came from, innermost frame first; none where there is no such file.

    Raises CorruptError if it is damaged.
    """
    found = json_in(path) if path.is_file() else {}
    stacks: dict[str, tuple[Frame, ...]] = {}
    for key, value in found.items() if isinstance(found, dict) else ():
        names, lines = value if value and isinstance(value[0], list) else ([key], value)
        frames = tuple(_frames(lines))
        stacks.update((name, frames) for name in names)
    return stacks


def _frames(lines: Any) -> Iterator[Frame]:
    for line in lines if isinstance(lines, list) else ():
        found = _FRAME.match(line) if isinstance(line, str) else None
        if found:
            yield Frame(found[1], int(found[2][:9]), found[3].strip(), is_library(found[1]))
