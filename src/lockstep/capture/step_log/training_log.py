"""Write the step log of this rank: one small row for each step, recorded or not, until the training ends.

Rows wait until a recorded step has made the rank's directory. From then on each is written once the step after it
begins; numbers of devices other than the host are read one step later still, so that nothing waits for the device.
Whatever fails in here ends the log, never the training or its recording.
"""

from __future__ import annotations

import functools
import math
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.optimizer import Optimizer

from lockstep.capture.ends.losses_after_steps import LaterLosses
from lockstep.capture.patching.patches import Patch
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.silence import Silence
from lockstep.capture.step_log.drawn_batches import DrawnBatches
from lockstep.capture.step_log.update_facts import (
    MOST_GROUPS,
    generator_digests,
    gradient_norms,
    settings_of,
    settings_of_scaler,
    takes_norms,
)
from lockstep.core.manifest import STEP_LOG, NotSeen
from lockstep.core.step_rows import BY_LOSS, StepRow
from lockstep.core.text import words_of
from lockstep.devices.methods import item
from lockstep.devices.tensor_numbers import dtype_name
from lockstep.store.step_log import MOST_ROWS, StepLogWriter


@dataclass(slots=True)
class _OpenRow:
    """The step that is under way; `norms` lie where the gradients do."""

    step: int
    settings: dict[str, float | str] = field(default_factory=dict)
    skipped: bool = False
    norms: list[torch.Tensor] = field(default_factory=list)
    batches: dict[str, str] = field(default_factory=dict)
    generators: dict[str, str] = field(default_factory=dict)
    seconds: float | None = None


