"""A training of its own whose steps are timed by themselves; run as a script, bare or as the command of a verb.

    python watched_child.py STEPS TIMES SIZE

TIMES is the file that gets the seconds of each step as JSON, SIZE is a `bench.Size` as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import trainings
from bench import Size


def main() -> None:
    """Train, and write down how long each step took from the end of the one before."""
    steps, target, size = sys.argv[1:]
    step = trainings.gpt2(Size(**json.loads(size)))
    took, last = [], time.perf_counter()
    for _ in range(int(steps)):
        step()
        now = time.perf_counter()
        took.append(now - last)
        last = now
    Path(target).write_text(json.dumps(took))


if __name__ == "__main__":
    main()
