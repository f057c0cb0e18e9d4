"""The states of a step: when one begins, is confirmed or dropped, and ends. Pure Python: no torch, no files.

What begins a step
    The first call that builds a graph, where the step that comes is chosen: a module that may train, an operator on a
    parameter or on what was set aside, a backward (all of them by `openings`), or an optimizer that has gradients at
    hand or a closure to call (`optimizers`). They end in `RankRecording.begin`, and that in `Steps.begin`. A recording
    that a script starts where it waits for no optimizer begins one at once (`Recorder._arm`).

What it may turn out to be
    Until its first backward it may be none: the norm of the parameters for a log, a dry run. It is set aside where
    nothing is left of what it computed, or where the first module is called and takes none of it
    (`Openings.reconsider`). Once backward or an optimizer is at work it is certain.

What ends a step
    See `End`. Parameters that a script updates by hand are watched by `hand_updates`.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from lockstep.core.selection import StepSelection


class State(Enum):
    """The state of recording, between two steps or in one; see `Steps` for the transitions."""

    BETWEEN = ("no step is open", False)
    ASIDE = (
        "none is open: what had begun turned out to be none, and what builds on it may begin",
        False,
    )
    BEGUN = ("something computes; no module was called, and there was no backward yet", True)
    IN_MODEL = ("a module was called; there was no backward yet", True)
    CERTAIN = ("backward or an optimizer is at work: it is a step", True)
    LAST = ("recording finishes, and closes the step that is open", True)
    FINISHED = ("no step begins any more", False)

    # By identity: a hash that runs Python would let another thread in between, see `Steps._happens`.
    __hash__ = object.__hash__

    def __init__(self, meaning: str, is_open: bool) -> None:
        self.meaning = meaning
        self.is_open = is_open


class StepEvent(Enum):
    """An event of a step."""

    BEGINS = "a call that builds a graph, where none is open"
    MODULE_CALLED = "a module is called"
    SET_ASIDE = "what was recorded of the step may not be of it"
    IS_CERTAIN = "backward or an optimizer begins its work"
    ENDS = "see `End`"
    FINISHES = "recording stops: by its last step, its failure, or the end of the process"


class End(Enum):
    """The cause that ends a step, with the place that detects it.

    An update that a gradient scaler leaves out counts as its optimizer's step.
    """

    ALL_STEPPED = "every optimizer that takes part has stepped: `Optimizers._count`"
    STEPPED_TWICE = "one steps again, the others are not waited for: `Optimizers._count`"
    UPDATE_SKIPPED = (
        "a scaler found inf or NaN and the last optimizer was not called: `Optimizers._wrap_scaler_step`"
        " (a fused one is called all the same, and ends its step as ever; both are marked as skipped)"
    )
    UPDATED_BY_HAND = (
        "a forward finds parameters that the script has updated: `Recorder.forward_begins`"
    )
    SAID = "the script says so, by `Recording.step`: `Recorder.end_step_by_hand`"
    FINISHED = "recording finishes: `Recorder._end`"


_BY_OPTIMIZERS = frozenset({End.ALL_STEPPED, End.STEPPED_TWICE, End.UPDATE_SKIPPED})

_MOVES: Mapping[State, Mapping[StepEvent, State]] = {
    State.BETWEEN: {
        StepEvent.BEGINS: State.BEGUN,
        StepEvent.FINISHES: State.FINISHED,
    },
    State.ASIDE: {
        StepEvent.BEGINS: State.BEGUN,
        StepEvent.FINISHES: State.FINISHED,
    },
    State.BEGUN: {
        StepEvent.MODULE_CALLED: State.IN_MODEL,
        StepEvent.SET_ASIDE: State.ASIDE,
        StepEvent.IS_CERTAIN: State.CERTAIN,
        StepEvent.ENDS: State.BETWEEN,
        StepEvent.FINISHES: State.LAST,
    },
    State.IN_MODEL: {
        StepEvent.SET_ASIDE: State.ASIDE,
        StepEvent.IS_CERTAIN: State.CERTAIN,
        StepEvent.ENDS: State.BETWEEN,
        StepEvent.FINISHES: State.LAST,
    },
    State.CERTAIN: {
        StepEvent.ENDS: State.BETWEEN,
        StepEvent.FINISHES: State.LAST,
    },
    State.LAST: {
        StepEvent.ENDS: State.FINISHED,
    },
    State.FINISHED: {},
}

TRANSITIONS: Mapping[StepEvent, Mapping[State, State]] = {
    event: {state: moves.get(event, state) for state, moves in _MOVES.items()}
    for event in StepEvent
}
"""Where each event leads from each state; what is not told above leaves all as it is."""

_BEGUN, _IN_MODEL, _CERTAIN = State.BEGUN, State.IN_MODEL, State.CERTAIN
_BETWEEN, _ASIDE, _LAST, _FINISHED = State.BETWEEN, State.ASIDE, State.LAST, State.FINISHED
_ON_MODULE_CALLED = TRANSITIONS[StepEvent.MODULE_CALLED]


class Steps:
    """The step that is open or comes next, and what is known of it.

    ========  ======  =============  =========  ==========  ========  ========
    state     begins  module called  set aside  is certain  ends      finishes
    ========  ======  =============  =========  ==========  ========  ========
    BETWEEN   BEGUN                                                   FINISHED
    ASIDE     BEGUN                                                   FINISHED
    BEGUN             IN_MODEL       ASIDE      CERTAIN     BETWEEN   LAST
    IN_MODEL                         ASIDE      CERTAIN     BETWEEN   LAST
    CERTAIN                                                 BETWEEN   LAST
    LAST                                                    FINISHED
    FINISHED
    ========  ======  =============  =========  ==========  ========  ========

    What the table leaves empty changes nothing: what is certain is not set aside, and where none is open an
    optimizer's step ends none, though it is counted.

    selection: Which steps are chosen.

    state: Where recording is.
    number: Of the step that is open, or of the one that comes, from 0.
    selection: As given, or as `choose` has it.
    left_out: How many chosen steps were not recorded, as there was no room for them.
    """

    def __init__(self, selection: StepSelection) -> None:
        self.state = State.BETWEEN
        self.number = self.left_out = 0
        self.selection = selection
        self._waits = self._was_ended_by_optimizers = False

    def _happens(self, event: StepEvent) -> None:
        leads = TRANSITIONS[event]
        # One look-up and one assignment, within which no other thread and no handler of a signal runs.
        self.state = leads[self.state]

    # --- the step that is open ------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        """Whether a step is open."""
        return self.state.is_open

    @property
    def is_uncertain(self) -> bool:
        """Whether one is open that may turn out to be none."""
        state = self.state
        return state is _BEGUN or state is _IN_MODEL

    @property
    def is_idle(self) -> bool:
        """Whether one is open in which neither a module was called nor backward has run."""
        return self.state is _BEGUN

    @property
    def is_certain(self) -> bool:
        """Whether one is open in which backward or an optimizer has begun."""
        return self.state is _CERTAIN

    @property
    def is_aside(self) -> bool:
        """Whether the open step was set aside, and none has begun after it."""
        return self.state is _ASIDE

    @property
    def may_begin(self) -> bool:
        """Whether none is open, and one may begin where it is chosen."""
        state = self.state
        return state is _BETWEEN or state is _ASIDE

    @property
    def is_finished(self) -> bool:
        """Whether none begins any more, though the last may still be open."""
        state = self.state
        return state is _LAST or state is _FINISHED

    def begin(self) -> None:
        """A step begins."""
        self._happens(StepEvent.BEGINS)

    def module_called(self) -> None:
        """A module is called."""
        if self.state is _BEGUN:  # asked at every call of a module
            self.state = _ON_MODULE_CALLED[self.state]

    def set_aside(self) -> None:
        """Set aside the open step's rows: it may begin with the next call, or later."""
        self._happens(StepEvent.SET_ASIDE)

    def make_certain(self) -> None:
        """The step that is open is one."""
        self._happens(StepEvent.IS_CERTAIN)

    def end(self, by: End) -> None:
        """The step that is open, if any, has ended."""
        self._happens(StepEvent.ENDS)
        self._was_ended_by_optimizers |= by in _BY_OPTIMIZERS

    def take_word(self) -> bool:
        """The script says that a step ends; tells whether it does.

        It does not where optimizers have ended one since the script last said so.
        """
        said, self._was_ended_by_optimizers = self._was_ended_by_optimizers, False
        return not said

    def finish(self) -> None:
        """No step begins any more; one that is open is the last."""
        self._happens(StepEvent.FINISHES)

    def abandon(self) -> None:
        """Whatever is open is forgotten, and no step begins any more."""
        self.state = State.FINISHED

    # --- the step that comes --------------------------------------------------------------------

    @property
    def is_chosen(self) -> bool:
        """Whether the step that comes now is to be recorded."""
        return self.number in self.selection and not self._waits

    @property
    def any_to_come(self) -> bool:
        """Whether the step that comes now, or a later one, is to be recorded."""
        return self.selection.any_from(self.number)

    def next(self) -> None:
        """The step that comes now is another one."""
        self.left_out += self._waits
        self._waits = False
        self.number += 1

    def wait(self) -> None:
        """There is no room for the step that comes now: it is left out."""
        self._waits = True

    def choose(self, selection: StepSelection) -> None:
        """Other steps are to be recorded than before."""
        self.selection = selection
