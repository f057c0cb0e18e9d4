"""Windows: stretches of recorded steps, each of which begins with the whole state of the training kept."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lockstep.core.errors import UsageError
from lockstep.core.selection import StepSelection

EVERY_STEPS = 2
"""Steps of each window of `every=1000`, as many as a recording has by default."""

_EVERY = "every="


@dataclass(frozen=True, slots=True)
class Windows:
    """Which steps are recorded, and at which of them a window begins; both as `--steps` is written.

    Examples
    --------
    >>> Windows.parse("0:2,1000:1002")
    Windows(steps='0:2,1000:1002', starts='0,1000')
    >>> Windows.parse("every=1000")
    Windows(steps='0::1000,1::1000', starts='0::1000')
    """

    steps: str
    starts: str

    @classmethod
    def parse(cls, text: str) -> Windows:
        """Return the windows that a text names: ranges with an end, or two steps of every so many.

        Raises
        ------
        UsageError
            If it is anything else, or two windows share a step.
        """
        if str(text).startswith(_EVERY):
            return cls._every(text)
        ranges = StepSelection.parse(text).ranges
        for first, stop, stride in ranges:
            if stop is None or stride != 1:
                raise UsageError(
                    f"windows {text!r}: each is a range with an end, as 1000:1002; or give every=1000"
                )
            if sum(one <= first < (end or one) for one, end, _ in ranges) > 1:
                raise UsageError(f"windows {text!r}: step {first} is in two windows")
        return cls(text, ",".join(str(first) for first, _, _ in sorted(ranges)))

    @classmethod
    def _every(cls, text: str) -> Windows:
        digits = text.removeprefix(_EVERY)
        steps = int(digits) if digits.isdecimal() else 0
        if steps <= EVERY_STEPS:
            raise UsageError(
                f"windows {text!r}: a window has {EVERY_STEPS} steps; give a number of at least {EVERY_STEPS + 1}"
            )
        each = ",".join(f"{offset}::{steps}" for offset in range(EVERY_STEPS))
        return cls(each, f"0::{steps}")

    @classmethod
    def of(cls, starts: Sequence[int], steps: Iterable[int]) -> Windows:
        """Return the windows that begin at steps of which states are kept, as far as steps after them were recorded."""
        found = [range(each[0], each[-1] + 1) for each in windows_in(starts, steps)]
        return cls(
            ",".join(f"{one.start}:{one.stop}" for one in found),
            ",".join(str(one.start) for one in found),
        )


def windows_in(starts: Iterable[int], steps: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the steps of each window: those from its start on without a gap, up to the next start.

    >>> windows_in([0, 40], [0, 1, 40, 41, 60])
    [(0, 1), (40, 41)]
    """
    begins, recorded = set(starts), sorted(set(steps))
    found: list[list[int]] = []
    for step in recorded:
        if step in begins:
            found.append([step])
        elif found and found[-1][-1] == step - 1:
            found[-1].append(step)
    return [tuple(one) for one in found]


@dataclass(frozen=True, slots=True)
class StateDifference:
    """What a training held before its state was set, where it must be equal on every device: counts and generators."""

    name: str
    reference: str
    candidate: str

    def __str__(self) -> str:
        return f"{self.name} was {self.candidate}, and {self.reference} in the reference"


@dataclass(frozen=True, slots=True)
class MeanRate:
    """How much of the new weights a mean of them took in the first step of a window.

    name: What holds the mean.
    rate: The share of the new weights, 0 where the mean stayed; dimensionless.
    bound: How far rounding may have moved the rate.
    residual: What the rate does not explain, in sizes of that rounding: above 1 it is no mean of the weights.
    """

    name: str
    rate: float
    bound: float
    residual: float


@dataclass(slots=True)
class WindowStart:
    """The start of a window, as a rank's manifest has it.

    `digest` is that of the state: of the one that was kept, or of the one that the training was set to (`is_set`), and
    `source` then the recording that it came from. `not_set` names the parts that could not be set, and why; `differed`
    the counts and generators that were not equal before, and `distance` is how far the parameters were apart by then,
    `|c - r| / |r|` over all of them, None where none was set. `means` are the means of the weights over its first step.
    """

    step: int
    digest: str
    is_set: bool = False
    source: str = ""
    not_set: list[str] = field(default_factory=list)
    differed: list[StateDifference] = field(default_factory=list)
    distance: float | None = None
    means: list[MeanRate] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class GivenInput:
    """An input that a reference recorded, and the candidate's module was given.

    step, module, call, name: The step, the path of the module, which of its calls in the step, from 0, and the
        argument.
    own: The digest of the candidate's own input, which is to be a result that was recorded.
    """

    step: int
    module: str
    call: int
    name: str
    own: str
