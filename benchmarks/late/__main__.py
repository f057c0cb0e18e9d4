"""`python -m benchmarks.late [--seed N] [--only NAME]`: late faults named, and sound trainings accused.

Each fault begins at a step that the seed draws. Both runs record windows around some steps, of which one holds it, as
after closing in; the candidate runs on the emulated device `reorder` and is set to the reference's states.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
from benchmarks.late.faults import FAULTS, SOUND, partner_of
from benchmarks.late.training import STEPS, Training

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.verdict_words import headline, lines_below

_FIRST = 20


def recorded(directory: Path, training: Training, **options: Any) -> Path:
    """Record a training, and return where."""
    gc.collect()
    with lockstep.record(directory, **options):
        training.run()
    return directory


def compared(work: Path, reference: Training, candidate: Training, windows: str) -> Comparison:
    """Compare two trainings in windows."""
    left = recorded(work / "ref", reference, windows=windows)
    return compare_recordings(
        left, recorded(work / "cand", candidate, start_from=left, emulate="reorder")
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    draws, named, accused, tried = random.Random(given.seed), 0, 0, [0, 0]
    for name, (make, words) in FAULTS.items():
        late = draws.randrange(_FIRST, STEPS - 4)
        if given.only and name not in given.only:
            continue
        late = late // 16 * 16 if name == "epoch" else late
        with tempfile.TemporaryDirectory() as work:
            windows = f"0:2,{late}:{late + 2}"
            found = compared(Path(work), partner_of(name), make(late), windows)
        told = headline(found)
        answer = " ".join([told, *lines_below(found)])
        is_named = found.verdict is Verdict.DIVERGED and any(word in answer for word in words)
        named, tried[0] = named + is_named, tried[0] + 1
        print(
            f"{'named ' if is_named else 'MISSED'} {name} at step {late}: {told[:150]}", flush=True
        )
    for name, sound in SOUND.items():
        middle = draws.randrange(_FIRST, STEPS - 4)
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as work:
            found = compared(Path(work), sound(), sound(), f"0:2,{middle}:{middle + 2}")
        is_accused = found.verdict is not Verdict.AGREE or bool(
            found.step_logs and found.step_logs.left
        )
        accused, tried[1] = accused + is_accused, tried[1] + 1
        print(f"{'FALSE ' if is_accused else 'silent'} {name}: {headline(found)[:150]}", flush=True)
    print(
        f"{named} of {tried[0]} late faults named; {accused} of {tried[1]} sound trainings accused"
    )


if __name__ == "__main__":
    main()