class TrainingLog:
    """Hears of each step of a training.

    recording: Of this process's rank.
    step_now: Number of the step that is under way.
    """

    def __init__(self, recording: RankRecording, step_now: Callable[[], int]) -> None:
        self._recording, self._step_now = recording, step_now
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._losses = LaterLosses(step_now)
        self._batches: DrawnBatches | None = None
        if not recording.options.redact:  # a digest confirms a guess at what was trained on
            self._batches = DrawnBatches(self._hears, self._fail)
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._follow_losses: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._plateaus = Patch(ReduceLROnPlateau, "step", self._wrap_plateau)
        self._devices: set[str] = set()
        self._open: _OpenRow | None = None
        self._closed: deque[_OpenRow] = deque()
        self._settings: dict[str, float | str] = {}
        self._known_losses: dict[int, list[tuple[float, torch.dtype]]] = {}
        self._writer: StepLogWriter | None = None
        self._is_over = self._trains = False
        self._closed_s: float | None = None

    # --- life ----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begin to listen, before all other taps."""
        self._losses.listen()
        self._plateaus.put()
        if self._batches is not None:
            self._batches.listen()

    def step_begins(self, number: int) -> None:
        """Step `number` begins: an optimizer was made, or the step before has ended."""
        if not self._trains:
            self._trains = True
            self._thread = threading.get_ident()
            self._losses.of_this_thread()
            if self._batches is not None:
                self._batches.of_this_thread()
        self._hears()

    def finish(self) -> None:
        """The training has ended, or the process does: write all."""
        if not self._is_over and self._is_here:
            with Silence(self._fail):
                self._close(at_end=True)
        self.stop()

    def stop(self) -> None:
        """Listen no more, and let go."""
        self._is_over = True
        self._losses.stop()
        self._plateaus.take_back()
        if self._batches is not None:
            self._batches.stop()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self._closed.clear()
        self._known_losses.clear()

    # --- what is heard -------------------------------------------------------------------------------------------

    def updated(self, optimizer: Optimizer) -> None:
        """An optimizer has made its step."""
        if self._is_over or not self._is_here:
            return
        with Silence(self._fail):
            row = self._hears()
            self._note(row, optimizer)
            if takes_norms(row.step):
                row.norms += gradient_norms(optimizer)[: MOST_GROUPS + 1 - len(row.norms)]

    def update_skipped(self, optimizer: Optimizer) -> None:
        """A gradient scaler has left an optimizer's step out."""
        if self._is_over or not self._is_here:
            return
        with Silence(self._fail):
            row = self._hears()
            self._note(row, optimizer)
            row.skipped = True

    def loss_scaled(self, scaler: Any) -> None:
        """A gradient scaler has put its factor into the loss of this step."""
        if not self._is_over and self._is_here:
            with Silence(self._fail):
                self._hears().settings |= settings_of_scaler(scaler)

    def _wrap_plateau(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scheduler: ReduceLROnPlateau, *arguments: Any, **named: Any) -> Any:
            with Silence(self._fail):
                self._follow_losses.add(scheduler.optimizer)
            return original(scheduler, *arguments, **named)

        return step

    @property
    def _is_here(self) -> bool:
        return os.getpid() == self._process and threading.get_ident() == self._thread

    def _note(self, row: _OpenRow, optimizer: Optimizer) -> None:
        number = self._numbers.setdefault(optimizer, len(self._numbers))
        prefix = f"{number}." if number else ""
        row.settings |= settings_of(optimizer, prefix)
        if optimizer in self._follow_losses:
            row.settings[prefix + BY_LOSS] = 1.0
        row.generators = generator_digests()
        if not self._devices:
            parameters = (one for group in optimizer.param_groups for one in group["params"])
            self._devices = {one.device.type for one in parameters}

    # --- rows ----------------------------------------------------------------------------------------------------

    def _hears(self) -> _OpenRow:
        """The row of the step that is under way; the one before is closed."""
        step, row = self._step_now(), self._open
        if row is None or row.step != step:
            if row is not None:
                with Silence(self._fail):
                    self._close(at_end=False)
            row = self._open = _OpenRow(step)
        return row

    def _close(self, *, at_end: bool) -> None:
        """The step that was under way has ended: write the rows whose numbers are known."""
        row, self._open = self._open, None
        now = time.perf_counter()
        if row is not None:
            row.seconds = None if self._closed_s is None else now - self._closed_s
            row.batches = {} if self._batches is None else self._batches.take()
            self._closed.append(row)
        self._closed_s = now
        before = None if at_end or row is None else row.step
        for step, value, dtype in self._losses.take(before=before):
            self._known_losses.setdefault(step, []).append((value, dtype))
        self._write(at_end=at_end)

    def _write(self, *, at_end: bool) -> None:
        if not self._recording.began:
            if len(self._closed) > MOST_ROWS:
                raise MemoryError("no step was recorded")
            return
        on_host = self._devices <= {"cpu"}
        while self._closed and (at_end or on_host or len(self._closed) > 1):
            row = self._closed.popleft()
            losses = self._known_losses.pop(row.step, [])
            if losses or row.settings:  # else no step: the training ended before
                self._file().add(self._finished(row, losses))

    def _file(self) -> StepLogWriter:
        """The file, made for the first row: a recording without any step is to hold nothing."""
        if self._writer is None:
            devices = tuple(sorted(self._devices))
            self._writer = StepLogWriter(self._recording.rank_directory, devices)
        return self._writer

    def _finished(self, row: _OpenRow, losses: Sequence[tuple[float, torch.dtype]]) -> StepRow:
        self._settings |= row.settings
        return StepRow(
            row.step,
            math.fsum(value for value, _ in losses) / len(losses) if losses else None,
            len(losses),
            dtype_name(losses[0][1]) if losses else "float32",
            dict(self._settings),
            row.skipped,
            tuple(item(one) for one in row.norms),
            row.batches,
            row.generators,
            row.seconds,
        )

    def _fail(self, error: Exception) -> None:
        """The log cannot go on: said in the recording; the training and its recording do."""
        why = f"{type(error).__name__}: {words_of(error)}"
        manifest = self._recording.manifest
        if manifest is not None:
            step = 0 if self._open is None else self._open.step
            manifest.not_seen.append(NotSeen(f"{STEP_LOG}{step}", why))
        if self._writer is not None:
            with Silence(_left_as_it_is):
                self._writer.stopped(why)
        with Silence(_left_as_it_is):
            self.stop()


def _left_as_it_is(_: Exception) -> None:
    """The disk that refused a row refuses this too: what was written before stays readable."""
