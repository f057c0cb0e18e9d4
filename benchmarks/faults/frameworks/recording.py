"""Recording a training as `lockstep record` does, beside the same training unrecorded."""

from __future__ import annotations

import datetime
import os
import pickle
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from pool import Child, forked

from frameworks.cases import Recipe
from frameworks.script import STEPS, Outcome, Script
from frameworks.ways import WAYS
from lockstep.capture.recorder import Recorder
from lockstep.core.manifest import Options
from lockstep.store.directory import RunDirectory

TIMEOUT_S = 240.0
"""Most of it is compiling."""

_PATIENCE_S = 5.0
"""What the other ranks are given after one has failed, to fail by themselves."""


class BrokenBenchmarkError(Exception):
    """The training fails unrecorded too."""


class BrokenTrainingError(Exception):
    """The training fails, or ends otherwise, while it is recorded."""


def record(recipe: Recipe, directory: Path) -> None:
    """Train twice, recorded and not; leaves the recording and beside it what the training ended with.

    Raises
    ------
    BrokenBenchmarkError
        If the training fails by itself.
    BrokenTrainingError
        If it fails or ends with other bits while it is recorded; what was recorded stays.
    """
    directory.parent.mkdir(parents=True, exist_ok=True)
    bare = trained(recipe, directory)
    try:
        recorded = _trained(recipe, directory, recording=directory)
    except RuntimeError as error:
        raise BrokenTrainingError(f"{recipe.name}: {error}") from error
    changed = [
        name for one, two, name in zip(bare, recorded, range(len(bare)), strict=True)
        if not same(one, two)
    ]  # fmt: skip
    if changed:
        raise BrokenTrainingError(f"{recipe.name}: recorded, it ends with other numbers")


def trained(recipe: Recipe, directory: Path) -> list[Outcome]:
    """What each rank of a training ends with, unrecorded; kept beside where its recording is."""
    kept = _beside(directory, ".outcome")
    if kept.exists():
        outcomes: list[Outcome] = pickle.loads(kept.read_bytes())
        return outcomes
    try:
        found = _trained(recipe, directory, recording=None)
    except RuntimeError as error:
        raise BrokenBenchmarkError(f"{recipe.name}: {error}") from error
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(pickle.dumps(found))
    return found


def same(one: Outcome, two: Outcome) -> bool:
    """Whether two trainings ended with the same bits."""
    if len(one.losses) != len(two.losses) or one.state.keys() != two.state.keys():
        return False
    pairs = [(torch.tensor(one.losses), torch.tensor(two.losses))]
    pairs += [(one.state[name], two.state[name]) for name in one.state]
    return all(
        left.dtype == right.dtype and left.shape == right.shape and _bytes(left) == _bytes(right)
        for left, right in pairs
    )


def _bytes(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _trained(recipe: Recipe, directory: Path, recording: Path | None) -> list[Outcome]:
    """Train in a process for each rank."""
    ranks = WAYS[recipe.way].ranks
    base = _beside(directory, ".bare" if recording is None else ".recorded")
    files = [_beside(base, f"-{rank}") for rank in range(ranks)]
    run = None
    if recording is not None:
        command = ["benchmarks/faults", recipe.name]
        run = RunDirectory.create(recording, command, _options(recipe), force=True)
        run.started()
    children = [
        forked(
            lambda rank=rank: _run_rank(recipe, rank, base, files[rank], recording),
            _noting(_beside(files[rank], ".problem")),
        )
        for rank in range(ranks)
    ]
    _wait(children, files)
    _beside(base, ".store").unlink(missing_ok=True)
    if run is not None:
        run.finish(exit_code=0)
    problems = [_problem(file, rank) for rank, file in enumerate(files)]
    if any(problems):
        raise RuntimeError("\n".join(filter(None, problems)))
    return [_outcome(file) for file in files]


def _wait(children: list[Child], files: list[Path]) -> None:
    """Until all ranks are over. Where one has failed, the others wait for it in vain and are ended."""
    limit, failed = time.monotonic() + TIMEOUT_S, False
    running = dict(zip(files, children, strict=True))
    while running:
        running = {file: child for file, child in running.items() if not child.ended()}
        if not failed and any(_beside(file, ".problem").exists() for file in files):
            failed, limit = True, min(limit, time.monotonic() + _PATIENCE_S)
        if time.monotonic() > limit:
            for child in running.values():
                child.kill()
            return
        time.sleep(0.02)


def _beside(file: Path, ending: str) -> Path:
    return file.with_name(f"{file.name}{ending}")


def _noting(file: Path) -> Callable[[str], None]:
    return lambda text: file.write_text(text) and None


def _problem(file: Path, rank: int) -> str:
    """What went wrong in a rank, "" where it came to its end."""
    noted = _beside(file, ".problem")
    if noted.exists():
        text = noted.read_text()
        noted.unlink()
        return f"rank {rank}: {text}"
    return "" if file.exists() else f"rank {rank} died or took longer than {TIMEOUT_S:.0f} s"


def _outcome(file: Path) -> Outcome:
    outcome: Outcome = pickle.loads(file.read_bytes())
    file.unlink()
    return outcome


def _options(recipe: Recipe) -> Options:
    ranks = recipe.script(0).recorded_ranks
    return Options(
        steps=f"0:{STEPS}", ranks=ranks, level="api", save="tensors", only=[], skip=[],
        max_bytes=None, seed=None,
    )  # fmt: skip


def _run_rank(recipe: Recipe, rank: int, base: Path, file: Path, recording: Path | None) -> None:
    _quiet()
    way = WAYS[recipe.way]
    _join(rank, way.ranks, _beside(base, ".store"))
    script = recipe.script(rank)
    _surround(script)
    recorder = None
    if recording is not None:
        recorder = Recorder(recording, _options(recipe), wait_for_optimizer=True)
        recorder.arm()
    outcome = way.train(script)
    if recorder is not None:
        recorder.finish(interrupted=True)
    part = _beside(file, ".part")
    part.write_bytes(pickle.dumps(outcome))
    part.rename(file)
    if way.ranks > 1:
        torch.distributed.barrier()


def _quiet() -> None:
    """What libraries print is of no interest here, and neither are their warnings."""
    warnings.simplefilter("ignore")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())


def _join(rank: int, ranks: int, store: Path) -> None:
    if ranks == 1:
        return
    launcher = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks}
    os.environ.update({name: str(value) for name, value in launcher.items()})
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=ranks,
        timeout=datetime.timedelta(seconds=TIMEOUT_S / 2),
    )  # fmt: skip


def _surround(script: Script) -> None:
    torch.set_num_threads(script.threads)
    mkldnn: Any = torch.backends.mkldnn
    mkldnn.enabled = script.onednn
    if script.deterministic:
        torch.use_deterministic_algorithms(True, warn_only=True)
