"""What a step's program is made of: calls, backward passes and updates, and where each takes its tensors from.

Knows no torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role

RESULTS = (Role.OUTPUT, Role.BUFFER)


class NotApplicable(Exception):  # noqa: N818 - it is an answer, not a failure of Lockstep
    """A law cannot be applied to a step; the message says why. Never leaves this package."""


class Enters(Enum):
    """What a source is."""

    NAMED = "parameter or buffer"
    ARRIVED = "batch or constant"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True)
class Source:
    """A tensor that no call of the step made.

    `name` is that of a parameter or buffer, of the parameter whose gradient it is, or the number of an arrived content.
    `version` counts how often a parameter was found changed though no call had changed it.
    """

    kind: Enters
    name: str
    version: int = 0


@dataclass(frozen=True, slots=True)
class Node:
    """A result of a call: `index` as its record has it."""

    call: int
    index: int


Link = Node | Source


@dataclass(frozen=True, slots=True)
class Taken:
    """One input of a call; `detached` where no gradient goes back through it."""

    link: Link
    record: TensorRecord
    detached: bool = False


@dataclass(frozen=True, slots=True)
class View:
    """A result of a call that is memory of the tensor which the call takes at an index."""

    call: Call
    takes: int
    gives: int


@dataclass(frozen=True, slots=True)
class Written:
    """A view that was written to, by the calls that make it; whether what was written has gradients."""

    views: tuple[View, ...]
    gradients: bool


@dataclass(frozen=True, slots=True)
class Operator:
    """A call that is run again, with its inputs by index.

    `through` is there where no recorded call is: of a tensor, its first input, that changed because views of it were
    written to. The other inputs are what was written to each.
    """

    call: Call
    taken: dict[int, Taken]
    through: tuple[Written, ...] = ()


@dataclass(frozen=True, slots=True)
class Backward:
    """A backward pass from a loss; gradients of `anew` that were there before are thrown away."""

    call: Call
    loss: Taken
    anew: frozenset[str]
    reached: frozenset[str]


@dataclass(frozen=True, slots=True)
class Update:
    """An update of one parameter, and the tensors that enter it.

    `made` is the result that the parameter becomes where a script updates it by hand; None for an optimizer's update.
    """

    call: Call
    parameter: Taken
    gradient: Taken | None
    made: Node | None = None

    @property
    def name(self) -> str:
        """The parameter's."""
        return self.parameter.record.name


Event = Operator | Backward | Update
