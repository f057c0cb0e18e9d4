"""How a training of any framework is written as a recording: calls and their arrays over NumPy. No torch here."""

from __future__ import annotations

import json
import os
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lockstep.capture.process.lineage import command_line, lineage
from lockstep.capture.recording.apart import StepsApart
from lockstep.capture.recording.rank_directories import as_json, claim_rank_directory, copy_of
from lockstep.capture.sink_call import Shared, SinkCall
from lockstep.capture.source_code.code_frames import frames_here
from lockstep.capture.source_code.user_code import loaded_sources
from lockstep.core.errors import LockstepError, UsageError
from lockstep.core.formulas import Stored
from lockstep.core.manifest import (
    SOURCES_LEFT_OUT,
    NotSeen,
    OptimizerSetup,
    Options,
    RankManifest,
    StepSummary,
)
from lockstep.core.records import Frame
from lockstep.core.secrets import masked_command
from lockstep.core.selection import SiteFilter, StepSelection
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.sketch import SKETCH_SIZE, sketch_of
from lockstep.core.variables import known_variables
from lockstep.kernels.digest import digest_of_bytes
from lockstep.kernels.numbers import measured_array, statistics_of
from lockstep.store import schema
from lockstep.store.claim import Claim
from lockstep.store.content_rows import content_row
from lockstep.store.directory import RunDirectory
from lockstep.store.small_tensors import can_wait
from lockstep.store.tensors import RawTensor, can_store
from lockstep.store.writer import RankWriter

Array = npt.NDArray[Any]

_MEASURED = {"float32": np.float32, "float64": np.float64, "bfloat16": np.uint16}


class _Event(NamedTuple):
    """What happened in a step: a call began, or one of its arrays was seen. Made for each record, so none is slower."""

    call: SinkCall
    role: Role | None = None
    phase: Phase = Phase.FORWARD
    place: int = 0
    name: str = ""
    occurrence: int = 0
    content: int = -1
    argument: str = ""


