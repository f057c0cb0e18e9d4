"""How `lockstep record` and the processes of its command speak to each other. No torch here.

Downwards by environment variables; upwards by one hidden file in the recording, in which every
process notes how far it came, so that an empty recording can be explained.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from pathlib import Path
from types import ModuleType

from lockstep.core.manifest import Options, manifest_from_json
from lockstep.core.members import SOURCE_VARIABLE, lacking, source_folders
from lockstep.core.unmatched import UnmatchedNote
from lockstep.store.permissions import open_private

VARIABLE = "LOCKSTEP_RECORD"
"""The variable that asks a process to record: where to, and how, as `request_from` reads it."""

TRACE_VARIABLE = "LOCKSTEP_TRACE"
SEED_VARIABLE = "LOCKSTEP_SEED"
ARMING_VARIABLE = "LOCKSTEP_ARMING"
"""Names the module that arms a process which imports torch, where it is not the recorder that is armed."""
FRAMEWORKS_VARIABLE = "LOCKSTEP_FRAMEWORKS"
STARTUP = Path(__file__).parents[1] / "startup"
PLACES = ".places"
"""The folder below a recording in which each rank of a running command notes, as JSON, where it is."""
_TRACE = ".trace"


class Reached(IntEnum):
    """How far a process came towards a recorded step.

    `TORCH` is noted when torch is imported: of a process that was killed nothing more is known. `UNTRAINED` is noted
    when the process ends.
    """

    NOTHING = 0
    HOOK = 1
    NOT_INSTALLED = 2
    UNLOADABLE = 3
    TORCH = 4
    UNTRAINED = 5
    FRAMEWORK = 6
    OPTIMIZER = 7
    STEPS = 8
    OTHER_RANK = 9


def environment_for(
    directory: Path, options: Options, arming: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Environment of a command to be recorded into `directory`.

    `arming` names, by the root modules of other frameworks than PyTorch, the modules that arm a process which imports
    them.
    """
    environment = _with_startup()
    environment[VARIABLE] = json.dumps(
        {"directory": str(directory), "options": dataclasses.asdict(options)}
    )
    environment[TRACE_VARIABLE] = str(trace_of(directory))
    environment[FRAMEWORKS_VARIABLE] = ",".join(
        f"{root}={module}" for root, module in (arming or {}).items()
    )
    environment.pop(SEED_VARIABLE, None)
    if options.seed is not None:
        environment.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        environment["PYTHONHASHSEED"] = environment[SEED_VARIABLE] = str(options.seed)
    return environment


def environment_arming(module: str) -> dict[str, str]:
    """Environment of a command that is not recorded, but looked at by a module in its own processes.

    module: Its name; its `arm_from_environment()` is called in each process that imports torch, right after that.
    """
    return _with_startup() | {ARMING_VARIABLE: module}


def _with_startup() -> dict[str, str]:
    """This process's environment with the start-up hook, and with where Lockstep is."""
    environment = dict(os.environ)
    path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = os.pathsep.join([str(STARTUP), *([path] if path else [])])
    environment[SOURCE_VARIABLE] = os.pathsep.join(source_folders())
    return environment


def recorded_directory() -> Path | None:
    """Where the command of this process is recorded, None where it is not; its recorded steps may be over."""
    text = os.environ.get(VARIABLE)
    return Path(json.loads(text)["directory"]) if text else None


def trace_of(directory: Path) -> Path:
    """The file in which the processes of a command note how far they came."""
    return directory / _TRACE


