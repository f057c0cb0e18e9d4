"""The same cases through mindstudio-probe: record and compare as its documentation says, in an environment of its own.

`rows` runs in the benchmark's process: it makes the environment and starts the benchmark there once more, on the same
cases. `take_over` runs in that second process: from then on trainings are dumped and compared by the peer.
"""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any

import sites
import torch
import workers
from cases import Case
from environment import PACKAGE, installed
from pool import forked
from score import Answer, Score, is_near
from torch.overrides import get_overridable_functions, resolve_name
from training import Training
from twins import Twin

RULES = ("peer: error", "peer: error or warning")
"""What counts as a flagged row: its `Result` column says one of these words."""

_COMPARE_TIMEOUT_S = 120.0


# ---------------------------------------------------------------------------- in our environment


def rows(environment: Path, selection: Sequence[str]) -> list[dict[str, Any]]:
    """Run the benchmark in the peer's environment.

    Parameters
    ----------
    environment
        Directory of the environment; it is made where it is not there.
    selection
        Command-line options that choose the same cases.
    """
    python = installed(environment)
    with tempfile.TemporaryDirectory(prefix="lockstep-faults-peer-") as name:
        results = Path(name) / "results"
        command = [
            str(python), str(Path(__file__).parent), "--as-peer", *selection,
            "--results", str(results),
        ]  # fmt: skip
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if not results.exists():
            return []
        return [json.loads(line) for line in results.read_text().splitlines()]


# ------------------------------------------------------------------------- in its environment


@dataclass(frozen=True)
class Flagged:
    """The first flagged row of the peer's tables.

    `module` is the path of the module that the row is of or inside of, None outside of all; `phase` is forward,
    backward or optimizer.
    """

    row: str
    result: str
    step: int
    module: str | None
    phase: str


def take_over() -> workers.Methods:
    """Let the peer record and compare instead of Lockstep, in this process."""
    resolve_name(
        torch.add
    )  # torch lists the names of its functions once: before the peer wraps them
    import msprobe.msprobe  # noqa: F401 - takes seconds; here it is done before processes are forked

    run = Training.run

    def dumped(training: Training, recording: Path | None = None, *, save: str = "") -> list[float]:
        if recording is not None:
            _dump_steps(training, recording)
        return run(training)

    Training.run = dumped  # type: ignore[method-assign,assignment]
    workers.compare = compare  # type: ignore[assignment]
    workers.score_fault = score_fault  # type: ignore[assignment]
    workers.score_twin = score_twin  # type: ignore[assignment]
    return workers.Methods(("tensors",), RULES)


def _dump_steps(training: Training, directory: Path) -> None:
    """Put start, stop and step of the peer around every step, with whole tensors of operators and modules."""
    from msprobe.pytorch import PrecisionDebugger

    holders = get_overridable_functions()
    before = [
        (holder, name, getattr(holder, name)) for holder in holders for name in dir(holder)
    ]  # fmt: skip
    debugger = PrecisionDebugger(task="tensor", dump_path=str(directory), level="mix")
    step = training._step

    def watched(number: int, batch: Any, optimizer: torch.optim.Optimizer) -> torch.Tensor:
        debugger.start(model=training.model)
        if number == 0:
            _look_through_wrappers(before)
        loss = step(number, batch, optimizer)
        debugger.stop()
        debugger.step()
        return loss

    training._step = watched  # type: ignore[method-assign]


