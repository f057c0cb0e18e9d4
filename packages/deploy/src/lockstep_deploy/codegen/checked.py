"""Building a generated program here, running it, and holding its results against the runtime's."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep.judging import measure_tensors
from lockstep_deploy.quantize.graphs import Graph
from lockstep_deploy.runtime import Array, Level, Session, Settings

_SECONDS = 300
_DRAWS = 4
_BEYOND = 4.0


@dataclass(frozen=True, slots=True)
class Held:
    """A result of the program beside the runtime's.

    name: Of the result.
    equal: Share of its elements that are equal, bit by bit.
    max_ulp, max_abs: How far they are off at most; NaN where the dtype has no such count.
    allowed: How far they may be off.
    """

    name: str
    equal: float
    max_ulp: float
    max_abs: float
    allowed: float

    @property
    def agrees(self) -> bool:
        """Whether what is off is allowed; NaN never is."""
        return self.equal == 1.0 or self.max_abs <= self.allowed


def recorded(model: Any, samples: Sequence[Mapping[str, Array]]) -> list[dict[str, Array]]:
    """Return the runtime's results on samples, node by node as the file says it."""
    session = Session(model, Settings(Level.NONE))
    return [session.run(one) for one in samples]


def allowed_differences(
    model: Any, samples: Sequence[Mapping[str, Array]], results: Sequence[Mapping[str, Array]]
) -> dict[str, float]:
    """How far each result may be off where only the order of sums is another.

    Measured: what the results change by where each input changes by a unit in its last place, at most over four draws
    of signs, times the number of nodes, each of which rounds anew, times four; and at least one unit in the last place
    of the largest result for each node. A result that is quantised may be one step off: what is rounded may lie
    between two.
    """
    session = Session(model, Settings(Level.NONE))
    nodes = len(model.graph.node)
    draw = np.random.default_rng(0)
    changes = dict.fromkeys(results[0], 0.0)
    for _ in range(_DRAWS):
        for sample, result in zip(samples, results, strict=True):
            moved = session.run({name: _moved(array, draw) for name, array in sample.items()})
            for name, found in moved.items():
                difference = np.abs(
                    np.asarray(found, dtype="f8") - np.asarray(result[name], dtype="f8")
                )
                changes[name] = max(changes[name], float(np.max(difference, initial=0.0)))
    steps = _steps(model)
    allowed = {}
    for name, change in changes.items():
        if results[0][name].dtype.kind != "f":
            allowed[name] = 1.0 if name in steps else 0.0
            continue
        largest = max(float(np.max(np.abs(one[name]), initial=0.0)) for one in results)
        unit = float(np.finfo(results[0][name].dtype).eps) * largest
        allowed[name] = max(
            steps.get(name, 0.0) * 1.001,
            nodes * max(unit, _BEYOND * change if name not in steps else unit),
        )
    return allowed


def _moved(array: Array, draw: np.random.Generator) -> Array:
    if array.dtype.kind != "f":
        return array
    signs = draw.choice(np.array([-1.0, 1.0]), array.shape)
    return np.asarray(np.nextafter(array, np.copysign(np.inf, signs), dtype=array.dtype))


def _steps(model: Any) -> dict[str, float]:
    """The step of each result that is quantised."""
    graph = Graph(model)
    found = {}
    for one in model.graph.output:
        grid = graph.grid_behind(one.name)
        if grid is not None:
            found[one.name] = grid.step
    return found


def compiler() -> str | None:
    """The C compiler of this machine; None where there is none."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def built_and_run(
    folder: Path,
    name: str,
    results: Sequence[Mapping[str, Array]],
    allowed: Mapping[str, float],
    cc: str,
) -> list[Held]:
    """Build the program in its folder, run it on its samples, and measure each result.

    Raises UsageError if the compiler refuses it, or it fails.
    """
    target = folder / "check-lockstep"
    sources = [f"{name}.c", "weights.c", "test.c"]
    flags = ["-std=c99", "-O2", "-ffp-contract=off", "-fno-strict-aliasing", "-DLOCKSTEP_DUMP"]
    _run([cc, *flags, "-o", target.name, *sources, "-lm"], folder, "cannot be built")
    try:
        lines = _run([f"./{target.name}"], folder, "fails", codes=(0, 1)).split()
    finally:
        target.unlink(missing_ok=True)
    names = list(results[0])
    if len(lines) != len(results) * len(names):
        raise UsageError(
            f"{folder}: the program gave {len(lines)} results, not {len(results) * len(names)}"
        )
    held = []
    for at, result in enumerate(names):
        kind = results[0][result].dtype
        exact = np.stack([one[result] for one in results])
        found = np.stack(
            [np.frombuffer(bytes.fromhex(line), kind) for line in lines[at :: len(names)]]
        ).reshape(exact.shape)
        metrics = measure_tensors(exact, found, dtype=str(kind))
        same = (exact.view(np.uint8) == found.view(np.uint8)).reshape(-1, kind.itemsize).all(axis=1)
        off = np.abs(exact.astype("f8") - found.astype("f8"))
        held.append(
            Held(
                result,
                float(same.mean()),
                metrics.max_ulp,
                float(np.max(off, initial=0.0)),
                allowed[result],
            )
        )
    return held


def _run(command: list[str], folder: Path, what: str, codes: tuple[int, ...] = (0,)) -> str:
    try:
        ended = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"the C program {what} ({error})") from error
    if ended.returncode not in codes:
        said = next(
            (line for line in ended.stderr.splitlines() if "error" in line),
            ended.stderr.strip()[-200:],
        )
        raise UsageError(
            f"the C program {what} ({command[0]} ended with {ended.returncode}: {said or 'no message'})"
        )
    return ended.stdout
