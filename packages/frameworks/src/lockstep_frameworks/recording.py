"""The recording of a process that trains by another framework than PyTorch: its ranks, steps and end."""

from __future__ import annotations

import atexit
import os
import random
import re
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from lockstep.options import parse_ranks
from lockstep.recorder import (
    RECORD_VARIABLE,
    TRAINS,
    UNWRITTEN,
    Endings,
    Reached,
    SinkCall,
    leave_note,
    leave_trace,
    request_from,
    uncaught,
    warn,
)
from lockstep.recordings import EXIT_AFTER, MAX_STEPS, REWRITTEN, Options, Phase, Role, Sink
from lockstep.terminal import listed, words_of
from lockstep_frameworks.adapter import CodeSite

_BACKWARD = frozenset({Role.GRAD_OUTPUT, Role.GRAD_INPUT})


def not_possible(options: Options) -> list[str]:
    """The options that cannot be kept to without PyTorch: nothing is recorded rather than something else."""
    asked = {
        "--emulate": options.emulate, "--calibrate": options.calibrate, "--redact": options.redact,
        "--level aten": options.level == "aten", "--no-shuffle": options.no_shuffle,
        "--no-dropout": options.no_dropout, "loads": options.loads,
        "losses alone": options.until_losses_part, "before backward": options.before_backward,
    }  # fmt: skip
    return [name for name, given in asked.items() if given]


@dataclass(slots=True)
class _Run:
    """The calls of one site in the open step, and how often each of its tensors was seen: a loop runs it again."""

    calls: list[SinkCall]
    seen: dict[tuple[Role, int | None], int]


