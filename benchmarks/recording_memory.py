"""Memory that recording adds, also where the disk is slow; every run is a process of its own."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import AtMost, Bench, Row, bytes_below
from children import Usage, measured

_STEPS = 3
_BAR = AtMost(1000.0)


def rows(bench: Bench) -> Iterator[Row]:
    """Peak of each recorded run, less that of a bare one."""
    bare = _run(bench, "", slow=False)[0].peak_bytes
    yield Row("bare run", "MB", bare / 1e6)
    for save in bench.size.memory_weights:
        for slow in (False, True):
            used, written = _run(bench, save, slow=slow)
            wall = float(used.output.split()[-1])
            speed = bench.size.slow_disk_bytes_per_s
            if slow and written / wall > 1.5 * speed:
                raise RuntimeError(f"{written / wall / 1e6:.0f} MB/s: the disk was not slowed down")
            disk = f"disk slowed to {speed / 1e6:.0f} MB/s" if slow else "disk as it is"
            note = f"{written / 1e6:.0f} MB written in {wall:.1f} s, {_STEPS} steps"
            extra = (used.peak_bytes - bare) / 1e6
            yield Row(f"{save}, {disk}", "MB", max(extra, 0.0), None, _BAR, note)


def _run(bench: Bench, save: str, *, slow: bool) -> tuple[Usage, int]:
    """One training; what it used and how many bytes it left."""
    target = bench.directory / "memory"
    command = [
        sys.executable, str(Path(__file__).with_name("recording_child.py")), str(_STEPS), save, str(target),
        str(bench.size.slow_disk_bytes_per_s if slow else 0), json.dumps(dataclasses.asdict(bench.size)),
    ]  # fmt: skip
    used = measured(command)
    written = bytes_below(target) if save else 0
    shutil.rmtree(target, ignore_errors=True)
    return used, written
