"""Runs a row: makes the recordings that are not there yet, compares them, says what came of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pairs import Row, Side

_HERE = Path(__file__).parent
_LIMIT_S = 240.0
"""A recording or a comparison takes seconds, a compiled one a minute: what takes this long hangs."""

SKIPPED = 77
NAMED = ("exact", "module")


class UnavailableError(Exception):
    """The device does not have what a row needs."""


class FailedError(Exception):
    """A command that should work did not."""


@dataclass(frozen=True)
class Runner:
    """Records and compares on one device.

    Parameters
    ----------
    out
        Folder of the campaign.
    device
        As `torch.device` has it.
    emulate
        For a device that a CPU emulates, its name; else "".
    """

    out: Path
    device: str
    emulate: str = ""

    def row(self, row: Row) -> dict[str, Any]:
        """Do one row; what is to be kept of it."""
        start = time.monotonic()
        try:
            said = self._compared(row)
        except UnavailableError as error:
            said = {"answer": "not on this device", "why": str(error)}
        except FailedError as error:
            said = {"answer": "failed", "why": str(error)}
        said["seconds"] = round(time.monotonic() - start, 1)
        if said["answer"] not in ("as it should be", "not on this device"):
            self._keep_summary(row, said)
        return said

    def forget(self, group: str, name: str) -> None:
        """Delete a recording that no row to come compares."""
        shutil.rmtree(self._folder(group) / name, ignore_errors=True)

    def made(self) -> list[tuple[str, str]]:
        """Group and name of all recordings that are there."""
        found = (self.out / "recordings").glob("*/*/manifest.json")
        return [(one.parents[1].name.replace(" ", "/"), one.parent.name) for one in found]

    def _folder(self, group: str) -> Path:
        return self.out / "recordings" / group.replace("/", " ")

    def _compared(self, row: Row) -> dict[str, Any]:
        reference, candidate = (self._recording(row, side) for side in row.sides)
        command = [sys.executable, str(_HERE / "judging.py"), str(reference), str(candidate)]
        if row.candidate.fault:
            planted = self._planted(row, row.candidate)
            command += ["--training", row.training, "--planted", str(planted)]
        said: dict[str, Any] = json.loads(_run(command).stdout.splitlines()[-1])
        said["answer"] = "as it should be" if _is_right(row, said) else _wrong(row)
        return said

    def _recording(self, row: Row, side: Side) -> Path:
        """The recording of a side; made aside and renamed, so that a killed run leaves none that is incomplete."""
        target = self._folder(row.group) / side.name
        if (target / "manifest.json").exists():
            return target
        aside = target.with_name(f".{side.name}-{os.getpid()}")
        command = self._training(row, side)
        if side.fault:
            command += ["--planted", str(self._planted(row, side))]
        emulate = ["--emulate", self.emulate] if self.emulate and not side.on_cpu else []
        recorded = ["record", "-o", str(aside), "--force", *emulate, "--", *command]
        done = _run([sys.executable, "-m", "lockstep", *recorded], allowed=(0, 1, 2, SKIPPED))
        if done.returncode:
            shutil.rmtree(aside, ignore_errors=True)
            raise self._why(command, done)
        aside.rename(target)
        return target

    def _why(self, command: list[str], done: subprocess.CompletedProcess[str]) -> Exception:
        """Whether the device lacks something, as where the training fails without Lockstep too."""
        if done.returncode == SKIPPED:
            return UnavailableError(_said(done))
        bare = _run(command, allowed=range(256))
        if bare.returncode:
            return UnavailableError(f"it does not train there: {_last(bare)}")
        return FailedError(f"recording failed: {_last(done)}")

    def _training(self, row: Row, side: Side) -> list[str]:
        device = "cpu" if side.on_cpu else self.device
        # TF32 is how a card computes fp32: beside it, a CPU does just that.
        precision = "fp32" if side.on_cpu and row.precision == "tf32" else row.precision
        options = ["--device", device, "--precision", precision, "--variant", side.variant]
        return [sys.executable, str(_HERE / "trainings.py"), row.training, *options]

    def _planted(self, row: Row, side: Side) -> Path:
        """The file that says where the fault of a side is; drawn where it is not there."""
        path = self._folder(row.group) / f"{side.fault}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            aside = path.with_suffix(f".{os.getpid()}")
            done = _run(
                [*self._training(row, side), "--draw", side.fault, "--planted", str(aside)],
                allowed=(0, SKIPPED),
            )
            if done.returncode:
                raise UnavailableError(_said(done))
            aside.rename(path)
        return path

    def _keep_summary(self, row: Row, said: dict[str, Any]) -> None:
        """What the screen shows of a row that is not as it should be, and of both its recordings."""
        parts = [f"{row.name}: {said['answer']}", json.dumps(said, indent=1)]
        sides = [self._folder(row.group) / side.name for side in row.sides]
        if all(side.exists() for side in sides):
            for words in (["compare", *map(str, sides)], *(["show", str(one)] for one in sides)):
                done = _run([sys.executable, "-m", "lockstep", *words], allowed=range(256))
                shown = " ".join(Path(word).name for word in words)
                parts.append(f"$ lockstep {shown}\n{done.stdout}{done.stderr}")
        target = self.out / "findings" / f"{row.name.replace('/', ' ')}.txt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text("\n\n".join(parts))


def _is_right(row: Row, said: dict[str, Any]) -> bool:
    if row.candidate.fault:
        return said["score"] in NAMED
    return said["exit_code"] == 0


def _wrong(row: Row) -> str:
    return "not named" if row.candidate.fault else "false alarm"


def _run(command: list[str], *, allowed: Any = (0,)) -> subprocess.CompletedProcess[str]:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        raise FailedError(f"took longer than {_LIMIT_S:.0f} s: {Path(command[1]).name}") from None
    if done.returncode not in allowed:
        raise FailedError(f"{Path(command[1]).name} ended with {done.returncode}: {_last(done)}")
    return done


def _said(done: subprocess.CompletedProcess[str]) -> str:
    """What a training says that the device lacks."""
    mark = "not on this device: "
    lines = [line for line in done.stderr.splitlines() if line.startswith(mark)]
    return lines[-1].removeprefix(mark) if lines else _last(done)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that was said."""
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return lines[-1].strip() if lines else "nothing was said"