class FrameworkRecording:
    """Turns sites of code into calls of the ranks' sinks, while the training runs.

    directory, options: As `lockstep record` asks for.
    packages: The framework and its version first.
    name: What the framework is called.
    """

    def __init__(
        self, directory: Path, options: Options, packages: Mapping[str, str], name: str
    ) -> None:
        self.directory, self.options, self.name = directory, options, name
        self.failure, self.without_step = "", "no step was seen"
        self.world_size = 1
        self.ended: Callable[[], None] = lambda: None
        self.step_done: Callable[[], None] = lambda: None
        self.closed: Callable[[], None] = lambda: None
        self._packages = packages
        self._ranks = parse_ranks(options.ranks)
        self._sinks: dict[int, Sink] = {}
        self._runs: dict[int, dict[CodeSite, _Run]] = {}
        self._first: dict[int, dict[str, Any]] = {}
        self._classes: dict[str, str] = {}
        self._gaps: list[tuple[str, str]] = []
        self._lock = threading.RLock()
        self._is_closed = False

    # --- what is recorded -----------------------------------------------------------------------

    @property
    def is_done(self) -> bool:
        """Whether nothing is recorded any more."""
        if self.failure or self._is_closed:
            return True
        if self.options.max_steps is not None and not self._is_at_limit():
            return False  # steps are counted until the training is to end
        return bool(self._sinks) and all(sink.is_done for sink in self._sinks.values())

    def wants(self, rank: int) -> bool:
        """Whether the step that is open, or comes next, is recorded."""
        if self.failure or self._is_closed or (self._ranks is not None and rank not in self._ranks):
            return False
        sink = self._sink(rank)
        return sink.is_recording if sink.is_open else sink.step()

    def add(
        self,
        site: CodeSite,
        role: Role,
        name: str,
        array: Any,
        *,
        index: int | None = None,
        phase: Phase | None = None,
        argument: str = "",
    ) -> None:
        """Record one array of a site, as it runs now."""
        with self._lock:
            if not self.wants(site.rank):
                return
            call = self._call(site, role, index)
            if call is not None:
                call.record(role, name, array, index=index, phase=phase, argument=argument)
            if role is Role.PARAM:
                self._first[site.rank].setdefault(name, array)

    def loss(self, rank: int, value: Any) -> None:
        """Record the loss of a step."""
        with self._lock:
            if self.wants(rank):
                self._sink(rank).loss(value)

    def optimizer(
        self, rank: int, name: str, settings: Mapping[str, Any], parameters: list[str]
    ) -> None:
        """Note how an optimizer is set up."""
        with self._lock:
            if self.wants(rank):
                self._sink(rank).optimizer(name, settings, parameters)

    def module(
        self, rank: int, path: str, kind: str, count: int, settings: Mapping[str, Any]
    ) -> None:
        """Note a module."""
        self._classes[path] = kind
        with self._lock:
            if self.wants(rank):
                self._sink(rank).module(path, kind, count, settings)

    def numerics(self, rank: int, settings: Mapping[str, str]) -> None:
        """Note settings of the framework that say how numbers are computed."""
        with self._lock:
            if self.wants(rank):
                self._sink(rank).numerics(settings)

    def note_gap(self, what: str, reason: str) -> None:
        """Note what cannot be seen, in every rank."""
        if (what, reason) not in self._gaps:
            self._gaps.append((what, reason))
        for sink in self._sinks.values():
            sink.note_gap(what, reason)

    def _call(self, site: CodeSite, role: Role, index: int | None) -> SinkCall | None:
        """The call that a site is at now, which in a loop runs again; None for the backward of one that never ran."""
        run = self._runs[site.rank].get(site)
        if run is None:
            run = self._runs[site.rank][site] = _Run([], {})
        calls, key = run.calls, (role, index)
        count = run.seen.get(key, 0)
        run.seen[key] = count + 1
        if role in _BACKWARD or (role is Role.PARAM_GRAD and site.phase is Phase.FORWARD):
            return calls[min(count, len(calls) - 1)] if calls else None
        if count >= len(calls):
            parent = None
            if site.parent is not None:
                above = self._runs[site.rank].get(site.parent)
                parent = above.calls[-1] if above is not None and above.calls else None
            calls.append(
                self._sink(site.rank).open_call(
                    site.module, site.op, phase=site.phase, kind=site.kind,
                    arguments=site.arguments, stack=site.stack, parent=parent,
                    module_class=site.module_class,
                )
            )  # fmt: skip
        return calls[count]

    def _sink(self, rank: int) -> Sink:
        if rank not in self._sinks:
            self._sinks[rank] = Sink(
                self.directory, self._packages, rank=rank, world_size=self.world_size,
                options=self.options, of_command=True,
            )  # fmt: skip
            for gap in self._gaps:
                self._sinks[rank].note_gap(*gap)
            self._forget(rank)
        return self._sinks[rank]

    def _forget(self, rank: int) -> None:
        self._runs[rank], self._first[rank] = {}, {}

    # --- steps ----------------------------------------------------------------------------------

    def end_step(self, rank: int) -> None:
        """An update has ended the step of a rank."""
        with self._lock:
            if self.failure or self._is_closed:
                return
            sink = self._sink(rank)
            if self.wants(rank) and sink.manifest is not None and not sink.manifest.steps:
                sink.parameters(self._first[rank], self._classes)
            if sink.manifest is not None and not sink.manifest.steps:
                leave_note(self.directory, TRAINS, sink.manifest.rank)
                self._say_who_else_trains(sink.manifest.rank)
            sink.end_step()
            self._forget(rank)
            if sink.failure:
                self.fail_because(sink.failure)
        self.step_done()
        if self.is_done:
            for sink in self._sinks.values():  # what comes later is trained unseen, and not counted
                sink.counts_to_the_end = self._is_at_limit()
            self.ended()

    def _say_who_else_trains(self, rank: str) -> None:
        with_torch = "lockstep.capture.recorder" in sys.modules and not self.options.apart
        if with_torch and rank.startswith("rank0-"):
            warn(
                f"this process trains with PyTorch too; the {self.name} training is recorded as {rank}"
            )

    def end_process_if_asked(self) -> None:
        """End the training by `SystemExit(0)`, as a script that is done would, where an option asks to."""
        why = f"{MAX_STEPS} {self.options.max_steps}" if self._is_at_limit() else ""
        if self.options.exit_after and self.is_done and not self.failure and not self._is_closed:
            why = EXIT_AFTER
        if why:
            self.finish(why)
            raise SystemExit(0)

    def _is_at_limit(self) -> bool:
        """Whether the training has made the last step that it is to make."""
        limit = self.options.max_steps
        return limit is not None and self._steps_counted() >= limit

    def _steps_counted(self) -> int:
        return max((sink.steps_counted for sink in self._sinks.values()), default=0)

    # --- the end --------------------------------------------------------------------------------

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed: stop recording, let the training go on."""
        at = traceback.extract_tb(error.__traceback__)[-1:]
        where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in at)
        self.fail_because(f"{type(error).__name__}: {words_of(error)}{where}")

    def fail_because(self, why: str) -> None:
        """The same, in words."""
        if not self.failure:
            self.failure = why
            warn(f"recording stopped: {why}; the training goes on")
            leave_note(self.directory, UNWRITTEN, " ".join(why.split()))
            self.ended()

    def listen_for_the_end(self) -> None:
        """Close the recording when the process ends, however it does."""
        atexit.register(self.finish_at_exit)
        Endings(self.finish, self.save).listen()
        os.register_at_fork(after_in_child=self._abandon)

    def finish_at_exit(self) -> None:
        """The process ends."""
        self.finish(uncaught())

    def finish(self, ended_by: str = "") -> None:
        """Close all ranks."""
        if self._is_closed:
            return
        self._is_closed = True
        if not any(sink.manifest and sink.manifest.steps for sink in self._sinks.values()):
            steps = self._steps_counted()
            if steps:
                leave_trace(self.directory, Reached.STEPS, str(steps))
            else:
                leave_trace(self.directory, Reached.FRAMEWORK, self._why_nothing())
        for sink in self._sinks.values():
            if self.failure:
                sink.failure = sink.failure or self.failure
            if sink.is_open:
                sink.drop_step()
            sink.close(ended_by=ended_by)
        self.closed()

    def _why_nothing(self) -> str:
        hidden = (
            gap for gap in self._gaps if gap[0] != REWRITTEN
        )  # that is recorded as it is written
        what, reason = next(hidden, ("", ""))
        if what:
            return f"{self.name} was imported, and {what} is not seen: {reason}"
        return (
            f"{self.name} was imported, but {self.without_step};"
            " for other loops use lockstep.capture.sink in the script"
        )

    def save(self) -> None:
        """Write what there is by now."""
        for sink in self._sinks.values():
            sink.save()

    def _abandon(self) -> None:
        """After a fork: all of it is the parent's."""
        self._is_closed = True
        self.ended()


