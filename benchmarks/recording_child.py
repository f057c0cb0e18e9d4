"""A training in a process of its own, bare or recorded, on a disk that may be slowed on purpose; run as a script.

    python recording_child.py STEPS SAVE TARGET BYTES_PER_S SIZE

SAVE is "" for a bare run, BYTES_PER_S is 0 for the disk as it is, SIZE is a `bench.Size` as JSON.
"""

from __future__ import annotations

import builtins
import io
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import trainings
from bench import Size

import lockstep


def main() -> None:
    """Train, and print the seconds from the first step until the recording is closed."""
    steps, save, target, speed, size = sys.argv[1:]
    step = trainings.gpt2(Size(**json.loads(size)))
    step()
    if float(speed):
        slow_down(Path(target), float(speed))
    start = time.perf_counter()
    if save:
        with lockstep.record(target, steps=f"0:{steps}", save=save):
            for _ in range(int(steps)):
                step()
    else:
        for _ in range(int(steps)):
            step()
    print(time.perf_counter() - start)


def slow_down(directory: Path, bytes_per_s: float) -> None:
    """Let every write below a directory take as long as on a disk of this speed, whatever calls are used for it."""
    real_open, below = io.open, str(directory)

    def wait(count: int) -> int:
        time.sleep(count / bytes_per_s)
        return count

    class SlowFile(io.FileIO):
        def write(self, data: Any) -> int:
            return wait(super().write(data))

    def slow_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if mode in ("wb", "xb", "ab") and str(file).startswith(below):
            return io.BufferedWriter(SlowFile(file, mode))
        return real_open(file, mode, *args, **kwargs)

    def slowed(name: str) -> Any:
        real = getattr(os, name)
        return lambda *args, **kwargs: wait(real(*args, **kwargs))

    io.open = builtins.open = slow_open
    for name in ("write", "writev", "pwrite", "pwritev", "sendfile", "copy_file_range"):
        if hasattr(os, name):
            setattr(os, name, slowed(name))


if __name__ == "__main__":
    main()
