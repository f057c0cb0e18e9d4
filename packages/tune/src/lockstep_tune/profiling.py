"""Profiling inside of the training's process: torch.profiler around the chosen steps, and marks of lines and modules.

The chosen steps are timed with as little around them as the profiler can. In the step before them, or in the last one
where there is none before, each call of torch is marked with the line and the module that it is from, which slows it:
no time is taken from it. One profiler runs through all of them: to start a second one while a range of the first is
open breaks torch. Beside it, a thread samples which call holds the interpreter.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.profiler import profile, record_function, supported_activities

from lockstep.recorder import Recorder, rank_and_world_size
from lockstep_tune.marking import Marks, mark_checkpoints, note_threads
from lockstep_tune.marks import BESIDE, STEP, TRACE, VARIABLE
from lockstep_tune.stacks import LEAST_S, Sampler, Stacks


def begin(recorder: Recorder) -> None:
    """Profile the training of this process, as `lockstep profile` asked for."""
    request = json.loads(os.environ[VARIABLE])
    profiling = Profiling(Path(request["into"]), *request["steps"])
    mark_checkpoints()
    note_threads(profiling.threads_set)
    recorder.hear(profiling)


_AFTER = 3
"""So many steps after those that are profiled are timed too, as the training is without a profiler."""


class Profiling:
    """Starts and stops the profiler as steps begin.

    into: The folder in which each rank leaves its own, `rank0`.
    first, end: The first step that is timed, and the one after the last.
    """

    def __init__(self, into: Path, first: int, end: int) -> None:
        self._into, self._first, self._end = into, first, end
        self._marked = first - 1 if first > 0 else end - 1
        self._profiler: profile | None = None
        self._mark: record_function | None = None
        self._marks: Marks | None = None
        self._stacks = Stacks()
        self._sampler: Sampler | None = None
        self._walls: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._began_s, self._waited_s = time.perf_counter(), waited_s()
        self._compiled: dict[int, int] = {}
        self._number = 0
        self._validates: list[int] = []
        self._problem = ""
        self.threads_set: dict[str, Any] = {}

    def step_begins(self, number: int) -> None:
        """Step `number` begins: the profiler goes on or stops."""
        if number > self._end + _AFTER:
            return
        self._walls[number - 1] = time.perf_counter() - self._began_s
        self._number = number
        if number > self._end:
            self._began_s = time.perf_counter()
            return
        self._end_step()
        self._waits[number - 1] = _most_waited_s(self._waited_s, waited_s())
        self._compiled[number] = len(_metrics())
        if number == min(self._first, self._marked):
            self._start()
        if number == self._end:
            self._stop()
        if self._profiler is not None:
            if number == self._marked and not _metrics():  # marks would have code compiled anew
                self._marks = Marks(self._stacks)
            self._mark = record_function(f"{STEP}{number}")
        self._began_s, self._waited_s = time.perf_counter(), waited_s()
        if self._mark is not None:
            self._mark.__enter__()
            if self._sampler is not None:
                self._sampler.step_begins(number)

    def finish(self) -> None:
        """The training has ended, or is ended: what was profiled by then is written, without the step under way."""
        self._end_step()
        self._stop(unfinished=self._number)
        self._note(self._number)

    def _start(self) -> None:
        self._profiler = profile(
            activities=supported_activities(), record_shapes=True, profile_memory=True,
            with_flops=True,
        )  # fmt: skip
        try:
            self._profiler.start()
        except RuntimeError as error:  # the script profiles by itself
            self._profiler, self._problem = None, str(error).partition("\n")[0]
            return
        plain = self._plain_steps()
        self._sampler = Sampler(self._stacks, statistics.median(plain) if plain else LEAST_S)

    def _end_step(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if self._marks is not None:
            self._marks.close()
            self._validates = self._marks.validates
            self._marks = None

    def _stop(self, unfinished: int | None = None) -> None:
        profiler, self._profiler = self._profiler, None
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()
        if profiler is None:
            return
        profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._folder / TRACE))
        results = profiler.profiler.kineto_results if profiler.profiler is not None else None
        events = results.events() if results is not None else []
        flops = {one.correlation_id(): one.flops() for one in events if one.flops()}
        self._note(
            self._number,
            flops=flops,
            unfinished=unfinished,
            wanted=self._end - self._first,
            samples=[] if sampler is None else sampler.samples,
            samples_every_us=0.0 if sampler is None else 1e6 * sampler.every_s,
            stacks=self._stacks.told(),
            validates=self._validates,
            waits_s=self._waits,
            walls_s=self._walls,
            threads_set=self.threads_set.get("line", ""),
        )

    def _plain_steps(self) -> list[float]:
        """How long steps before those that are profiled took, and some after them, in seconds; not the first one."""
        begins = min(self._first, self._marked)
        return [one for step, one in self._walls.items() if 0 < step < begins or step >= self._end]

    @property
    def _folder(self) -> Path:
        return self._into / f"rank{rank_and_world_size()[0]}"

    def _note(self, trained: int, **more: Any) -> None:
        """Leave beside the trace what no trace has: what was compiled, the threads, how many steps there were."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / BESIDE
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        plain = self._plain_steps()
        more["plain_step_s"] = statistics.median(plain) if plain else None
        noted = before or {
            "threads": torch.get_num_threads(),
            "cores": cores(),
            "device": device_type(),
            "compiles": list(_compiles_in(_metrics())),
            "compiled_before": self._compiled,
            "problem": self._problem,
        }
        file.write_text(json.dumps({**noted, **more, "trained": trained}), encoding="utf-8")


# -------------------------------------------------------------------------------------- the machine


def cores() -> int:
    """Cores that this process may compute on: one for all threads of a core, shared with the ranks of this machine."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = {_siblings(cpu) for cpu in os.sched_getaffinity(0)}
    return max(len(cores) // max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1), 1)


def _siblings(cpu: int) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
    except OSError:
        return str(cpu)


def waited_s() -> dict[str, float]:
    """Seconds for which each thread of this process was ready and had no core; none where the system does not tell."""
    found = {}
    for one in Path("/proc/self/task").glob("*/schedstat"):
        try:
            found[one.parent.name] = int(one.read_text(encoding="ascii").split()[1]) / 1e9
        except (OSError, ValueError, IndexError):  # the thread has ended
            continue
    return found


def _most_waited_s(before: dict[str, float], after: dict[str, float]) -> float:
    """Seconds of the thread that waited longest: the others wait for it."""
    return max(
        (waited - before.get(thread, waited) for thread, waited in after.items()), default=0.0
    )


def device_type() -> str:
    """Return the type of the accelerator, "cpu" where there is none."""
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if device is None else device.type


def _metrics() -> list[Any]:
    """What Dynamo has compiled so far."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return [] if dynamo is None else list(dynamo.get_compilation_metrics())


def _compiles_in(metrics: list[Any]) -> Iterator[dict[str, Any]]:
    for number, one in enumerate(metrics):
        if one.co_filename:
            yield {
                "number": number,
                "function": one.co_name,
                "file": one.co_filename,
                "line": one.co_firstlineno,
                "again_because": one.recompile_reason or "",
                "breaks": sorted(one.restart_reasons or ()),
                "took_s": one.entire_frame_compile_time_s or 0.0,
            }
