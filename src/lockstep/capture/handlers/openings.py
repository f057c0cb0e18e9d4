"""Tell which calls begin a step, and which show that earlier ones were none; see `lockstep.capture.steps`."""

from __future__ import annotations

from typing import Any

import torch

from lockstep.capture.calls.gradients import graph_node
from lockstep.capture.calls.leaves import NamedTensor, tensors_in
from lockstep.capture.calls.surroundings import has_parameters, trains
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.updates.optimizers import Optimizers


class Openings:
    """Opens a step where a call begins one, and has it set aside where it was none.

    recording: Of this process's rank.
    optimizers: The optimizers of the process.
    needs_optimizer: Whether only what looks like one is a training as long as there is no optimizer.
    """

    def __init__(
        self, recording: RankRecording, optimizers: Optimizers, *, needs_optimizer: bool
    ) -> None:
        self._recording = recording
        self._steps = recording.steps
        self._optimizers = optimizers
        self._needs_optimizer = needs_optimizer

    def session(self, *, may_begin: bool, by_module: bool = False) -> Session | None:
        """The session, with a step opened where one may begin here."""
        session = self._recording.session
        if session is None and may_begin and torch._C._get_tracing_state() is None:
            session = self._recording.begin(by_module=by_module)
        return None if torch._C._get_tracing_state() is not None else session

    def session_of(self, module: torch.nn.Module, *, may_begin: bool) -> Session | None:
        """As `session`, for a call of a module."""
        session = self.session(may_begin=False)
        if session is None and may_begin and self._may_train(module):
            session = self.session(may_begin=True, by_module=True)
        return session

    def _may_train(self, module: torch.nn.Module) -> bool:
        """Whether a call of this module may be of a training."""
        if len(self._optimizers) or not self._needs_optimizer:
            return True
        return module.training and has_parameters(module)

    def may_begin(self, name: str, tensors: list[NamedTensor]) -> bool:
        """Whether an operator outside of any module is of a training step, where none is open."""
        return trains(name, tensors) or (self._steps.is_aside and _any_in_graph(tensors))

    def reconsider(self, inputs: list[NamedTensor], *, module: bool) -> None:
        """A call begins outside of all others: what came before in this step may not have been of it.

        That goes for what nothing is left of, and for what was computed before the first module is
        called, unless this call takes what came of it.
        """
        if not self._steps.is_uncertain or self._recording.session is None:
            return
        if self._recording.results.are_gone() or (module and self._steps.is_idle):
            with Silence(self._recording.fail):
                if not _any_in_graph(inputs):
                    self._recording.set_aside()

    def note_top(self, result: Any) -> None:
        """A call outside of all others has ended: the step may be none once nothing is left of what came of it."""
        if not self._steps.is_uncertain:
            return
        with Silence(self._recording.fail):
            self._recording.results.add(tensor for _, tensor in tensors_in(result, ""))


def _any_in_graph(tensors: list[NamedTensor]) -> bool:
    return any(graph_node(tensor) is not None for _, tensor in tensors)
