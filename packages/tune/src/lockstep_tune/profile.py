"""A profile as data: how long each operator of a training step takes, where it is called, and what it works on."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass
from enum import Enum

COLLECTIVE = re.compile(r"c10d::|gloo:|nccl:|hccl:|record_param_comms")
"""How the operators of `torch.distributed` are called."""


class Phase(str, Enum):
    """The part of a step that an operator is of."""

    DATA = "data"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator at one place, with the same shapes: means of all timed steps.

    name: As torch calls it: `aten::addmm`, or the name of a range.
    module: The path of the module that calls it, "" for none.
    phase: Of the step.
    source: `file:line` of the script, "" where that is not known.
    calls: Per step.
    self_host_us, host_us: Microseconds of a step on the host, without and with what it calls.
    python_us: Microseconds of Python before it, where it is called by Python: since the operator before it ended.
    self_device_us, device_us: Microseconds on the device, without and with what it calls.
    shapes, dtypes: Of its inputs, as the trace writes them.
    flops: Of all its calls in a step, as torch estimates them; 0 where it estimates none.
    allocated_bytes: What it allocates in a step, without what it calls.
    strided: Whether an input is not contiguous.
    outermost: Whether no other operator calls it.
    parent: The operator that calls it, "" for none.
    cast: From which dtype to which it copies, "" where it changes none.
    order: Which one it is in order of time, by its first call.
    steps_us: What it adds to each timed step: microseconds of the device, or of the host with the Python before it.
    least_python_us: As `python_us`, in the step in which that was least: other processes can take time from the others.
    """

    name: str
    module: str
    phase: Phase
    source: str = ""
    calls: float = 1.0
    self_host_us: float = 0.0
    host_us: float = 0.0
    python_us: float = 0.0
    self_device_us: float = 0.0
    device_us: float = 0.0
    shapes: str = ""
    dtypes: str = ""
    flops: float = 0.0
    allocated_bytes: float = 0.0
    strided: bool = False
    outermost: bool = False
    parent: str = ""
    cast: str = ""
    order: int = 0
    steps_us: tuple[float, ...] = ()
    least_python_us: float = 0.0

    @property
    def total_us(self) -> float:
        """Microseconds of a step with what it calls: on the device where it runs there, else on the host."""
        return max(self.device_us, self.host_us)


@dataclass(frozen=True, slots=True)
class Compile:
    """One compilation by Dynamo: of which function, why once more, and where it stops within (graph breaks).

    `is_late` tells that it came after the first step, by which a training has usually seen all of its shapes.
    """

    function: str
    file: str
    line: int
    took_s: float
    again_because: str = ""
    breaks: tuple[str, ...] = ()
    is_late: bool = False


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the timed steps that one stack of the script took.

    lines: File, line and function of each call of the script, the innermost last; none where they are not known.
    calls: What the innermost line calls there, as the script writes it; "" where that is not known.
    us: Microseconds of each timed step.
    python_us: Of these, what Python took between two operators, beyond what lies between two usually; without what a
        call that trains takes itself, such as `loss.backward`, or one of `torch.distributed`.
    trains: Whether it is of a forward with gradients, of a backward or of an update.
    evaluates: Whether it is of a forward without gradients of a model that is trained.
    """

    lines: tuple[tuple[str, int, str], ...]
    calls: str
    us: tuple[float, ...]
    python_us: tuple[float, ...]
    trains: bool = False
    evaluates: bool = False

    @property
    def place(self) -> str:
        """The innermost line as `file:line`, "" where it is not known."""
        return f"{self.lines[-1][0]}:{self.lines[-1][1]}" if self.lines else ""


@dataclass(frozen=True, slots=True)
class Recomputation:
    """What a call of `torch.utils.checkpoint` computes again: its place, the time, and what it allocates for that."""

    place: str
    us: float
    calls: float
    allocated_bytes: float


@dataclass(frozen=True, slots=True)
class Profile:
    """The profile of one rank.

    name: The file or folder that it is from.
    operators: Every operator.
    steps_us: How long each timed step took; empty where the trace marks no steps.
    plain_step_us: The median of steps that were not profiled; None where there were none.
    device: Where it ran, "cpu" say.
    threads, cores: Those that torch computes with, and those that the process may use; 0 where not known.
    compiles: What was compiled.
    missing: What the trace does not hold, a sentence each.
    steps_seen: How many steps of the training had begun when the compilations were counted.
    peak_flops: FLOP/s that this machine reached in a large float32 product; None where that was not measured.
    pieces: The time of the thread that trains by the script's lines; none where the trace knows no stacks.
    recomputations: What activation checkpointing computes again.
    waiting: The share of the timed steps in which a thread of the training was ready and had no core; None where not
        known.
    threads_set: Where the script sets the number of threads, as `file:line`; "" where it does not.
    """

    name: str
    operators: tuple[Operator, ...]
    steps_us: tuple[float, ...] = ()
    plain_step_us: float | None = None
    device: str = "cpu"
    threads: int = 0
    cores: int = 0
    compiles: tuple[Compile, ...] = ()
    missing: tuple[str, ...] = ()
    steps_seen: int = 0
    peak_flops: float | None = None
    pieces: tuple[Piece, ...] = ()
    recomputations: tuple[Recomputation, ...] = ()
    waiting: float | None = None
    threads_set: str = ""

    @property
    def step_us(self) -> float:
        """The mean of the timed steps; of a trace without steps, all that it holds."""
        if self.steps_us:
            return statistics.fmean(self.steps_us)
        return sum(
            max(one.self_host_us + one.python_us, one.self_device_us) for one in self.operators
        )


def time_text(microseconds: float) -> str:
    """Microseconds as they are read: in us, ms or s."""
    for factor, unit in ((1e6, "s"), (1e3, "ms")):
        if microseconds >= factor:
            return f"{microseconds / factor:.3g} {unit}"
    return f"{microseconds:.3g} us"
