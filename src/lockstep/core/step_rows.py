"""The step log: one small row for each step of a training, and the answer of comparing two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from lockstep.core.text import listed

STEP_LOG = "step_log.jsonl"
"""The file of a rank's directory that holds it."""

BY_LOSS = "by_loss"
"""The setting of an optimizer whose learning rates follow losses."""

SCALER = "scaler."
"""How the settings of a gradient scaler begin."""


@dataclass(frozen=True, slots=True)
class StepRow:
    """One step of a training.

    step: Its number, from 0.
    loss, passes, dtype: The mean of the numbers that `backward` was called on, how many there were, and their dtype;
        None where there was none.
    settings: The hyper-parameters, the parameters that train and the loss scale of this step, those of before included.
    skipped: Whether a gradient scaler left the update out.
    gradient_norms: By group of parameters, of chosen steps alone.
    batches: By the number of a data loader, how often it gave a batch and the digest of these.
    generators: Digests of the states of the random generators after the update, by name.
    seconds: Since the row before, None for the first.
    """

    step: int
    loss: float | None = None
    passes: int = 0
    dtype: str = "float32"
    settings: Mapping[str, float | str] = field(default_factory=dict)
    skipped: bool = False
    gradient_norms: tuple[float, ...] = ()
    batches: Mapping[str, str] = field(default_factory=dict)
    generators: Mapping[str, str] = field(default_factory=dict)
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class StepLog:
    """The step log of one rank: rows in order, types of its devices, and the steps of which nothing was kept."""

    rows: tuple[StepRow, ...] = ()
    devices: tuple[str, ...] = ()
    stopped_because: str = ""


class Fact(str, Enum):
    """What must be equal bit by bit on every device."""

    BATCH = "batch"
    SETTING = "setting"
    TRAINED = "trained parameters"
    LOSS_SCALE = "loss scale"
    GENERATOR = "generator"
    SKIPPED = "skipped update"
    PASSES = "backward passes"


@dataclass(frozen=True, slots=True)
class FactDifference:
    """The first step at which a fact of two step logs differs.

    fact: Which.
    step: The step.
    name: The setting, loader or generator, as a user reads it.
    reference, candidate: Its value in each run.
    rank: The rank, "" if there is one alone.
    certain: Whether rounding cannot have made it: not so for a skipped update, which an overflow decides, and for a
        learning rate that follows losses which differ already.
    """

    fact: Fact
    step: int
    name: str
    reference: str
    candidate: str
    rank: str = ""
    certain: bool = True

    @property
    def words(self) -> str:
        """Return the difference as a clause, without its step."""
        rank = f"{self.rank}: " if self.rank else ""
        if self.fact in (Fact.BATCH, Fact.GENERATOR):  # of which digests are known
            return f"{rank}{self.name} is not that of the reference"
        return f"{rank}{self.name} is {self.candidate}, and {self.reference} in the reference"

    def __str__(self) -> str:
        return f"at step {self.step}, {self.words}"


@dataclass(frozen=True, slots=True)
class Growth:
    """How the distance of two runs' losses grows, and where it leaves that growth.

    name: The numbers: "losses", or the norms of the gradients of a group.
    began, ended: The relative distance at the first step that differs, and the largest of all.
    factor: Times a step by which it grew in the first steps.
    left_at: The first step that lies beyond that growth, None where none does.
    left_with, expected: The distance there, and the largest that was to be expected; NaN without one.
    by_calibration: Whether a calibration says what is to be expected, rather than the first steps.
    rank: The rank, "" if there is one alone.
    """

    name: str
    began: float
    ended: float
    factor: float
    left_at: int | None = None
    left_with: float = float("nan")
    expected: float = float("nan")
    by_calibration: bool = False
    rank: str = ""


@dataclass(frozen=True, slots=True)
class StepLogsCompared:
    """The answer of comparing two step logs.

    steps: How many steps both logged.
    facts: The kinds of facts that were compared.
    differences: The first step of each fact that differs, in order of steps.
    growths: How losses and gradient norms grow apart; empty where they are equal bit by bit.
    equal_losses: How many of the first steps have losses that are equal bit by bit.
    """

    steps: int
    facts: tuple[Fact, ...] = ()
    differences: tuple[FactDifference, ...] = ()
    growths: tuple[Growth, ...] = ()
    equal_losses: int = 0

    @property
    def first(self) -> FactDifference | None:
        """Return the first difference that rounding cannot have made."""
        return next((one for one in self.differences if one.certain), None)

    @property
    def left(self) -> Growth | None:
        """Return the first numbers that leave their growth."""
        left = [one for one in self.growths if one.left_at is not None]
        return min(left, key=lambda one: one.left_at or 0, default=None)

    @property
    def compared(self) -> str:
        """Return the facts that were compared, in words."""
        return listed([one.value for one in self.facts], len(Fact))
