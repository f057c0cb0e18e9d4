"""How long the command line and the import take."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator

from bench import AtMost, Bench, Row
from children import LOCKSTEP, measured

_COMMANDS = {
    "an empty Python program": (sys.executable, "-c", "pass"),
    "import lockstep": (sys.executable, "-c", "import lockstep"),
    "lockstep --help": (*LOCKSTEP, "--help"),
    "lockstep compare --help": (*LOCKSTEP, "compare", "--help"),
}


def rows(bench: Bench) -> Iterator[Row]:
    """Processes in turn."""
    times: dict[str, list[float]] = {what: [] for what in _COMMANDS}
    for _ in range(bench.rounds):
        for what, command in _COMMANDS.items():
            times[what].append(measured(command).wall_s)
    empty = times["an empty Python program"]
    for what, walls in times.items():
        yield Row(what, "s", statistics.median(walls), min(walls))
    added = statistics.median(times["import lockstep"]) - statistics.median(empty)
    yield Row("what the import adds", "s", max(added, 0.0), None, AtMost(0.1))
