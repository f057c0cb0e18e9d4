"""What recording adds to a GPT-2 step, and what it leaves on disk."""

from __future__ import annotations

import math
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import trainings
from bench import AtMost, Bench, Row, bytes_below, ratio_row, seconds

import lockstep
from lockstep.store.reader import open_recording

BARS = {"stats": AtMost(1.4), "sketch": AtMost(1.6), "tensors": AtMost(4.0)}
GPU_BARS = {"sketch": AtMost(1.25)}
_STEPS = 4


@dataclass
class _Times:
    """Seconds and bytes of one weight, one entry per round (`within`: several)."""

    bare: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    within: list[float] = field(default_factory=list)
    closed: list[float] = field(default_factory=list)
    bytes_alone: list[int] = field(default_factory=list)
    bytes_of_four: list[int] = field(default_factory=list)


def rows(bench: Bench) -> Iterator[Row]:
    """Bare and recorded steps in turn, in one process."""
    step = trainings.gpt2(bench.size, bench.device)
    for _ in range(3):
        step()
    target = bench.directory / "step"
    times = {save: _Times() for save in BARS}
    for number in range(bench.rounds):
        saves = list(BARS)
        for save in saves[number % 3 :] + saves[: number % 3]:
            _measure_one_step(step, target, save, times[save])
            _measure_many_steps(step, target, save, times[save])
    bare = [value for item in times.values() for value in item.bare]
    yield Row("bare step", "s", statistics.median(bare), min(bare))
    bars = BARS if bench.device == "cpu" else GPU_BARS
    for save, item in times.items():
        yield from _step_rows(save, item, bare, bars.get(save))
    yield _limit(bench, step, target, statistics.median(bare))
    yield from _size_rows(bench, target, times["tensors"], bare)


def _measure_one_step(step: trainings.Step, target: Path, save: str, times: _Times) -> None:
    """A recording of one step, until it is closed."""
    times.bare.append(seconds(step))
    recording = lockstep.record(target, steps="0:1", save=save)
    start = time.perf_counter()
    recording.start()
    step()
    recording.stop()
    times.closed.append(time.perf_counter() - start)
    times.bytes_alone.append(bytes_below(target))
    shutil.rmtree(target)


def _measure_many_steps(step: trainings.Step, target: Path, save: str, times: _Times) -> None:
    """A recording of some steps; the last one, at whose end files may be waited for, is not timed."""
    times.bare.append(seconds(step))
    recording = lockstep.record(target, steps=f"0:{_STEPS}", save=save)
    start = time.perf_counter()
    recording.start()
    step()
    times.first.append(time.perf_counter() - start)
    times.within += [seconds(step) for _ in range(_STEPS - 2)]
    step()
    recording.stop()
    times.bytes_of_four.append(bytes_below(target))
    shutil.rmtree(target)


def _step_rows(save: str, times: _Times, bare: list[float], bar: AtMost | None) -> Iterator[Row]:
    yield ratio_row(f"{save}: step within a recording", times.within, bare, bar=bar)
    coldest = f"the very first in the process {times.first[0] / statistics.median(bare):.2f} x"
    first = f"{save}: first step of a recording, one-off costs inside"
    yield ratio_row(first, times.first, bare, bar=bar, note=coldest)
    yield ratio_row(f"{save}: one step, until the recording is closed", times.closed, bare)


def _limit(bench: Bench, step: trainings.Step, target: Path, bare_s: float) -> Row:
    """What reading the distinct contents of a step once would add, at the speed of `torch.dot`."""
    with lockstep.record(target, steps="0:1", save="stats"):
        step()
    contents = {
        (content.digest, content.dtype): math.prod(content.shape)
        * np.dtype("V2" if content.dtype == "bfloat16" else content.dtype).itemsize
        for record in open_recording(target).records()
        if (content := record.content).digest is not None
    }
    shutil.rmtree(target)
    size, probe = sum(contents.values()), torch.ones(bench.size.probe_bytes // 4)
    speed = probe.nbytes / statistics.median(
        seconds(lambda: torch.dot(probe, probe)) for _ in range(5)
    )
    note = f"{size / 1e9:.2f} GB at {speed / 1e9:.1f} GB/s, the speed of torch.dot over one array"
    return Row("the limit: distinct contents read once", "x", 1 + size / speed / bare_s, note=note)


def _size_rows(bench: Bench, target: Path, times: _Times, bare: list[float]) -> Iterator[Row]:
    alone, four = statistics.median(times.bytes_alone), statistics.median(times.bytes_of_four)
    yield Row("tensors: on disk, one step mid-training", "MB", alone / 1e6)
    yield Row("tensors: on disk, a step of four", "MB", four / _STEPS / 1e6)
    step = trainings.gpt2(bench.size, bench.device)
    with lockstep.record(target, steps="0:1", save="tensors"):
        step()
    fresh = bytes_below(target)
    shutil.rmtree(target)
    yield Row("tensors: on disk, step 0 of a fresh optimizer", "MB", fresh / 1e6)
