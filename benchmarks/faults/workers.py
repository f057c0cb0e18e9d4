"""What runs in a process of its own: recording a training, comparing two recordings."""

from __future__ import annotations

import datetime
import hashlib
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # the first step of an optimizer would load it, in every process anew
from architectures import ARCHITECTURES
from cases import Case, cases_of, targets_of
from kinds import Planted
from pool import forked
from score import Answer, Score, score_fault, score_twin
from training import DATA_SEED, Training
from twins import TWINS

import lockstep.capture.api
from lockstep.comparison import Rule
from lockstep.core.finding import Comparison
from lockstep.store.reader import open_recording

WEIGHTS = ("tensors", "sketch", "stats")
"""Weights that one recording with whole tensors serves."""
OF_ITS_OWN = "program"
"""A weight that needs recordings of its own: what of a step enters it is known while it is recorded."""
RULES = ("best", "fixed")
Plant = Callable[[Training, Planted], None]


@dataclass(frozen=True)
class Methods:
    """Which weights and rules a case is judged with."""

    weights: tuple[str, ...] = WEIGHTS
    rules: tuple[str, ...] = RULES


def draw(architecture: str, seed: int | None) -> list[Case]:
    """The cases of an architecture."""
    torch.set_num_threads(1)
    return cases_of(architecture, targets_of(ARCHITECTURES[architecture]), seed=seed)


def prepare(architecture: str, directory: Path, seed: int | None) -> list[Case]:
    """Record the reference of an architecture and draw its cases."""
    cases = draw(architecture, seed)
    _record(Training.of(ARCHITECTURES[architecture]), directory / "reference")
    return cases


def run_case(
    case: Case, directory: Path, methods: Methods, keep: Path | None
) -> list[dict[str, Any]]:
    """Record a faulty training, compare it with its reference, and say how good the answers are."""
    torch.set_num_threads(1)
    reference, candidate = directory / "reference", directory / case.kind
    try:
        if case.fault.ranks > 1:
            reference = directory / f"{case.kind}-reference"
            _record_ranks(case, reference, plant=None)
            _record_ranks(case, candidate, plant=case.fault.plant)
        else:
            if case.fault.plant_reference is not None:
                reference = directory / f"{case.kind}-reference"
                record_planted(case, reference, case.fault.plant_reference)
            record_planted(case, candidate, case.fault.plant)
        planted_twice = case.fault.plant_reference is not None
        changed = planted_twice or _fingerprint(reference) != _fingerprint(candidate)
        rows = [
            {**case.as_json(), **row, "changed": changed, "trained": _fingerprint(candidate)}
            for row in _judged(
                reference, candidate, methods, lambda found: score_fault(case, found)
            )
        ]
    finally:
        _keep_or_delete(directory, candidate, keep)
        if reference.name != "reference":
            _keep_or_delete(directory, reference, keep)
    return rows


def run_twin(
    architecture: str, name: str, directory: Path, methods: Methods, keep: Path | None
) -> list[dict[str, Any]]:
    """Record a sound training another way and compare it with its reference."""
    torch.set_num_threads(1)
    twin, candidate = TWINS[name], directory / f"twin-{name}"
    try:
        training = Training.of(ARCHITECTURES[architecture])
        twin.alter(training)
        _record(training, candidate)
        torch.set_num_threads(1)
        changed = _fingerprint(directory / "reference") != _fingerprint(candidate)
        if changed and twin.bitwise:
            raise RuntimeError(f"{architecture}/{name}: the training is not the same bit by bit")
        trained = _fingerprint(candidate)
        said = {"group": "twin", "changed": changed, "trained": trained}
        return [
            {"case": f"{architecture}/{name}", **row, **said}
            for row in _judged(
                directory / "reference", candidate, methods, lambda found: score_twin(twin, found)
            )
        ]
    finally:
        _keep_or_delete(directory, candidate, keep)


# ------------------------------------------------------------------------------------- recording


def record_planted(case: Case, directory: Path, plant: Plant) -> None:
    """Record a training that something is planted in."""
    training = Training.of(ARCHITECTURES[case.architecture])
    plant(training, case.planted)
    _record(training, directory)


