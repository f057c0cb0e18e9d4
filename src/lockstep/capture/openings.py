"""Which calls begin a step, and which show that what came before was none; see `lockstep.capture.steps`."""

from __future__ import annotations

from typing import Any, Protocol

import torch

from lockstep.capture.call_places import Place
from lockstep.capture.gradients import graph_node
from lockstep.capture.held_rows import TopResults
from lockstep.capture.leaves import NamedTensor, tensors_in
from lockstep.capture.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.steps import Steps
from lockstep.capture.surroundings import trains
from lockstep.capture.trainers import Trainers


class StepRecorder(Protocol):
    """Who opens and closes steps; `Recorder` is the real one."""

    @property
    def steps(self) -> Steps:
        """What is known of the step that is open."""

    @property
    def in_optimizer(self) -> bool:
        """Whether an optimizer is at work."""

    @property
    def optimizer_has_closure(self) -> bool:
        """Whether that optimizer calls the model itself."""

    @property
    def session(self) -> Session | None:
        """The session, while a step is open."""

    @property
    def trainers(self) -> Trainers:
        """Tells the recorded training from those of other threads."""

    def begin(self) -> Session | None:
        """The training comes in sight: open the step if it is to be recorded."""

    def set_aside(self) -> None:
        """What was recorded of this step may not be of it: it begins with what comes now, or later."""

    def may_train(self, module: torch.nn.Module) -> bool:
        """Whether a call of this module may be of a training."""

    def forward_begins(self) -> None:
        """A forward begins behind a backward: where the script updated its parameters, the step has ended."""

    def is_certain(self) -> None:
        """The step that is open is one: backward or an optimizer is at work."""

    def stop_before_backward(self) -> None:
        """Backward, or an update without one, is about to begin: the process may be asked to end here."""

    def path_of(self, session: Session, module: torch.nn.Module, place: Place | None) -> str:
        """Path of a module; its tree is recorded where it is met for the first time."""

    def note_once(self, what: str, reason: str) -> None:
        """Something is not seen."""

    def note_autocast(self) -> None:
        """A call runs under autocast."""

    def compiler_loaded(self) -> None:
        """Something was compiled: hooks must not be traced."""

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed: stop recording, let the training go on."""


class Openings:
    """Opens a step where a call begins one, and has it set aside where it was none.

    Parameters
    ----------
    recorder
        Opens and closes steps.

    Attributes
    ----------
    results
        What is left of what the open step has computed before its first backward.
    """

    def __init__(self, recorder: StepRecorder) -> None:
        self.results = TopResults()
        self._recorder = recorder
        self._steps = recorder.steps

    def session(self, *, may_begin: bool) -> Session | None:
        """The session, with a step opened where one may begin here."""
        session = self._recorder.session
        if session is None and may_begin and torch._C._get_tracing_state() is None:
            session = self._recorder.begin()
        return None if torch._C._get_tracing_state() is not None else session

    def session_of(self, module: torch.nn.Module, *, may_begin: bool) -> Session | None:
        """As `session`, for a call of a module."""
        session = self.session(may_begin=False)
        if session is None and may_begin and self._recorder.may_train(module):
            session = self.session(may_begin=True)
        return session

    def may_begin(self, name: str, tensors: list[NamedTensor]) -> bool:
        """Whether an operator outside of any module is of a training step, where none is open."""
        return trains(name, tensors) or (self._steps.is_aside and _any_in_graph(tensors))

    def reconsider(self, inputs: list[NamedTensor], *, module: bool) -> None:
        """A call begins outside of all others: what came before in this step may not have been of it.

        That goes for what nothing is left of, and for what was computed before the first module is
        called, unless this call takes what came of it.
        """
        if not self._steps.is_uncertain:
            return
        if self.results.are_gone() or (module and self._steps.is_idle):
            with Silence(self._recorder.fail):
                if not _any_in_graph(inputs):
                    self._recorder.set_aside()

    def note_top(self, result: Any) -> None:
        """A call outside of all others has ended: the step may be none once nothing is left of what came of it."""
        if not self._steps.is_uncertain:
            return
        with Silence(self._recorder.fail):
            self.results.add(tensor for _, tensor in tensors_in(result, ""))


def _any_in_graph(tensors: list[NamedTensor]) -> bool:
    return any(graph_node(tensor) is not None for _, tensor in tensors)
