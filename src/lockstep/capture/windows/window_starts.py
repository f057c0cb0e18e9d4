"""At the start of each window: keep the state of the training, or set that of the reference.

Generators are taken and set as the step before ends, before anything is drawn for the batch. All else waits for the
first call of the step: by then schedulers have stepped, means of weights are updated and gradients are zeroed. Before
the first step of all there is no model yet that could be compared, so everything waits.

The first step may begin several times: a copy of the model looks like its first call, until the batch is drawn. The
state of the generators is kept at each of them, and the training that is set gets that of the same one.

Numbers that a script sets by itself are kept and never set: learning rates, weight decay, schedulers. They must be
equal on every device, so a difference is the answer, and setting them would hide it.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from lockstep.capture.ends.afterwards import owners_of
from lockstep.capture.modules.live_modules import LivingModules
from lockstep.capture.modules.process_modules import held_modules
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.settings.setup import rank_and_world_size
from lockstep.capture.silence import Silence
from lockstep.capture.updates.optimizers import Optimizers
from lockstep.capture.windows.live_generators import LiveGenerator
from lockstep.capture.windows.means import rates_of_means
from lockstep.capture.windows.setting import other_model, set_generators, set_tensors
from lockstep.capture.windows.state_of_training import (
    ScriptState,
    StateOfTraining,
    all_generators,
    script_state,
    state_of_training,
)
from lockstep.capture.windows.taking import devices_of, take
from lockstep.core.errors import CorruptError
from lockstep.core.manifest import STATE, NotSeen
from lockstep.core.selection import StepSelection
from lockstep.core.text import words_of
from lockstep.core.windows import StateDifference, WindowStart
from lockstep.store.window_states import StateWriter, WindowState, read_state

MOST_BEGINNINGS = 16
"""Beginnings of the first step of which the generators are kept."""


class WindowStarts:
    """Keeps states, or sets them; hears of each step of a training.

    recording: Of this process's rank.
    optimizers: The optimizers of the process.
    living: The modules of the process.
    """

    def __init__(
        self, recording: RankRecording, optimizers: Optimizers, living: LivingModules
    ) -> None:
        self._recording, self._optimizers, self._living = recording, optimizers, living
        options = recording.options
        self._starts = StepSelection.parse(options.states_at)
        self._source = Path(options.set_from) if options.set_from else None
        self._writer: StateWriter | None = None
        self._kept: WindowState | None = None
        self._generators: dict[str, str] = {}
        self._earlier: list[dict[str, str]] = []
        self._begun = 0
        self._not_set: list[str] = []
        self._differed: list[StateDifference] = []
        self._before: dict[str, object] = {}
        self._set_before: set[str] = set()
        self._ready: int | None = None
        self._begun_from: WindowState | None = None

    def step_begins(self, number: int) -> None:
        """The step before has ended: take the generators or set them, where a window begins."""
        if number and number in self._starts:
            with Silence(partial(self._failed, number)):
                script, state = self._found()
                self._prepare(number, script, state)
                self._before = script.places

    def finish(self) -> None:
        """The training has ended."""
        self._before = {}

    def _prepare(self, step: int, script: ScriptState, state: StateOfTraining) -> None:
        live = all_generators(script)
        if self._ready != step:
            self._earlier, self._begun = [], 0
        elif self._source is None and len(self._earlier) < MOST_BEGINNINGS:
            self._earlier.append(self._generators)
        self._ready, self._kept = step, None
        self._not_set, self._differed, self._generators = [], [], {}
        if self._source is None:
            self._generators = {name: one.read() for name, one in live.items()}
            return
        rank = f"rank{rank_and_world_size()[0]}"
        if self._recording.began:
            rank = self._recording.rank_directory.name
        try:
            kept = read_state(self._source / rank, step)
        except CorruptError as error:
            self._not_set.append(f"the whole state: {error}")
            return
        if other := other_model(kept, state):
            self._not_set.append(f"the whole state, as the two train different models: {other}")
            return
        self._kept = kept
        self._not_set, differed = set_generators(kept, live, self._begun)
        self._begun += 1
        # What the first window sets may be of no use: a generator that nobody has seeded, or draws from.
        self._differed = [one for one in differed if step and one.name in self._set_before]
        self._set_before |= set(live)

    def begins(self, step: int) -> None:
        """The step begins with the call that is about to run."""
        if self._begun_from is not None and step > self._begun_from.step:
            with Silence(partial(self._failed, step - 1)):
                self._measure_means(self._begun_from, step)
            self._begun_from = None
        if step not in self._starts:
            self._before = {}
            return
        with Silence(partial(self._failed, step)):
            script, state = self._found()
            if self._ready != step or not step:
                self._prepare(step, script, state)
            start = (
                self._take(step, script, state)
                if self._source is None
                else self._set(step, state, self._source)
            )
            manifest = self._recording.manifest
            if manifest is not None and start is not None:
                before = next((one for one in manifest.windows if one.step == step), None)
                manifest.windows = [one for one in manifest.windows if one.step != step]
                manifest.windows.append(start if before is None else _begun_again(before, start))
            # Until the next step begins, when the means of the weights are measured; no tensor is kept alive.
            held = script.places.items()
            self._before = {path: one for path, one in held if not isinstance(one, torch.Tensor)}

    def _measure_means(self, kept: WindowState, step: int) -> None:
        """Note what the means of the weights took from the first step of a window, which has just ended."""
        manifest = self._recording.manifest
        if manifest is None or step != kept.step + 1:
            return
        start = next((one for one in manifest.windows if one.step == kept.step), None)
        if start is not None:
            start.means = rates_of_means(kept, self._found()[1])

    def _failed(self, step: int, error: Exception) -> None:
        """A state could not be kept or set: said, and the steps are recorded all the same."""
        manifest, why = self._recording.manifest, f"{type(error).__name__}: {words_of(error)}"
        if manifest is not None:
            manifest.not_seen.append(NotSeen(f"{STATE}{step}", why))

    def _found(self) -> tuple[ScriptState, StateOfTraining]:
        names, optimizers = self._recording.names, self._optimizers.taking_part()
        modules = held_modules(names, self._living, self._optimizers.trained_now())
        told = {id(held.tensor) for module in modules for held in module.held()}
        for optimizer in optimizers:
            told |= {id(optimizer)}
            told |= {id(one) for group in optimizer.param_groups for one in group["params"]}
        script = script_state(frozenset(told))
        owners = owners_of(names.owners.values())
        return script, state_of_training(modules, optimizers, owners, script, self._before)

    def _take(self, step: int, script: ScriptState, state: StateOfTraining) -> WindowStart | None:
        live: dict[str, LiveGenerator] = all_generators(script)
        self._writer = self._writer or StateWriter(self._recording.rank_directory)
        try:
            generators = [*self._earlier, self._generators]
            digest, not_kept = take(self._writer, step, state, script, generators, live)
        except OSError as error:
            self._failed(step, error)
            return None
        self._begun_from = read_state(self._recording.rank_directory, step)
        return WindowStart(step, digest, not_set=not_kept)

    def _set(self, step: int, state: StateOfTraining, source: Path) -> WindowStart:
        kept, differed = self._kept, list(self._differed)
        start = WindowStart(step, "", source=str(source), not_set=list(self._not_set))
        if kept is None:
            return start
        done = set_tensors(kept, state)
        self._begun_from = kept
        if kept.values.get("devices") != devices_of(state):
            differed = []  # of different devices, draws on one do not move the generator of the other
        start.digest, start.is_set, start.distance = kept.digest, done.is_set, done.distance
        start.not_set += done.not_set
        start.differed = [*differed, *done.differed]
        return start


def _begun_again(before: WindowStart, start: WindowStart) -> WindowStart:
    """The start of a step that had begun before: what was different then was set, and is told all the same."""
    apart = [one for one in (before.distance, start.distance) if one is not None]
    differed = list(dict.fromkeys([*before.differed, *start.differed]))
    return replace(start, differed=differed, distance=max(apart, default=None))
