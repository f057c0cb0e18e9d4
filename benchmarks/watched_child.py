"""A training of its own whose steps are timed by themselves; run as a script, bare or as the command of a verb.

    python watched_child.py STEPS TIMES SIZE

TIMES is the file that gets what each step took as JSON: seconds by the clock, and seconds of processor time of this
process and of the one that has started it, which looks at the steps where it is a verb. SIZE is a `bench.Size` as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import trainings
from bench import Size


def main() -> None:
    """Train, and write down what each step took from the end of the one before."""
    steps, target, size = sys.argv[1:]
    step = trainings.gpt2(Size(**json.loads(size)))
    took, last = [], _now()
    for _ in range(int(steps)):
        step()
        now = _now()
        took.append([now[0] - last[0], now[1] - last[1]])
        last = now
    Path(target).write_text(json.dumps(took))


def _now() -> tuple[float, float]:
    """Seconds by the clock, and of processor time of both processes; of this one alone where there is no /proc."""
    told = Path(f"/proc/{os.getppid()}/stat")
    if not told.exists():
        return time.perf_counter(), time.process_time()
    fields = told.read_text().rpartition(")")[2].split()
    used = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return time.perf_counter(), time.process_time() + used


if __name__ == "__main__":
    main()