def module_from_sources(name: str) -> ModuleType:
    """Import a module of Lockstep as this Python has it, or else from where the one has it that runs the command.

    The start-up hook imports the recorder in the same way; a member may be absent where the core is there.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        sources = os.environ.get(SOURCE_VARIABLE, "").split(os.pathsep)
        if not sources[0]:
            raise
    # Not for longer than this: what else lies there must not become importable to the script.
    sys.path += sources
    try:
        return importlib.import_module(name)
    finally:
        # The last ones: they may have been on the path before, as where it is installed to be edited.
        for source in sources:
            del sys.path[len(sys.path) - 1 - sys.path[::-1].index(source)]


def module_of_member(member: str, name: str, what: str) -> ModuleType:
    """Import a module of a member, as `module_from_sources` does.

    Raises UsageError if the member is not there, with the command that installs what `what` needs.
    """
    try:
        return module_from_sources(name)
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            raise
        raise lacking(what, member) from None


def request_from(text: str) -> tuple[Path, Options]:
    """Read back what `environment_for` wrote."""
    value = json.loads(text)
    return Path(value["directory"]), manifest_from_json(Options, value["options"], VARIABLE)


ARMED = "ARMED"
"""Stands before the number of a process that imports torch behind the start-up hook."""

UNMATCHED = "UNMATCHED"
"""Stands before an `UnmatchedNote` of the first recorded step of a process."""

TRAINS = "TRAINS"
"""Stands before the directory of a process that has made an optimizer or run backward."""

UNRECORDED_CHILD = "UNRECORDED_CHILD"
"""Stands for a process that trained on behind a fork from one that was recorded."""

LEFT_OUT = "LEFT_OUT"
"""Stands before how many chosen steps a process did not record, as the one before was still there."""

STOPPED = "STOPPED"
"""Stands for a process that waits before its first backward to be ended with the others."""

UNWRITTEN = "UNWRITTEN"
"""Stands before why what a process was to record could not be written."""

TRAINED = "TRAINED"
"""Stands before how many steps a process trained, of which each was recorded apart."""


@dataclass(frozen=True)
class Traces:
    """The notes of a command's processes.

    `reached` is how far the one came that came furthest, with its `detail`; `training` are directories of processes
    that train, `unrecorded_children` counts those that trained and could not be recorded, `left_out` chosen steps
    that were not recorded, as the one before was still there, `trained` all steps of the process that had most, and
    `unwritten` why something could not be written, or "".
    """

    reached: Reached = Reached.NOTHING
    detail: str = ""
    training: frozenset[str] = frozenset()
    unrecorded_children: int = 0
    left_out: int = 0
    trained: int = 0
    unwritten: str = ""


def leave_trace(directory: Path, reached: Reached, detail: str = "") -> None:
    """Note how far this process came; nothing is noted where that cannot be written."""
    leave_note(directory, reached.name, detail)


def leave_note(directory: Path, name: str, detail: str = "") -> None:
    """Note something of this process, as `leave_trace` does."""
    with suppress(OSError), open_private(trace_of(directory), "a") as file:
        file.write(f"{name} {detail}\n")


def unmatched_notes(directory: Path) -> list[UnmatchedNote]:
    """Return the processes' notes about patterns that matched nothing."""
    return [
        UnmatchedNote.from_text(detail)
        for name, detail in _notes_of(directory)
        if name == UNMATCHED
    ]


def count_of(directory: Path, name: str) -> int:
    """How many notes of one name there are so far."""
    return sum(noted == name for noted, _ in _notes_of(directory))


def armed_processes(directory: Path) -> set[int]:
    """Return the processes that have imported torch after the start-up hook, by their own numbers."""
    return set(_numbers_behind(_notes_of(directory), ARMED))


def take_traces(directory: Path) -> Traces:
    """Return the notes of the processes, and remove them."""
    notes = _notes_of(directory)
    trace_of(directory).unlink(missing_ok=True)
    reached = [(Reached[name], detail) for name, detail in notes if name in Reached.__members__]
    furthest = max(reversed(reached), key=itemgetter(0), default=(Reached.NOTHING, ""))
    if furthest[0] is Reached.UNTRAINED:
        counts = Counter(name for name, _ in reached)
        if counts[Reached.TORCH] > counts[Reached.UNTRAINED]:
            furthest = Reached.TORCH, ""  # one of them did not come to say that it trained nothing
    return Traces(
        *furthest,
        frozenset(detail for name, detail in notes if name == TRAINS),
        sum(name == UNRECORDED_CHILD for name, _ in notes),
        sum(_numbers_behind(notes, LEFT_OUT)),
        max(_numbers_behind(notes, TRAINED), default=0),
        next((detail for name, detail in notes if name == UNWRITTEN), ""),
    )


def _notes_of(directory: Path) -> list[tuple[str, str]]:
    lines: list[str] = []
    with suppress(OSError):
        # What is being written ends without a line break.
        lines = trace_of(directory).read_text().split("\n")[:-1]
    return [(name, detail) for name, _, detail in (line.partition(" ") for line in lines)]


def _numbers_behind(notes: list[tuple[str, str]], wanted: str) -> list[int]:
    return [int(detail) for name, detail in notes if name == wanted and detail.isdigit()]