def _look_through_wrappers(before: Sequence[tuple[Any, str, Any]]) -> None:
    """Let the mode that plants faults see torch's own functions, and those calls only that the training makes."""
    original: dict[int, Any] = {}
    for holder, name, function in before:
        now = getattr(holder, name, function)
        if now is not function and callable(now):
            original[id(now)] = function
    seen = sites.OperatorMode.__torch_function__

    def unwrapped(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        function = original.get(id(func), func)
        if _is_called_by_peer():
            return function(*args, **(kwargs or {}))
        return seen(mode, function, types, args, kwargs)

    sites.OperatorMode.__torch_function__ = unwrapped  # type: ignore[method-assign,assignment]


_WRAPPERS = frozenset({
    "api_function", "__call__", "_call_func", "inner", "forward", "tensor_module_forward", "dist_module_forward",
    "wrapped_forward",
})  # fmt: skip
"""Functions of the peer that stand between the training's call of an operator or module and what runs."""


def _is_called_by_peer() -> bool:
    """Whether a torch function is called by the peer's hooks, which describe tensors, and not by the training."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        if "msprobe" in file.parts and frame.f_code.co_name not in _WRAPPERS:
            return True
        if file.name == "module.py":  # torch.nn.Module runs a forward here
            return False
        frame = frame.f_back
    return False


# ------------------------------------------------------------------------------------- comparing


def compare(reference: Path, candidate: Path, weight: str, rule: str) -> Flagged | None:
    """The first flagged row by this rule, None where no row is; every step is compared, with the peer's command."""
    words = rule.removeprefix("peer: ").split(" or ")
    for step in range(len(list(reference.glob("step*")))):
        folder = f"step{step}"
        started_backward = False
        for line in _table(reference / folder, candidate / folder):
            name = line["NPU Name"]
            side = candidate
            if name == "N/A":
                name, side = line["Bench Name"], reference
            started_backward |= ".backward." in name or ".parameters_grad." in name
            if line["Result"] in words:
                module = _module_of(name, side / folder)
                phase = _phase(name, module, started_backward)
                return Flagged(name, line["Result"], step, module, phase)
    return None


@lru_cache(maxsize=8)
def _table(reference: Path, candidate: Path) -> list[dict[str, str]]:
    """The rows of the peer's comparison of one step, rank by rank."""
    with tempfile.TemporaryDirectory(prefix="lockstep-faults-peer-") as name:
        output, log = Path(name) / "output", Path(name) / "log"
        arguments = ["-tp", str(candidate), "-gp", str(reference), "-o", str(output)]
        child = forked(lambda: _run_command(["compare", *arguments], log), log.write_text)
        child.wait(timeout_s=_COMPARE_TIMEOUT_S)
        files = sorted(output.rglob("compare_result*.csv"))
        if not files:
            text = log.read_text() if log.exists() else "no output"
            raise RuntimeError(f"the peer's comparison wrote no table:\n{text}")
        return [row for file in files for row in _read(file)]


def _run_command(arguments: list[str], log: Path) -> None:
    """The peer's command line, in this process, with its output in a file."""
    from msprobe.msprobe import main

    with log.open("w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["msprobe", *arguments]
    main()


def _read(file: Path) -> Iterator[dict[str, str]]:
    with file.open(newline="") as lines:
        yield from csv.DictReader(lines)


_MODULE = re.compile(r"Module\.(?:(?P<path>.*)\.)?\w+\.(?:forward|backward|parameters_grad)\b")


def _module_of(row: str, directory: Path) -> str | None:
    """Path of the module that a row belongs to; None for what runs outside of all modules."""
    found = _MODULE.match(row)
    if found is None:
        file = next(directory.glob("*/construct.json"))
        parents = json.loads(file.read_text())
        call = next((key for key in parents if row.startswith(f"{key}.")), None)
        parent = parents.get(call)
        parent = parent[0] if isinstance(parent, list) and parent else parent
        found = _MODULE.match(parent) if isinstance(parent, str) else None
    if found is None:
        return None
    return found["path"] or ""


def _phase(row: str, module: str | None, started_backward: bool) -> str:
    if ".backward." in row or ".parameters_grad." in row:
        return "backward"
    return "optimizer" if started_backward and module is None else "forward"


# --------------------------------------------------------------------------------------- scoring


def score_fault(case: Case, found: Flagged | None) -> Answer:
    """Whether the first flagged row is in the planted module, its parent or one of its children.

    For a changed batch an input of the forward pass is asked for; for hyper-parameters and ranks, which have no
    module, a row of the right phase; for what runs outside of all modules, as a loss may, a row outside of all.
    """
    if found is None:
        return Answer(Score.MISSED, _said(found))
    kind = case.fault
    if kind.any_module:
        right = found.phase in kind.phases
    elif kind.phases == ("data",):
        right = found.phase == "forward" and ".input." in found.row
    else:
        planted = case.planted.target.place.module
        right = planted == "" if found.module is None else is_near(found.module, planted)
    return Answer(Score.MODULE if right else Score.WRONG, _said(found))


def score_twin(twin: Twin, found: Flagged | None) -> Answer:
    """A row that is flagged is an alarm; the peer has no word for a change of precision of a whole class."""
    return Answer(Score.SILENT if found is None else Score.FALSE_ALARM, _said(found))


def _said(found: Flagged | None) -> dict[str, Any]:
    said = "every row passes" if found is None else f"{found.result}: step {found.step} {found.row}"
    return {"said": said, "tool": f"{PACKAGE} {version(PACKAGE)}"}
