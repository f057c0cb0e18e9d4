"""The manifest's notes on updates: optimizers with their hyper-parameters, loss scales, skipped updates."""

from __future__ import annotations

import weakref

from torch.optim.optimizer import Optimizer

from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.gaps import gap_of
from lockstep.capture.settings import setup
from lockstep.capture.updates.parameter_groups import names_in_groups, plain_options
from lockstep.core.manifest import Event, OptimizerSetup
from lockstep.core.text import with_texts


class UpdateNotes:
    """Notes the updates of the steps that are open.

    recording: Of this process's rank.
    """

    def __init__(self, recording: RankRecording) -> None:
        self._recording = recording
        self._grouped: weakref.WeakKeyDictionary[Optimizer, list[list[str]]]
        self._grouped = weakref.WeakKeyDictionary()

    def forget(self) -> None:
        """The manifest that comes is another one: it is told all anew."""
        self._grouped.clear()

    def skipped(self) -> None:
        """A gradient scaler found an overflow: the step has no effect, or no update at all."""
        session, manifest = self._recording.session, self._recording.manifest
        if session is not None and manifest is not None:
            detail = "the gradient scaler found inf or NaN"
            session.events.append(Event("skipped_step", self._recording.steps.number, detail))
            manifest.steps[-1].skipped = True

    def loss_scaled(self, factor: float) -> None:
        """The factor that a gradient scaler has put into the loss of this step."""
        if self._recording.manifest is not None:
            self._recording.manifest.steps[-1].loss_scale = factor

    def called(self, optimizer: Optimizer, name: str, *, compiled: bool) -> None:
        """An optimizer begins a step that is recorded: note its hyper-parameters.

        `compiled` tells that it is called in compiled code.
        """
        recording, manifest = self._recording, self._recording.manifest
        if manifest is None:
            return
        if compiled:
            reason = "compiled: its graph breaks where recording listens to it, before and after"
            recording.note_once(f"inside of {name}.step", reason)
        if recording.written is not None:
            recording.written.gaps.add(gap_of(optimizer))
        step = recording.steps.number
        groups = [
            with_texts(plain_options(group), recording.kept) for group in optimizer.param_groups
        ]
        number = len({item.index for item in manifest.optimizers if item.step == step})
        noted = OptimizerSetup(number, step, name, groups)
        names = names_in_groups(optimizer, recording.names)
        if names != self._grouped.get(optimizer):
            self._grouped[optimizer] = noted.parameters = names
        manifest.optimizers.append(noted)
        setup.note_run_state(manifest)
