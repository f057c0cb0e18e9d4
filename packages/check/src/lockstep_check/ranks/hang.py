"""Find the rank of a command that the others wait for, and the place where each waits."""

from __future__ import annotations

import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError, check_linux
from lockstep.launch import PLACES, Descendants, Event, Started, launch
from lockstep.recordings import Options
from lockstep.terminal import Column, Page, add_paragraph, add_table, listed, printable

_LOOKS_EVERY_S = 0.25
_COLUMNS = (
    Column("rank"), Column("collectives begun"), Column("waits in"), Column("at"), Column("for")
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Place:
    """The place of one rank, as it noted itself.

    collectives: How many it has begun; None where its backend does not count them.
    waits_in: What of torch its script has called in which ranks wait for each other; "" where it is elsewhere.
    line: The line of the script.
    for_s: How long it has been there.
    there: Whether the process lives.
    """

    rank: int
    world_size: int
    collectives: int | None
    waits_in: str
    line: str
    for_s: float
    there: bool

    @property
    def words(self) -> str:
        """Return the rank's activity in words."""
        if not self.there:
            return "has ended"
        where = f" at {self.line}" if self.line else ""
        return f"waits in {self.waits_in}{where}" if self.waits_in else f"is{where or ' elsewhere'}"


@dataclass(frozen=True, slots=True)
class Watched:
    """The end of a watched command.

    hangs: Whether a rank waited for longer than was allowed, and the command was ended for it.
    code: Its exit code.
    """

    hangs: bool
    code: int
    places: tuple[Place, ...]


def watch(command: Sequence[str], patience_s: float, **streams: Any) -> Watched:
    """Run a command, and end it when one of its ranks has waited for so long at one place for the others.

    Raises UsageError if the command cannot be started, none of its processes joins a group of ranks, or the system is
    not Linux: elsewhere the processes of the command are not seen, and could not be ended.
    """
    check_linux("check --hang")
    with tempfile.TemporaryDirectory(prefix="lockstep-check-") as name:
        directory = Path(name, "watched")
        watcher = _Watcher(directory, patience_s)
        options = Options(steps="0", level="module", save="stats", places=True)
        try:
            code = launch(command, directory, options, hear=watcher.hear, **streams).code
        finally:
            watcher.finish()
        places = watcher.found or _places(directory)
    if not places:
        failed = f" (the command ended with exit code {code})" if code else ""
        raise UsageError(f"no process of the command was seen in a group of ranks{failed}")
    return Watched(bool(watcher.found), code, places)


class _Watcher:
    """Looks at the places of all ranks, on a thread of its own, and ends the command once."""

    def __init__(self, directory: Path, patience_s: float) -> None:
        self._directory, self._patience_s = directory, patience_s
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.found: tuple[Place, ...] = ()

    def hear(self, event: Event) -> None:
        """The command runs: look at it from now on."""
        if isinstance(event, Started):
            self._thread = threading.Thread(
                target=self._work, args=(Descendants(event.pid),), daemon=True
            )
            self._thread.start()

    def finish(self) -> None:
        """The command has ended."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _work(self, processes: Descendants) -> None:
        while not self._ended.wait(_LOOKS_EVERY_S):
            processes.now()
            places = _places(self._directory)
            waiting = _waiting(places)
            if waiting is not None and waiting.for_s >= self._patience_s:
                self.found = places
                self._end(processes)
                return

    def _end(self, processes: Descendants) -> None:
        """By force: what waits for ever hears of nothing else, and a launcher would tell of all the ends at length."""
        while not self._ended.wait(_LOOKS_EVERY_S):
            for process in processes.now():
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(process, signal.SIGKILL)


def _places(directory: Path) -> tuple[Place, ...]:
    found = []
    for file in sorted((directory / PLACES).glob("*.json")):
        with suppress(OSError, ValueError):  # it is being replaced
            noted = json.loads(file.read_text())
            since_s, pid = noted.pop("since_s"), noted.pop("pid")
            there = Path(f"/proc/{pid}").exists()
            found.append(Place(**noted, for_s=time.time() - since_s, there=there))
    return tuple(sorted(found, key=lambda one: one.rank))


# --- what is said of it ---------------------------------------------------------------------------------------------


def _waiting(places: Sequence[Place]) -> Place | None:
    """The rank that has waited longest for the others; None where none seems to.

    It is in a call of torch that waits for them, or it has begun a collective that another one has not.
    """
    counts = [one.collectives or 0 for one in places]
    waiting = [
        one
        for one in places
        if one.there
        and one.world_size > 1
        and (one.waits_in or (one.collectives or 0) > min(counts))
    ]
    return max(waiting, key=lambda one: one.for_s, default=None)


def _behind(places: Sequence[Place]) -> list[Place]:
    """Ranks that did not come as far as others: they have ended, begun fewer collectives, or wait for nobody."""
    most = max((one.collectives or 0 for one in places), default=0)
    fewer = [one for one in places if (one.collectives or 0) < most]
    return fewer or [one for one in places if not one.there or not one.waits_in]


def headline(watched: Watched) -> str:
    """The answer in one sentence."""
    places = watched.places
    waiting = _waiting(places) if watched.hangs else None
    if waiting is None:
        how = f"ended with exit code {watched.code}" if watched.code else "ended by itself"
        return f"NO RANK WAITED FOR EVER: the command of {places[0].world_size} ranks {how}"
    told = f"HANGS: rank {waiting.rank} {waiting.words} for {waiting.for_s:.0f} s"
    behind = [one for one in _behind(places) if one is not waiting]
    if behind:
        words = "; ".join(f"rank {one.rank} {one.words}" for one in behind)
        return f"{told}, and never came there: {words}"
    others = [one for one in places if (one.waits_in, one.line) != (waiting.waits_in, waiting.line)]
    if others:
        words = "; ".join(f"rank {one.rank} {one.words}" for one in others)
        return f"{told}, and others elsewhere: {words}"
    return f"{told}, as every rank does"


def render(watched: Watched) -> Page:
    """The headline, where each rank is, and what to look at."""
    text = Page()
    add_paragraph(text, printable(headline(watched)), indent="  ", first="")
    rows = [
        (
            str(one.rank),
            "not counted" if one.collectives is None else str(one.collectives),
            one.waits_in or ("-" if one.there else "has ended"),
            one.line,
            f"{one.for_s:.0f} s" if one.there else "",
        )
        for one in watched.places
    ]
    if not (watched.hangs or watched.code):
        return text
    add_table(text, _COLUMNS, rows, indent="  ")
    noted = {one.rank for one in watched.places}
    silent = [str(one) for one in range(watched.places[0].world_size) if one not in noted]
    if silent:
        add_paragraph(text, f"Nothing was heard of rank {listed(silent)}.", first="")
    if watched.hangs:
        cure = (
            "Look at the lines of the ranks that are elsewhere: a branch by rank around a collective, another number of"
            " batches (`drop_last=True`, `DistributedDataParallel.join`), a saving or evaluating of rank 0 alone."
        )
        add_paragraph(text, f"cure: {cure}", indent="    ", first="  ")
    return text


def as_values(watched: Watched) -> dict[str, Any]:
    """The same for JSON."""
    ranks = [
        {
            "rank": one.rank,
            "collectives": one.collectives,
            "waits_in": one.waits_in,
            "line": one.line,
            "for_s": round(one.for_s, 1),
            "there": one.there,
        }
        for one in watched.places
    ]
    return {"hangs": watched.hangs, "exit_code": watched.code, "ranks": ranks,
            "behind": [one.rank for one in _behind(watched.places)] if watched.hangs else []}  # fmt: skip
