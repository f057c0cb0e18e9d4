"""One process that trains the GPT-2 and records single steps with one tool; run as a script by `peer_rows`.

    python peer_worker.py TOOL TASK LEVEL SIZE

Every line on standard input is a directory, or a directory and the name of an emulated device: one step is recorded
there, and a line with the seconds until the training went on, and until everything was written, comes back. TOOL is
"bare", "lockstep" or "msprobe"; SIZE is a `bench.Size` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import trainings
from bench import Size

from lockstep.devices.emulation.mode import Emulation

Record = Callable[[trainings.Training, Path], tuple[float, float]]


def main() -> None:
    """Answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a tool prints is no answer
    tool, task, level, size = sys.argv[1:]
    training = trainings.gpt2(Size(**json.loads(size)))
    record = {"bare": bare, "lockstep": lockstep_recorder, "msprobe": msprobe_recorder}[tool]
    recorder = record(task, level)
    for line in sys.stdin:
        path, emulated = json.loads(line)
        with Emulation(emulated) if emulated else nullcontext():
            times = recorder(training, Path(path)) if path else bare("", "")(training, Path())
        answers.write(json.dumps(times) + "\n")
        answers.flush()


def bare(task: str, level: str) -> Record:
    """Record nothing."""

    def record(training: trainings.Training, path: Path) -> tuple[float, float]:
        start = time.perf_counter()
        training()
        taken = time.perf_counter() - start
        return taken, taken

    return record


def lockstep_recorder(task: str, level: str) -> Record:
    """Record one step with Lockstep; the recording is open for another, so that nothing waits for its end."""
    import lockstep

    def record(training: trainings.Training, path: Path) -> tuple[float, float]:
        start = time.perf_counter()
        recording = lockstep.record(path, model=training.model, steps="0:2", save=task, level=level)
        recording.start()
        training()
        free = time.perf_counter() - start
        recording.stop()
        return free, time.perf_counter() - start

    return record


def msprobe_recorder(task: str, level: str) -> Record:
    """Record one step with mindstudio-probe, which has one directory a process and writes before it returns.

    It watches the whole step, optimizer included, as Lockstep does.
    """
    from msprobe.pytorch import PrecisionDebugger

    debugger: list[PrecisionDebugger] = []

    def record(training: trainings.Training, path: Path) -> tuple[float, float]:
        if not debugger:
            debugger.append(PrecisionDebugger(task=task, dump_path=str(path), level=level))
        start = time.perf_counter()
        debugger[0].start(model=training.model)
        training()
        debugger[0].stop()
        debugger[0].step()
        taken = time.perf_counter() - start
        return taken, taken

    return record


if __name__ == "__main__":
    main()
