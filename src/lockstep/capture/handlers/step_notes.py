"""The manifest's counts of what a step's calls do not show: gradients asked for by hand, numbers that Python took."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TypeGuard

import torch

from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.taps.listener import EngineRun
from lockstep.core.manifest import MOST_NUMBERS_READ, NumberRead, StepSummary
from lockstep.devices.methods import is_floating_point


class StepNotes:
    """Counts them for the step that is open.

    recording: Of this process's rank.
    """

    def __init__(self, recording: RankRecording) -> None:
        self._recording = recording

    def taken(self, values: Iterable[object], *, within: bool = False) -> None:
        """Python takes numbers out of the first tensor of these; `within` a function or optimizer that runs again."""
        tensor, step = next(filter(_is_tensor, values), None), self._step
        if step is None or tensor is None:
            return
        if is_floating_point(tensor) and within:
            step.float_reads = (step.float_reads or 0) + 1
        elif is_floating_point(tensor):
            step.float_reads_after_backward = (step.float_reads_after_backward or 0) + 1
        else:
            step.decision_reads = (step.decision_reads or 0) + 1

    def number_read(self, number: float, content: int) -> None:
        """Python was given the number of a content; whole ones are counts, which no rounding changes."""
        step = self._step
        if step is not None and math.isfinite(number) and not number.is_integer():
            step.numbers_read.append(NumberRead(number, content))
            del step.numbers_read[:-MOST_NUMBERS_READ]

    def backward(self, asked: EngineRun, *, is_seen: bool) -> None:
        """The autograd engine is about to run; `is_seen` tells that what it gives is recorded as a call."""
        step = self._step
        if step is None:
            return
        by_hand = not asked.accumulates and not is_seen
        step.autograd_grad_calls = (step.autograd_grad_calls or 0) + by_hand
        graph = asked.create_graph and not is_seen
        step.create_graph_calls = (step.create_graph_calls or 0) + graph
        if step.float_reads is not None:
            step.float_reads += step.float_reads_after_backward or 0
            step.float_reads_after_backward = 0

    @property
    def _step(self) -> StepSummary | None:
        manifest = self._recording.manifest
        return manifest.steps[-1] if manifest is not None and manifest.steps else None


def _is_tensor(value: object) -> TypeGuard[torch.Tensor]:
    return isinstance(value, torch.Tensor)
