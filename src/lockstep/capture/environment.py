"""How `lockstep record` and the processes of its command speak to each other. No torch here.

Downwards by environment variables; upwards by one hidden file in the recording, in which every
process notes how far it came, so that an empty recording can be explained.
"""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import suppress
from enum import IntEnum
from pathlib import Path

from lockstep.core.manifest import Options, manifest_from_json
from lockstep.store.private import open_private

VARIABLE = "LOCKSTEP_RECORD"
SOURCE_VARIABLE = "LOCKSTEP_SOURCE"
TRACE_VARIABLE = "LOCKSTEP_TRACE"
SEED_VARIABLE = "LOCKSTEP_SEED"
STARTUP = Path(__file__).parent / "startup"
_TRACE = ".trace"


class Reached(IntEnum):
    """How far a process came towards a recorded step."""

    NOTHING = 0
    HOOK = 1
    UNLOADABLE = 2
    TORCH = 3
    OPTIMIZER = 4
    STEPS = 5
    OTHER_RANK = 6


def environment_for(directory: Path, options: Options) -> dict[str, str]:
    """Environment of a command to be recorded into `directory`."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([path] if path else [])])
    environment[VARIABLE] = json.dumps(
        {"directory": str(directory), "options": dataclasses.asdict(options)}
    )
    environment[SOURCE_VARIABLE] = str(Path(__file__).parents[2])
    environment[TRACE_VARIABLE] = str(directory / _TRACE)
    environment.pop(SEED_VARIABLE, None)
    if options.seed is not None:
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        environment["PYTHONHASHSEED"] = environment[SEED_VARIABLE] = str(options.seed)
    return environment


def request_from(text: str) -> tuple[Path, Options]:
    """Read back what `environment_for` wrote."""
    value = json.loads(text)
    return Path(value["directory"]), manifest_from_json(Options, value["options"], VARIABLE)


def leave_trace(directory: Path, reached: Reached, detail: str = "") -> None:
    """Note how far this process came; nothing is noted where that cannot be written."""
    with suppress(OSError), open_private(directory / _TRACE, "a") as file:
        file.write(f"{reached.name} {detail}\n")


def take_traces(directory: Path) -> tuple[Reached, str]:
    """How far the process that came furthest did come, with its detail; removes the notes."""
    furthest = (Reached.NOTHING, "")
    with suppress(OSError):
        for line in (directory / _TRACE).read_text().splitlines():
            name, _, detail = line.partition(" ")
            if name in Reached.__members__:
                furthest = max(furthest, (Reached[name], detail))
        (directory / _TRACE).unlink()
    return furthest
