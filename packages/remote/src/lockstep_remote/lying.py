"""Runs a verb where the larger of its recordings lies: the smaller one goes there, and its answer comes back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from lockstep.errors import NotARecordingError
from lockstep.plugin import Elsewhere, PathWord, Use
from lockstep.recordings import is_recording
from lockstep.terminal import say
from lockstep_remote.bringing import Bringing
from lockstep_remote.jobs import Job, Output
from lockstep_remote.link import Answer, Link, RemoteError
from lockstep_remote.machines import Machine, machine_named
from lockstep_remote.running import Lying, run_on


@dataclass(frozen=True, slots=True)
class _Side:
    """A recording: as it was typed, its machine (None for this one), its path there, and its bytes."""

    typed: str
    machine: Machine | None
    path: str
    size_bytes: int

    @property
    def place(self) -> str:
        """The name of its machine, "" of this one."""
        return "" if self.machine is None else self.machine.name


def run_where_it_lies(asked: Elsewhere) -> int:
    """Run a verb where the largest of its recordings lies; returns its exit code.

    Raises RemoteError if a machine cannot do it, or has no such recording. Raises NotARecordingError if one that lies
    here is none.
    """
    return asyncio.run(_run(asked))


async def _run(asked: Elsewhere) -> int:
    typed = [
        str(word.path)
        for word in asked.words
        if isinstance(word, PathWord) and word.use is Use.LIES
    ]
    sides = [await _found(one) for one in typed]
    largest = max(sides, key=lambda one: one.size_bytes)
    names = _names(sides)
    with tempfile.TemporaryDirectory(prefix="lockstep-lying-") as aside:
        sent: dict[str, Path] = {}
        for side in sides:
            if side.place == largest.place:
                continue
            name = names[side.typed]
            goes = f"{side.typed} goes to {largest.place or 'this machine'}"
            say(f"{goes} ({side.size_bytes / 1e6:.1f} MB), which has the larger recording")
            here = Path(side.path) if side.machine is None else Path(aside, name)
            if side.machine is not None:
                await _bring(side, side.machine, here)
            sent[name] = here
        beside = {names[one.typed]: one.path for one in sides if one.place == largest.place}
        if largest.machine is None:
            return _run_here(asked, names, {**sent, **beside}, Path(aside, "here"))
        machine = largest.machine
        return await run_on(asked, machine, machine.environment(), Lying(names, sent, beside))


async def _found(typed: str) -> _Side:
    """Find a recording: `NAME:PATH` on a machine, everything else here."""
    name, colon, path = typed.partition(":")
    if not colon:
        here = Path(typed).absolute()
        if not is_recording(here):
            raise NotARecordingError(
                here, "is not a recording", advice="give NAME:PATH for one on a machine"
            )
        size_bytes = sum(one.stat().st_size for one in here.rglob("*") if one.is_file())
        return _Side(typed, None, str(here), size_bytes)
    machine = machine_named(name)
    link = Link(machine)
    try:
        answer = await link.ask("measure", path=path)
    finally:
        link.close()
    return _Side(typed, machine, answer["path"], int(answer["bytes"]))


def _names(sides: list[_Side]) -> dict[str, str]:
    """Return the name of each recording where the verb runs: its own, with its machine's where both have one name."""
    own = {side.typed: PurePosixPath(side.path).name for side in sides}
    counts = Counter(own.values())
    return {
        side.typed: own[side.typed]
        if counts[own[side.typed]] == 1
        else f"{side.place or 'here'}-{number}-{own[side.typed]}"
        for number, side in enumerate(sides)
    }


async def _bring(side: _Side, machine: Machine, here: Path) -> None:
    """Bring a recording here, on from where the connection was lost."""
    output = Output(str(here), side.path, Use.READS)
    job = Job("", machine.name, [], "", f"{side.path}/.no-job", [output])
    bringing, link = Bringing(job), Link(machine)

    async def once() -> Answer:
        asked = {"job": job.folder, "logs": [0, 0], "have": bringing.have(), "outputs": [side.path]}
        async for answer, data in link.stream("fetch", asked):
            if answer.get("kind") == "end":
                return answer
            bringing.take(answer, data)
        raise RemoteError(f"{machine.name}: the agent there ended")

    try:
        last = await link.try_again(once)
    finally:
        link.close()
    missing = bringing.finish(last["outputs"])
    if missing:
        raise RemoteError(f"{side.typed}: {missing[0]} did not come whole; run the same again")


def _run_here(
    asked: Elsewhere, names: dict[str, str], lies: dict[str, Path | str], at: Path
) -> int:
    """Run the verb on this machine, in a folder with all recordings under their names."""
    at.mkdir()
    for name, path in lies.items():
        (at / name).symlink_to(path)
    words = [
        word
        if isinstance(word, str)
        else names[str(word.path)]
        if word.use is Use.LIES
        else str(word.path.absolute())
        for word in asked.words
    ]
    command = [sys.executable, "-m", "lockstep", *words]
    return subprocess.run(command, cwd=at, check=False).returncode
