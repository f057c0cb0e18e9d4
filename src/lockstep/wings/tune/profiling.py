"""Profiling inside of the training's process: torch.profiler around the chosen steps, and marks of lines and modules.

All chosen steps but the last are timed with as little around them as the profiler can. In the last one each call of
torch is marked with the line and the module that it is from, which slows it: no time is taken from it. One profiler
runs through all of them: to start a second one while a range of the first is open breaks torch.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode
from torch.profiler import profile, record_function, supported_activities

from lockstep.capture.modules.live_modules import living
from lockstep.capture.modules.module_paths import clean_tree, without_wrappers
from lockstep.capture.recorder import Recorder
from lockstep.capture.rows.user_code import is_of_the_user
from lockstep.capture.settings.setup import rank_and_world_size
from lockstep.wings.tune.marks import BESIDE, LINE, MODULE, STEP, TRACE, VARIABLE

_Fast = torch._C._profiler._RecordFunctionFast


def begin(recorder: Recorder) -> None:
    """Profile the training of this process, as `lockstep profile` asked for."""
    request = json.loads(os.environ[VARIABLE])
    recorder.hear(Profiling(Path(request["into"]), *request["steps"]))


class Profiling:
    """Starts and stops the profiler as steps begin.

    Parameters
    ----------
    into
        The folder in which each rank leaves its own, `rank0`.
    first, end
        The first step that is profiled, and the one after the last.
    """

    def __init__(self, into: Path, first: int, end: int) -> None:
        self._into, self._first, self._end = into, first, end
        self._profiler: profile | None = None
        self._mark: record_function | None = None
        self._marks: ExitStack | None = None
        self._walls: dict[int, float] = {}
        self._began_s = time.perf_counter()
        self._compiled: dict[int, int] = {}
        self._number = 0
        self._problem = ""

    def step_begins(self, number: int) -> None:
        """Step `number` begins: the profiler goes on or stops."""
        if number > self._end:
            return
        self._walls[number - 1] = time.perf_counter() - self._began_s
        self._compiled[number] = len(_metrics())
        self._number = number
        self._end_step()
        if number == self._first:
            self._start()
        if number == self._end:
            self._stop()
        if self._profiler is not None:
            if number == self._end - 1:
                self._marks = _marking()
            self._mark = record_function(f"{STEP}{number}")
            self._mark.__enter__()
        self._began_s = time.perf_counter()

    def finish(self) -> None:
        """The training has ended: what was profiled by then is written."""
        self._end_step()
        self._stop()
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

    def _end_step(self) -> None:
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if self._marks is not None:
            self._marks.close()
            self._marks = None

    def _stop(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        self._folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(self._folder / TRACE))
        results = profiler.profiler.kineto_results if profiler.profiler is not None else None
        events = results.events() if results is not None else []
        flops = {one.correlation_id(): one.flops() for one in events if one.flops()}
        self._note(self._number, flops=flops)

    @property
    def _folder(self) -> Path:
        return self._into / f"rank{rank_and_world_size()[0]}"

    def _note(self, trained: int, **more: Any) -> None:
        """Leave beside the trace what no trace has: what was compiled, the threads, how many steps there were."""
        self._folder.mkdir(parents=True, exist_ok=True)
        file = self._folder / BESIDE
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        plain = [took for step, took in self._walls.items() if 0 < step < self._first]
        noted = before or {
            "plain_step_s": statistics.median(plain) if plain else None,
            "threads": torch.get_num_threads(),
            "cores": cores(),
            "device": device_type(),
            "compiles": list(_compiles_in(_metrics())),
            "compiled_before": self._compiled,
            "problem": self._problem,
        }
        file.write_text(json.dumps({**noted, **more, "trained": trained}), encoding="utf-8")


# ------------------------------------------------------------------------------------ modules and lines


def _marking() -> ExitStack:
    """Mark calls until the stack is closed; nothing where code is compiled, which would be compiled anew."""
    marks = ExitStack()
    if not _metrics():
        marks.enter_context(_Lines())
        _Modules(marks)
        for owner, name in _UNSEEN:
            marks.enter_context(_marked(owner, name))
    return marks


@contextmanager
def _marked(owner: Any, name: str) -> Iterator[None]:
    """Mark the calls of a function with the line of the script that makes them."""
    function = getattr(owner, name)

    @functools.wraps(function)
    def marked(*arguments: Any, **keywords: Any) -> Any:
        with _Fast(f"{LINE}{line_of_the_user()}"):
            return function(*arguments, **keywords)

    setattr(owner, name, marked)
    yield
    setattr(owner, name, function)


_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "broadcast",
    "reduce_scatter_tensor",
    "barrier",
)
_UNSEEN = (
    (torch.utils.data.dataloader._BaseDataLoaderIter, "__next__"),
    *((torch.distributed, name) for name in _COLLECTIVES if hasattr(torch.distributed, name)),
)
"""What a script calls that is not seen by `_Lines`: it takes no tensor, or hands it on below Python."""


class _Lines(TorchFunctionMode):
    """Marks each call of torch's Python API with the line of the script that makes it."""

    def __torch_function__(
        self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
    ) -> Any:
        """Run the call within a mark."""
        with _Fast(f"{LINE}{line_of_the_user()}"):
            return function(*arguments, **(keywords or {}))


class _Modules:
    """Marks each call of a module with its path."""

    def __init__(self, marks: ExitStack) -> None:
        self._paths = module_paths()
        self._open: list[Any] = []
        before = register_module_forward_pre_hook(self._enter)
        after = register_module_forward_hook(self._leave, always_call=True)
        marks.callback(after.remove)
        marks.callback(before.remove)

    def _enter(self, module: torch.nn.Module, inputs: Any) -> None:
        path = self._paths.get(id(without_wrappers(module)), type(module).__name__)
        mark = _Fast(f"{MODULE}{type(module).__name__}:{path}")
        mark.__enter__()
        self._open.append(mark)

    def _leave(self, module: torch.nn.Module, inputs: Any, outputs: Any) -> None:
        if self._open:
            self._open.pop().__exit__(None, None, None)


def line_of_the_user() -> str:
    """Return `line:file` of the innermost call that the user's code makes."""
    frame = sys._getframe(2)
    while frame.f_back is not None and not _is_of_the_user(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{frame.f_lineno}:{Path(frame.f_code.co_filename).absolute()}"


@functools.cache
def _is_of_the_user(file: str) -> bool:
    return not file.startswith("<") and is_of_the_user(str(Path(file).absolute()))


def module_paths() -> dict[int, str]:
    """The path of each module by its `id`; those of the largest model are plain."""
    modules = {id(one): one for one in map(without_wrappers, living(torch.nn.Module))}
    children = (child for one in modules.values() for child in one.children())
    inside = {id(without_wrappers(child)) for child in children}
    roots = [one for number, one in modules.items() if number not in inside]
    roots.sort(key=lambda root: -sum(one.numel() for one in root.parameters()))
    paths: dict[int, str] = {}
    seen: dict[torch.nn.Module, str] = {}
    for at, root in enumerate(roots):
        for path, module in clean_tree(root, type(root).__name__ if at else "", seen, {}):
            paths[id(module)] = path
    return paths


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
