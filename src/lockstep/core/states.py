"""The parameters, buffers and optimizer state of a training at a moment, and its losses after the recorded steps."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lockstep.core.records import Content
from lockstep.core.site import Role


class Moment(str, Enum):
    """When a state was taken."""

    FIRST = "first"
    LAST = "last"
    END = "end"


class Standing(str, Enum):
    """How a module or a parameter takes part in the recorded training.

    `BEFORE` is what was only there beside, and was made before recording began: a script that records itself may have
    had other trainings before, which are no part of this one. `OUTSIDE` is what only variables of the script lead to.
    `REPLACED` is what the training went on without: it was made anew, as by a script that resumes in its own process.
    """

    MET = "met"
    TRAINED = "trained"
    BESIDE = "beside"
    BEFORE = "before"
    OUTSIDE = "outside"
    REPLACED = "replaced"


@dataclass(frozen=True, slots=True)
class StateRecord:
    """A parameter, a buffer, or a tensor of an optimizer's state at a moment.

    Parameters
    ----------
    moment
        Behind the first recorded step, behind the last one, or the end: when what holds it went, or the process ended.
    step
        How many steps had ended by then.
    module
        Path of the module that holds it; "" for the model itself and for what no module holds.
    name
        Full name of the parameter or buffer; for a state `weight|exp_avg`.
    role
        `Role.PARAM`, `Role.BUFFER` or `Role.STATE`.
    standing
        Whether an optimizer holds it, it was met in a recorded step, or it was only there beside.
    trainable
        Whether it required a gradient.
    content
        What it held; no tensor is kept whole.
    """

    moment: Moment
    step: int
    module: str
    name: str
    role: Role
    standing: Standing
    trainable: bool
    content: Content

    @property
    def key(self) -> tuple[Role, str]:
        """The key that identifies it among the states of its moment."""
        return self.role, self.name


@dataclass(frozen=True, slots=True)
class HeldSetting:
    """A number or a mode that something held at the end, by the path from a variable of the script.

    path: As a script would write it: `scheduler._last_lr[0]`, `main.model.drop.training`.
    value: A number, a mode, the text of a number that JSON lacks; None where there is nothing, or a container without
        elements.
    moves: Whether it is a number of a module of the script's own that is not what it was at the last recorded step: a
        count or a time, maybe.
    """

    path: str
    value: bool | int | float | str | None
    moves: bool = False


@dataclass(frozen=True, slots=True)
class LaterLoss:
    """A loss after the recorded steps: the tensor that backward began from.

    `step` is the step that it was of, `value` its number in double precision, `dtype` what it was kept in.
    """

    step: int
    value: float
    dtype: str
