"""How fast a log is looked through, and in how much memory."""

from __future__ import annotations

import random
import statistics
from collections.abc import Iterator
from pathlib import Path

from bench import AtLeast, AtMost, Bench, Row
from children import LOCKSTEP, measured

_LINES = 20_000


def rows(bench: Bench) -> Iterator[Row]:
    """A healthy training's log, which has to be read to its end, as a process; `wc -l` beside it, which only counts.

    Seconds are those of the processor: both run on one thread, and what else the machine does is left out.
    """
    log = bench.directory / "train.log"
    size = _write(log, bench.size.log_bytes)
    starts, counts, looks = [], [], []
    for _ in range(bench.rounds):
        starts.append(measured((*LOCKSTEP, "diagnose", "--help")).cpu_s)
        counts.append(measured(("wc", "-l", str(log))).cpu_s)
        looks.append(measured((*LOCKSTEP, "diagnose", str(log))))
    log.unlink()
    counted = [size / max(one, 1e-3) / 1e6 for one in counts]
    looked = [size / max(one.cpu_s - min(starts), 1e-3) / 1e6 for one in looks]
    wall = statistics.median(one.wall_s for one in looks)
    peaks = [one.peak_bytes / 1e6 for one in looks]
    note = f"{size / 1e6:.0f} MB, without the start; {wall:.3g} s on the clock, with it"
    yield Row("wc -l", "MB/s", statistics.median(counted), max(counted))
    yield Row("diagnose", "MB/s", statistics.median(looked), max(looked), AtLeast(200), note)
    yield Row("diagnose: peak", "MB", statistics.median(peaks), min(peaks), AtMost(200))


def _write(log: Path, size: int) -> int:
    """Lines of a training, a progress bar among them, again and again until the file is large enough."""
    numbers = random.Random(0)
    lines = "".join(
        f"2026-11-24 14:{step // 60 % 60:02d}:{step % 60:02d} INFO trainer: step {step} loss {numbers.random():.4f}"
        f" lr 1.00e-04 grad_norm {numbers.random():.3f} tokens/s {numbers.random() * 1e5:.1f}\n"
        + (
            f"\rTraining: {step % 100}%|####| {step}/{_LINES} [00:10<00:10, 12.3it/s]"
            if step % 10 == 0
            else ""
        )
        for step in range(_LINES)
    ).encode()
    with log.open("wb") as file:
        while file.tell() < size:
            file.write(lines)
        return file.tell()
