"""Trainings that are killed at random moments, and what their recordings hold afterwards.

`python tests/fuzz/kills.py 200` kills two hundred of them, a third at every weight. Each is forked from this process,
records itself, and tells through a pipe which of its steps have ended. Afterwards every recording must open, hold every
step that ended longer ago than the writer may rest, and not differ from one of the same training that nobody killed.
"""

from __future__ import annotations

import os
import random
import signal
import statistics
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch._dynamo  # as optimizers do: once here, not in every child

import lockstep
from lockstep.core.finding import Verdict
from lockstep.core.selection import SAVES
from lockstep.store.pace import REST_S

STEPS = 60
LONGEST_S = 2.0
"""Seconds after which a training is killed at the latest."""

MOST_LOST_S = 2 * REST_S + 1.0
"""A rest, the next end of a step, and time for a busy machine to write it."""

_TOLD = struct.Struct("d")


@dataclass(frozen=True)
class Killed:
    """One killed training: where its recording is, when each of its steps ended, and when it was killed."""

    path: Path
    save: str
    ended_s: tuple[float, ...]
    killed_s: float

    def lost(self) -> tuple[int, ...]:
        """Steps that had ended when it was killed and are not complete in the recording."""
        complete: tuple[int, ...] = ()
        if (self.path / "rank0" / "manifest.json").exists():
            complete = lockstep.open(self.path).ranks["rank0"].complete_steps
        return tuple(sorted(set(range(len(self.ended_s))) - set(complete)))

    def lost_s(self) -> float:
        """How long before the kill the first step had ended that is lost, in seconds; 0 where none is."""
        lost = self.lost()
        return self.killed_s - self.ended_s[lost[0]] if lost else 0.0


def train(path: Path, save: str, told: int, steps: int = STEPS) -> None:
    """Train and record; each step that has ended is told by the time it ended at."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    optimizer = torch.optim.Adam(model.parameters())
    with lockstep.record(path, model=model, steps=f"0:{steps}", save=save):  # type: ignore[arg-type]
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(4, 8)).square().mean().backward()
            optimizer.step()
            os.write(told, _TOLD.pack(time.monotonic()))


def forked(path: Path, save: str) -> tuple[int, int]:
    """Begin a training in a process of its own; returns its number and where it tells its steps."""
    hears, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(hears)
        train(path, save, tells)
        os._exit(0)
    os.close(tells)
    return child, hears


def kill(path: Path, save: str, after_s: float) -> Killed:
    """Begin a training and kill it some seconds after its first step."""
    child, hears = forked(path, save)
    first = os.read(hears, _TOLD.size)
    time.sleep(after_s)
    killed_s = time.monotonic()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    with os.fdopen(hears, "rb") as file:
        told = first + file.read()
    return Killed(path, save, tuple(time_s for (time_s,) in _TOLD.iter_unpack(told)), killed_s)


def kills(folder: Path, count: int, seed: int) -> Iterator[Killed]:
    """Kill so many trainings, at every weight in turn."""
    draw = random.Random(seed)
    for number in range(count):
        save = SAVES[number % len(SAVES)]
        yield kill(folder / f"{number}-{save}", save, LONGEST_S * draw.random() ** 2)


def wholes(folder: Path) -> dict[str, Path]:
    """The same training at every weight, which nobody kills."""
    recordings = {save: folder / save for save in SAVES}
    for save, path in recordings.items():
        child, hears = forked(path, save)
        with os.fdopen(hears, "rb") as file:
            file.read()
        os.waitpid(child, 0)
    return recordings


def fault(killed: Killed, whole: Path) -> str:
    """What is wrong with the recording of a killed training, "" where nothing is."""
    if not (killed.path / "manifest.json").exists():
        return "no recording"
    try:
        comparison = lockstep.compare_recordings(whole, killed.path)
    except lockstep.LockstepError as error:
        nothing = len(killed.lost()) == len(killed.ended_s)
        return "" if nothing else f"does not compare: {error}"
    if comparison.verdict is Verdict.DIVERGED or comparison.origins:
        return f"is not as it was: {comparison}"
    return ""


def main(count: int, seed: int = 0) -> int:
    """Kill trainings and say what they lost; returns how many lost more than they may, or what is not theirs."""
    with tempfile.TemporaryDirectory() as name:
        # Polars' threads would not come along with a fork: nothing is read before all is recorded.
        reference = wholes(Path(name))
        killed = list(kills(Path(name), count, seed))
        bad = 0
        for one in killed:
            found = fault(one, reference[one.save])
            if one.lost_s() > MOST_LOST_S:
                found = f"lost {one.lost_s():.2f} s"
            if found:
                print(f"{one.path.name}, killed after {len(one.ended_s)} steps: {found}")
                bad += 1
        lost_s = sorted(one.lost_s() for one in killed)
        print(
            f"{count} kills, {bad} bad; steps of the last {lost_s[-1]:.2f} s were lost at most, of"
            f" {statistics.median(lost_s):.2f} s in the median"
        )
        return bad


if __name__ == "__main__":
    sys.exit(min(1, main(int(sys.argv[1]))))
