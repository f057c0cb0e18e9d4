"""Running a training's command under the profiler, and reading what each of its ranks left."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.errors import UsageError
from lockstep.launch import launch
from lockstep.options import StepSelection
from lockstep.recordings import Options
from lockstep.terminal import tell
from lockstep_tune.marks import BESIDE, TRACE, VARIABLE
from lockstep_tune.profile import Profile
from lockstep_tune.trace import read_profile

_INSIDE = "lockstep_tune.profiling"


@dataclass(frozen=True, slots=True)
class Profiled:
    """A command that has ended: its exit code, and a profile for each rank."""

    code: int
    ranks: tuple[Profile, ...]


def steps_of(text: str) -> tuple[int, int]:
    """The first step, and the one after the last. Raises UsageError if these are not steps in a row."""
    ranges = StepSelection.parse(text).ranges
    first, end, every = ranges[0]
    if len(ranges) > 1 or end is None or every != 1:
        raise UsageError(f"--steps {text}: the profiler takes steps in a row, as in 3:8")
    return first, end


def profile_command(
    command: Sequence[str], into: Path, steps: str, max_steps: int | None, **streams: Any
) -> Profiled:
    """Run a command and profile its training.

    into: Where each rank leaves its trace.
    steps: Which steps, as in `3:8`.
    max_steps: After how many the training ends; None for as many as it has.
    streams: As `lockstep.launch.launch` takes them.

    Raises UsageError if the command cannot be started, or nothing was profiled.
    """
    first, end = steps_of(steps)
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )
    options = Options(steps=steps, max_steps=max_steps, loads=[_INSIDE], records_nothing=True)
    request = json.dumps({"into": str(into.absolute()), "steps": [first, end]})

    def adjusted(environment: dict[str, str]) -> dict[str, str]:
        return {**environment, VARIABLE: request, "KINETO_LOG_LEVEL": "5"}

    for old in (file for name in (TRACE, BESIDE) for file in into.glob(f"rank*/{name}")):
        old.unlink()  # that of an earlier command would be read as of this one
    with tempfile.TemporaryDirectory(
        prefix="lockstep-profile-", ignore_cleanup_errors=True
    ) as name:
        ended = launch(command, Path(name) / "run", options, adjust=adjusted, hear=tell, **streams)
    folders = sorted(into.glob("rank*"), key=lambda one: (len(one.name), one.name))
    found = [read_profile(one) for one in folders if (one / TRACE).exists()]
    profiles = [one for one in found if one.steps_us]
    if not profiles:
        failed = f"the command ended with exit code {ended.code}; " if ended.code else ""
        raise UsageError(
            f"nothing was profiled: {failed}{_reason(folders, first, ended.why_nothing)}"
        )
    peak = measured_peak(profiles[0].threads)
    return Profiled(ended.code, tuple(replace(one, peak_flops=peak) for one in profiles))


def measured_peak(threads: int) -> float | None:
    """Return FLOP/s of a product of two float32 matrices with so many threads, None where it cannot be measured."""
    command = [sys.executable, "-m", "lockstep_tune.peak", str(threads)]
    ended = subprocess.run(command, capture_output=True, text=True)
    return float(json.loads(ended.stdout)) if ended.returncode == 0 else None


def _reason(folders: Sequence[Path], first: int, why_nothing: str) -> str:
    for folder in (one for one in folders if (one / BESIDE).exists()):
        noted = json.loads((folder / BESIDE).read_text(encoding="utf-8"))
        if noted["problem"]:
            return f"torch.profiler did not start, as where the script profiles itself: {noted['problem']}"
        if noted["trained"] <= first and noted.get("unfinished") is None:
            return (
                f"the training ended after {noted['trained']} steps, before step {first} began;"
                " choose earlier steps with --steps"
            )
        if noted.get("unfinished") is not None:
            return (
                f"the training ended in step {noted['unfinished']}, before a step from {first} on was over;"
                " choose earlier steps with --steps"
            )
    return why_nothing