class Sink:
    """Writes one rank of a recording.

    A step goes to the disk when it ends; one that is dropped leaves no call. Arrays are measured when they are
    recorded, and may change afterwards.

    Parameters
    ----------
    directory
        The recording.
    framework
        Names and versions of the packages that compute, the framework first: `{"numpy": "2.4.0"}`.
    rank, world_size
        Which process this is, of how many.
    options
        What is recorded; `level`, and all that changes a training, is for whoever records into the sink.
    of_command
        Whether `lockstep record` has made the recording; else it is made here, and closed.
    force
        Whether a recording that is there is replaced.

    Raises
    ------
    OutputExistsError
        If the directory is taken or cannot be written.
    UsageError
        If the steps of `options` are none.
    """

    def __init__(
        self,
        directory: str | Path,
        framework: Mapping[str, str],
        *,
        rank: int = 0,
        world_size: int = 1,
        options: Options | None = None,
        of_command: bool = False,
        force: bool = False,
    ) -> None:
        self.directory = Path(directory).absolute()
        self.options = options or Options()
        self.steps_counted = 0
        self.counts_to_the_end = True
        self.failure = ""
        self.sites = SiteFilter(tuple(self.options.only), tuple(self.options.skip))
        self._framework, self._rank, self._world_size = dict(framework), rank, world_size
        self._selection = StepSelection.parse(self.options.steps)
        self._run: RunDirectory | None = None
        if not of_command:
            command = command_line()
            self._run = RunDirectory.create(self.directory, command, self.options, force=force)
            self._run.started()
        self._apart = StepsApart(self.directory, self.options)
        self._writer: RankWriter | None = None
        self._closing: RankWriter | None = None
        self._claim: Claim | None = None
        self.manifest: RankManifest | None = None
        self._is_open = self._is_recorded = False
        self._gaps: list[NotSeen] = []
        if self.options.save == "program":
            reason = "no operator of this framework can be run again, so there are sketches alone"
            self._gaps.append(NotSeen(SOURCES_LEFT_OUT, reason))
        self._optimizers: list[OptimizerSetup] = []
        self._modules: dict[str, tuple[Any, ...]] = {}
        self._begin_rows()
        self._forget_step()

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close(ended_by="" if kind is None else f"the exception {kind.__name__}")

    # --- steps ----------------------------------------------------------------------------------

    @property
    def is_recording(self) -> bool:
        """Whether a step is open that is recorded."""
        return self._is_open and self._is_recorded and not self.failure

    @property
    def is_open(self) -> bool:
        """Whether a step is open, recorded or not."""
        return self._is_open

    @property
    def is_done(self) -> bool:
        """Whether no step is recorded any more."""
        return bool(self.failure) or not self._selection.any_from(self.steps_counted)

    def step(self) -> bool:
        """Begin the next step, and end the one that is open; returns whether it is recorded."""
        self.end_step()
        self._is_open = True
        chosen = self.steps_counted in self._selection and not self.failure
        self._is_recorded = chosen and (not self.options.apart or self._apart.has_room())
        return self._is_recorded

    def end_step(self) -> None:
        """End the open step: what was recorded of it is written."""
        if not self._is_open:
            return
        if self._is_recorded and self._events and not self.failure:
            self._write_step()
        self._is_open = False
        self._forget_step()
        self.steps_counted += 1
        if self.options.apart:
            writing = self._closing is not None and self._closing.waiting_chunks > 0
            self._apart.step_ended(writing=writing)

    def drop_step(self) -> None:
        """Forget the open step: what was recorded of it turned out to be no training."""
        self._is_open = False
        self._forget_step()

    def _forget_step(self) -> None:
        self._events: list[_Event] = []
        self._first: list[_Event] = []

    # --- what is recorded -----------------------------------------------------------------------

    def open_call(
        self,
        module: str,
        op: str,
        *,
        phase: Phase = Phase.FORWARD,
        kind: CallKind = CallKind.OPERATOR,
        arguments: Mapping[str, Any] | None = None,
        stack: tuple[Frame, ...] | None = None,
        parent: SinkCall | None = None,
        module_class: str = "",
    ) -> SinkCall:
        """Begin a call; see `SinkCall` for the parameters. It is called from here unless `stack` says where."""
        wanted = self.is_recording and self.sites.wants(module, op)
        frames = (frames_here() if stack is None else stack) if wanted else ()
        call = SinkCall(
            module, op, kind, phase, dict(arguments or {}), frames, parent, module_class,
            self if wanted else None,
        )  # fmt: skip
        if wanted:
            self._events.append(_Event(call))
        return call

    def parameters(
        self, named: Mapping[str, Any], classes: Mapping[str, str] | None = None
    ) -> None:
        """Record the initial parameters by full name, in the first recorded step; `classes` are those of modules."""
        calls: dict[str, SinkCall] = {}
        for name, array in named.items() if self.is_recording else ():
            module = name.rpartition(".")[0]
            if module not in calls:
                op = (classes or {}).get(module, "parameters")
                if not self.sites.wants(module, op):
                    continue
                calls[module] = SinkCall(
                    module, op, CallKind.INIT, Phase.INIT, {}, (), None, op, self
                )
                self._first.append(_Event(calls[module]))
            content = self._content(array)
            if content is not None:
                call = calls[module]
                index = call.counts[Role.PARAM, 0]
                call.counts[Role.PARAM, 0] += 1
                self._first.append(
                    _Event(call, Role.PARAM, Phase.INIT, index, name, content=content)
                )

    def loss(self, value: Any, name: str = "loss") -> None:
        """Record a loss, a number."""
        call = self.open_call("", "loss", kind=CallKind.LOSS)
        call.record(Role.LOSS, name, value)

    def optimizer(
        self, name: str, settings: Mapping[str, Any], parameters: Sequence[str] = ()
    ) -> None:
        """Note how an optimizer is set up in the open step, with the names of the parameters that it updates."""
        if self.is_recording:
            index = sum(one.step == self.steps_counted for one in self._optimizers)
            setup = OptimizerSetup(
                index, self.steps_counted, name, [dict(settings)], [list(parameters)]
            )
            self._optimizers.append(setup)

    def module(self, path: str, kind: str, count: int, settings: Mapping[str, Any]) -> None:
        """Note a module: its path, class, number of parameters and plain settings."""
        self._modules.setdefault(path, (path, kind, count, True, json.dumps(settings, default=str)))

    def numerics(self, settings: Mapping[str, str]) -> None:
        """Note settings of the process that say how numbers are computed; to be called in an open step."""
        if self.manifest is not None:
            self.manifest.numerics |= settings

    def note_gap(self, what: str, reason: str) -> None:
        """Note what cannot be seen, and why."""
        gap = NotSeen(what, reason)
        if gap not in self._gaps:
            self._gaps.append(gap)

    def _record(
        self,
        call: SinkCall,
        role: Role,
        name: str,
        array: Any,
        index: int | None,
        phase: Phase | None,
        argument: str,
        axes: str,
    ) -> None:
        content = self._content(array) if self.is_recording else None
        if content is None:
            return
        if index is None:
            index = sum(count for (one, _), count in call.counts.items() if one is role)
        occurrence = call.counts.get((role, index), 0)
        call.counts[role, index] = occurrence + 1
        if axes:
            call.arguments = {**call.arguments, f"axes.{name}": axes}
        self._events.append(
            _Event(call, role, phase or call.phase, index, name, occurrence, content, argument)
        )

    # --- contents -------------------------------------------------------------------------------

    def _content(self, array: Any) -> int | None:
        """The number of the content of an array; None for what no recording holds, as texts."""
        if isinstance(array, Shared):
            return array.content_in(self, self._content)
        value = np.asarray(array, order="C")
        if not value.dtype.isnative:
            value = value.astype(value.dtype.newbyteorder("="))
        dtype = _name_of(value.dtype)
        if not can_store(dtype):
            return None
        writer = self._writer or self._open()
        data = value.reshape(-1).view(np.uint8)
        sketched, whole = self.options.save != "stats", self.options.save == "tensors"
        if can_wait(dtype) and value.size <= SKETCH_SIZE:
            number, is_new = self._numbered(dtype, value.shape, digest := digest_of_bytes(data))
            if is_new:
                writer.add_small_content(
                    (number, dtype, value.shape, "cpu", digest, data.tobytes(), sketched, whole)
                )
            return number
        digest, statistics, sketch = _measured(value, data, sketched=sketched)
        number, is_new = self._numbered(dtype, value.shape, digest)
        if is_new:
            shard = (
                writer.add_tensor(RawTensor(number, dtype, (value.size,), data)) if whole else None
            )
            place = None if shard is None else Stored(shard, number)
            kept = digest, statistics, sketch, place
            writer.add_content(content_row(number, dtype, value.shape, "cpu", *kept))
        return number

    def _numbered(self, dtype: str, shape: tuple[int, ...], digest: str) -> tuple[int, bool]:
        key = (dtype, shape, digest)
        known = self._contents.get(key)
        if known is not None:
            return known, False
        self._contents[key] = len(self._contents)
        return self._contents[key], True

    # --- writing --------------------------------------------------------------------------------

    def _begin_rows(self) -> None:
        """Nothing is numbered yet in the directory that comes."""
        self._contents: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._known_stacks: dict[int, int] = {}
        """By the identity of the stacks that are kept in `_stacks`."""
        self._modules_written = 0
        self._next_call, self._sequence = 0, 0

    def _open(self) -> RankWriter:
        manifest = RankManifest(
            schema.SCHEMA_VERSION, f"rank{self._rank}", self._world_size, os.getpid(),
            masked_command(command_line()), platform.python_version(), lineage=lineage(),
            devices=["cpu"], packages=dict(self._framework),
            platform={"system": platform.platform(), "machine": platform.machine(), "cores": str(os.cpu_count())},
            environment=known_variables(os.environ), sources=loaded_sources(),
        )  # fmt: skip
        folder = claim_rank_directory(self.directory, manifest)
        if self.options.apart:
            self._apart.begin(folder)
        with suppress(LockstepError, OSError):  # somebody looks whether it is free
            self._claim = Claim(folder)
        self.manifest = manifest
        self._writer = RankWriter(
            folder, memory_bytes=self.options.memory_bytes, max_bytes=self.options.max_bytes
        )
        return self._writer

    def _write_step(self) -> None:
        writer, manifest = self._writer, self.manifest
        assert writer is not None
        assert manifest is not None
        numbers: Counter[tuple[str, ...]] = Counter()
        events, rows = [*self._first, *self._events], list[tuple[Any, ...]]()
        calls = [event.call for event in events if event.role is None]
        for event in events:
            self._sequence += 1
            if event.role is None:
                self._add_call(writer, event.call, numbers)
                continue
            rows.append(
                (event.call.id, event.phase.value, event.role.value, event.place, event.name,
                 self._sequence, event.occurrence, event.content, event.argument, "", None)
            )  # fmt: skip
        writer.add_records(rows)
        for row in list(self._modules.values())[self._modules_written :]:
            writer.add_module(row)
        self._modules_written = len(self._modules)
        manifest.steps.append(StepSummary(self.steps_counted, complete=True, calls=len(calls)))
        manifest.not_seen, manifest.optimizers = list(self._gaps), list(self._optimizers)
        manifest.sources = loaded_sources()
        if self.options.apart:
            self._close_rank("")
        else:
            writer.step_ended(self.steps_counted, partial(as_json, copy_of(manifest)))
        self.failure = self.failure or writer.failure

    def _add_call(
        self, writer: RankWriter, call: SinkCall, numbers: Counter[tuple[str, ...]]
    ) -> None:
        call.id, self._next_call = self._next_call, self._next_call + 1
        place = (call.kind.value, call.phase.value, call.module, call.op)
        stack = self._stack_number(writer, call.stack)
        writer.add_call(
            (call.id, self.steps_counted, call.kind.value, call.phase.value, call.module,
             call.module_class, call.op, numbers[place], call.parent.id if call.parent else -1,
             self._sequence, stack, json.dumps(call.arguments, default=str), False, "", schema.NO_CONTENT)
        )  # fmt: skip
        numbers[place] += 1

    def _stack_number(self, writer: RankWriter, stack: tuple[Frame, ...]) -> int:
        """The number of a stack, which is written once; -1 for none. To hash frames takes longer than to know them."""
        number = self._known_stacks.get(id(stack))
        if number is None and stack:
            number = self._stacks.get(stack)
            if number is None:
                number = self._stacks[stack] = self._known_stacks[id(stack)] = len(self._stacks)
                writer.add_stack(number, stack)
        return -1 if number is None else number

    def _close_rank(self, ended_by: str) -> None:
        """The directory of the rank is whole once the writing thread is done."""
        writer, manifest = self._writer, self.manifest
        if writer is None or manifest is None:
            return
        manifest.not_seen = list(self._gaps)
        manifest.trained = self.steps_counted if self.counts_to_the_end else None
        manifest.ended_by = ended_by
        before, self._closing, self._writer = self._closing, writer, None
        failure = self.failure

        def last_manifest() -> dict[str, Any]:
            if before is not None:
                before.wait()
            manifest.state = "complete"
            manifest.stopped_because = writer.failure or failure
            return as_json(manifest)

        manifest.unmatched = self.sites.unmatched()
        writer.end(last_manifest)
        if self._claim is not None:
            self._claim.release()
            self._claim = None
        self._begin_rows()

    def close(self, *, ended_by: str = "") -> None:
        """End the open step and the recording, and wait until it is on disk; safe to call twice.

        Raises
        ------
        UsageError
            If something could not be written.
        """
        if ended_by:
            self.drop_step()
        self.end_step()
        self._close_rank(ended_by)
        if self._closing is not None:
            self._closing.wait()
            self.failure = self.failure or self._closing.failure
        if self._run is not None:
            self._run.finish(exit_code=0)
            self._run = None
            if self.failure:
                raise UsageError(f"{self.directory}: recording stopped: {self.failure}")

    def save(self) -> None:
        """Write what there is by now, and wait for it; from any thread."""
        writer = self._writer or self._closing
        if writer is not None:
            writer.save()


@cache
def _name_of(dtype: np.dtype[Any]) -> str:
    """NumPy takes long to name a dtype."""
    return str(dtype)


def _measured(value: Array, data: npt.NDArray[np.uint8], *, sketched: bool) -> tuple[Any, ...]:
    """Digest, statistics and packed sketch of an array."""
    kind = _MEASURED.get(str(value.dtype))
    if kind is not None:
        digest, statistics, sketch = measured_array(data.view(kind), with_sketch=sketched)
    else:
        digest, statistics = digest_of_bytes(data), statistics_of(value)
        sketch = sketch_of(value) if sketched and value.dtype.kind in "fc" else None
    return digest, statistics, None if sketch is None else sketch.astype("<f8").tobytes()