def _record(training: Training, directory: Path) -> None:
    losses = training.run(directory)
    _write_fingerprint(directory, training, losses)


def _write_fingerprint(directory: Path, training: Training, losses: list[float]) -> None:
    """What the training ended with, to tell a fault that changes nothing at all."""
    total = hashlib.sha256(repr(losses).encode())
    for name, tensor in sorted(training.model.state_dict().items()):
        total.update(name.encode())
        total.update(tensor.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
    (directory / "fingerprint").write_text(total.hexdigest())


def _fingerprint(directory: Path) -> str:
    return (directory / "fingerprint").read_text()


def _record_ranks(case: Case, directory: Path, plant: Plant | None) -> None:
    """Train on two ranks, each a process."""
    store = directory.with_name(f"{directory.name}-store")
    problem = directory.with_name(f"{directory.name}-problem")
    children = [
        forked(
            lambda rank=rank: _run_rank(case, directory, plant, rank, store),
            lambda text, rank=rank: problem.write_text(f"rank {rank}: {text}"),
        )
        for rank in range(2)
    ]
    for child in children:
        child.wait(timeout_s=120)
    store.unlink(missing_ok=True)
    if problem.exists() or not (directory / "fingerprint").exists():
        text = problem.read_text() if problem.exists() else "took too long"
        raise RuntimeError(f"{case.name}: training on two ranks failed: {text}")


def _run_rank(case: Case, directory: Path, plant: Plant | None, rank: int, store: Path) -> None:
    torch.set_num_threads(1)
    architecture = ARCHITECTURES[case.architecture]
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2,
        timeout=datetime.timedelta(seconds=100),
    )  # fmt: skip
    training = Training.of(architecture)
    generator = torch.Generator().manual_seed(DATA_SEED + 100 * rank)
    training.batches = [architecture.batch(generator) for _ in training.batches]
    training.run_seed += 100 * rank
    training.clip_norm = None  # clipped, gradients that are twice as large are the same gradients
    training.model = torch.nn.parallel.DistributedDataParallel(
        training.model, find_unused_parameters=True
    )
    if plant is not None:
        plant(training, case.planted)
    losses = training.run(directory)
    if rank == 0:
        _write_fingerprint(directory, training, losses)
    torch.distributed.barrier()


# ------------------------------------------------------------------------------------- comparing


def _judged(
    reference: Path, candidate: Path, methods: Methods, score: Callable[[Comparison], Answer]
) -> Iterator[dict[str, Any]]:
    for weight in methods.weights:
        for rule in methods.rules:
            start = time.perf_counter()
            answer = score(compare(reference, candidate, weight, rule))
            seconds = round(time.perf_counter() - start, 2)
            yield {
                "weight": weight, "rule": rule, "score": answer.score.value, **answer.said,
                "seconds": seconds,
            }  # fmt: skip


def compare(reference: Path, candidate: Path, weight: str, rule: str) -> Comparison:
    """Compare as if both had been recorded with this weight.

    Whole tensors hold all that a sketch holds, and a sketch all that statistics hold, so one recording
    serves the three.
    """
    read_sketches = weight != "stats"
    sides = [open_recording(path, read_sketches=read_sketches) for path in (reference, candidate)]
    return lockstep.compare_recordings(
        *sides,
        rule=Rule.FIXED if rule == "fixed" else Rule.ERROR_MODEL,
        read_tensors=weight in ("tensors", OF_ITS_OWN),
    )


def _keep_or_delete(directory: Path, recording: Path, keep: Path | None) -> None:
    if not recording.exists():
        return
    if keep is None:
        shutil.rmtree(recording)
        return
    target = keep / directory.name / recording.name
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(recording, target)


def crashed(name: str, group: str, methods: Methods, text: str) -> list[dict[str, Any]]:
    """Rows for what could not be run."""
    row = {
        "case": name,
        "group": group,
        "score": Score.CRASHED.value,
        "error": text,
        "changed": True,
    }
    return [
        {**row, "weight": weight, "rule": rule}
        for weight in methods.weights
        for rule in methods.rules
    ]