def asked() -> tuple[Path, Options] | None:
    """What `lockstep record` asks of this process; None where it does not."""
    text = os.environ.get(RECORD_VARIABLE)
    return request_from(text) if text else None


def packages_of(framework: ModuleType, *others: str) -> dict[str, str]:
    """Names and versions of the packages that compute, the framework first, then those of `others` that are there."""
    found = {framework.__name__: str(framework.__version__)}
    for name in (*others, "numpy", "ml_dtypes"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def why_too_old(framework: ModuleType, oldest: tuple[int, int]) -> str:
    """Why trainings of an installed framework cannot be recorded, with what to do; "" where they can.

    framework: Its module, with a `__version__`.
    oldest: Major and minor number of the first release that can be recorded.
    """
    numbers = tuple(map(int, re.findall(r"\d+", str(framework.__version__))[:2]))
    if numbers >= oldest:
        return ""
    least = ".".join(map(str, oldest))
    return (
        f"it is {framework.__version__}, and {least} is the oldest release that can be; install"
        f" {framework.__name__}>={least}, or 'lockstep-numerics[{framework.__name__}]'"
    )


def arm(
    name: str, packages: Mapping[str, str], why: str, seed: Callable[[int], None]
) -> FrameworkRecording | None:
    """The recording that `lockstep record` asks of this process, which ends with it; None where there is to be none.

    name, packages: As of `FrameworkRecording`.
    why: Why trainings of this release cannot be recorded, or "".
    seed: Fixes the framework's random numbers; Python's and NumPy's are fixed before.
    """
    if (request := asked()) is None:
        return None
    directory, options = request
    if impossible := not_possible(options):
        why = f"{listed(impossible, 3)} cannot be kept to in a {name} training; leave it out"
    if why:
        why = f"{name} is not recorded: {why}"
        leave_trace(directory, Reached.FRAMEWORK, why)
        warn(why)
        return None
    words = f"{name} was imported, and the process did not end by itself"
    leave_trace(directory, Reached.FRAMEWORK, words)
    if options.seed is not None:
        random.seed(options.seed)
        np.random.seed(options.seed)
        seed(options.seed)
    recording = FrameworkRecording(directory, options, packages, name)
    recording.listen_for_the_end()
    return recording
