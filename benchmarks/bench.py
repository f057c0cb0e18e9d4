"""What every workload works with: its size, its scratch directory, and the rows that it gives."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Size:
    """How large the workloads are.

    Parameters
    ----------
    layers, width, heads, vocabulary, batch, tokens
        The GPT-2 that is trained.
    small_operations
        Operators in one forward pass of the tiny model.
    tiny_parameters, chained_operators
        Parameters of a few numbers in one training, and operators on a few numbers in one graph.
    slow_disk_bytes_per_s
        How fast the disk is that is slowed on purpose.
    probe_bytes
        Size of one array of `torch.dot`.
    whole_bytes, many_bytes
        Sizes of both recordings together at which the memory of a comparison is taken; `many_bytes` only on request.
    records, many_records
        Tensor records of a recording of sketches; `many_records` only on request.
    armed_blocks
        Blocks of steps outside of the chosen ones.
    memory_weights
        Weights whose memory is taken.
    log_bytes
        Size of the log that is looked through.
    watched_steps
        Steps of a command that is watched.
    """

    layers: int = 6
    width: int = 384
    heads: int = 6
    vocabulary: int = 50257
    batch: int = 4
    tokens: int = 128
    small_operations: int = 1000
    tiny_parameters: int = 5000
    chained_operators: int = 100_000
    slow_disk_bytes_per_s: float = 200e6
    probe_bytes: int = 256 << 20
    whole_bytes: tuple[int, ...] = (2 << 30, 4 << 30)
    many_bytes: tuple[int, ...] = (10 << 30, 20 << 30)
    records: tuple[int, ...] = (25_000, 100_000)
    many_records: tuple[int, ...] = (1_000_000,)
    armed_blocks: int = 40
    memory_weights: tuple[str, ...] = ("stats", "sketch", "tensors")
    log_bytes: int = 1 << 30
    watched_steps: int = 12

    def __str__(self) -> str:
        return f"GPT-2 {self.layers} x {self.width}, batch {self.batch} x {self.tokens}, AdamW"


TOY = Size(
    layers=1, width=32, heads=2, vocabulary=64, batch=2, tokens=8, small_operations=20,
    tiny_parameters=20, chained_operators=40,
    slow_disk_bytes_per_s=20e6, probe_bytes=1 << 20, whole_bytes=(1 << 20,), many_bytes=(), records=(400,),
    many_records=(), armed_blocks=2, memory_weights=("tensors",), log_bytes=1 << 20, watched_steps=4,
)  # fmt: skip
"""Small enough for a test of the harness; the figures mean nothing."""


@dataclass(frozen=True)
class Bench:
    """One run of the benchmark: where it may write, how often it measures."""

    directory: Path
    size: Size
    rounds: int
    large: bool = False
    device: str = "cpu"


@dataclass(frozen=True)
class AtMost:
    """A bar that a figure must not pass."""

    limit: float

    def is_met(self, value: float) -> bool:
        """Whether the figure is good enough."""
        return value <= self.limit

    def __str__(self) -> str:
        return f"<= {self.limit:g}"


@dataclass(frozen=True)
class AtLeast:
    """A bar that a figure must reach."""

    limit: float

    def is_met(self, value: float) -> bool:
        """Whether the figure is good enough."""
        return value >= self.limit

    def __str__(self) -> str:
        return f">= {self.limit:g}"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Parameters
    ----------
    what
        What was measured.
    unit
        Of all its figures: x (ratio to the bare run), s, ms, MB, GB/s, %.
    median
        Held against the bar.
    best
        Of all rounds, where there were several.
    bar
        None where the figure is given for information.
    note
        What else is worth knowing.
    """

    what: str
    unit: str
    median: float
    best: float | None = None
    bar: AtMost | AtLeast | None = None
    note: str = ""

    @property
    def met(self) -> str:
        """Yes, no, or "" where there is no bar."""
        if self.bar is None:
            return ""
        return "yes" if self.bar.is_met(self.median) else "no"


def ratio_row(
    what: str,
    recorded: Sequence[float],
    bare: Sequence[float],
    *,
    bar: AtMost | None = None,
    note: str = "",
) -> Row:
    """A ratio of medians, with the ratio of minima beside it."""
    median = statistics.median(recorded) / statistics.median(bare)
    times = f"{statistics.median(recorded):.3g} s against {statistics.median(bare):.3g} s"
    note = f"{times}; {note}" if note else times
    return Row(what, "x", median, min(recorded) / min(bare), bar, note)


def seconds(work: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bytes_below(directory: Path) -> int:
    """Size of all files of a directory."""
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
