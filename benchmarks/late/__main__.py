"""`python -m benchmarks.late`: late faults named, and sound trainings accused, as `--help` says.

Each fault begins at a step that the seed draws. Both runs record windows around some steps, of which one holds it, as
after closing in; the candidate runs on an emulated device, `reorder` by default, and is set to the reference's states.
"""

from __future__ import annotations

import argparse
import gc
import random
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.late.faults import FAULTS, SOUND, partner_of
from benchmarks.late.training import Training

import lockstep
from lockstep.comparison import compare_recordings
from lockstep.core.errors import ExitCode
from lockstep.core.finding import Comparison, Verdict
from lockstep.report.comparison.verdict_words import headline, lines_below

_FIRST, _LAST = 20, 600
_REORDER = "reorder"


Makes = Callable[[], Training]


def recorded(directory: Path, make: Makes, **options: Any) -> Path:
    """Record a training of which nothing is left in this process afterwards, and return where."""
    with lockstep.record(directory, **options):
        make().run()
    gc.collect()
    return directory


def compared(
    work: Path, reference: Makes, candidate: Makes, windows: str, device: str = _REORDER
) -> Comparison:
    """Compare two trainings in windows; a device that computes in lower precision is calibrated."""
    left = recorded(work / "ref", reference, windows=windows)
    right = recorded(work / "cand", candidate, start_from=left, emulate=device)
    if device == _REORDER:
        return compare_recordings(left, right)
    calibration = recorded(work / "cal", reference, start_from=left, emulate=device, calibrate=True)
    return compare_recordings(left, right, calibration=lockstep.open(calibration))


def named_step(found: Comparison) -> int | None:
    """Return the first step that the answer names: by the step log or an origin, else by a window."""
    logged = None if found.step_logs is None else found.step_logs.first
    steps = [one.step for one in found.origins] + ([logged.step] if logged else [])
    windows = [one.steps[0] for one in found.windows if one.verdict is not Verdict.AGREE]
    return min(steps or windows, default=None)


def is_named(found: Comparison, late: int, words: tuple[str, ...]) -> bool:
    """Whether the step is named within its window, and the operator or setting in the first lines."""
    answer = " ".join([headline(found), *lines_below(found)])
    is_told = any(word in answer for word in words)
    return found.verdict is Verdict.DIVERGED and is_told and named_step(found) in (late, late + 1)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--device", default=_REORDER, help="reorder, or npu-fp16, which is calibrated"
    )
    parser.add_argument("--only", action="append", default=[])
    given = parser.parse_args()
    torch.set_num_threads(1)
    draws, named, accused, tried = random.Random(given.seed), 0, 0, [0, 0]
    for name, (make, words) in FAULTS.items():
        late = draws.randrange(_FIRST, _LAST + 1)
        if given.only and name not in given.only:
            continue
        late = late // 16 * 16 if name == "epoch" else late
        with tempfile.TemporaryDirectory() as work:
            windows = f"0:2,{late}:{late + 2}"
            found = compared(
                Path(work),
                partial(partner_of, name, late),
                partial(make, late),
                windows,
                given.device,
            )
        right = is_named(found, late, words)
        named, tried[0] = named + right, tried[0] + 1
        print(
            f"{'named ' if right else 'MISSED'} {name} at step {late}: {headline(found)[:150]}",
            flush=True,
        )
    for name, sound in SOUND.items():
        middle = draws.randrange(_FIRST, _LAST + 1)
        if given.only and name not in given.only:
            continue
        with tempfile.TemporaryDirectory() as work:
            found = compared(Path(work), sound, sound, f"0:2,{middle}:{middle + 2}", given.device)
        # As who runs the command reads it: another precision throughout, of no operator, ends with 0.
        left = found.step_logs is not None and found.step_logs.left is not None
        is_accused = found.exit_code() != ExitCode.AGREES or left
        accused, tried[1] = accused + is_accused, tried[1] + 1
        print(f"{'FALSE ' if is_accused else 'silent'} {name}: {headline(found)[:150]}", flush=True)
    print(
        f"{named} of {tried[0]} late faults named; {accused} of {tried[1]} sound trainings accused"
    )


if __name__ == "__main__":
    main()
