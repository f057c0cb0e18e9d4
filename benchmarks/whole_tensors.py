"""How fast whole tensors are compared, beside `torch.dot`, which is what reading two arrays once costs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import recordings
import torch
from bench import AtLeast, Bench, Row, seconds
from children import compare_command, measured

import lockstep
from lockstep.core.records import Content
from lockstep.measure.metrics import measure_tensors
from lockstep.store.reader import open_recording

_BAR = AtLeast(20.0)

Pairs = Sequence[tuple[Content, Content]]


def rows(bench: Bench) -> Iterator[Row]:
    """Several ways to compare the same step of a GPT-2, and `torch.dot`, in turn."""
    reference, renamed, noisy = (bench.directory / name for name in ("ref", "renamed", "noisy"))
    recordings.record_steps(reference, bench.size, save="tensors", steps=1)
    recordings.record_steps(noisy, bench.size, save="tensors", steps=1, emulate=recordings.NOISE)
    recordings.copy_with_other_digests(reference, renamed)
    recordings.read_once(reference, renamed, noisy)
    found = _pairs(reference, noisy)
    pairs = [pair for pair, _ in found]
    sizes = [left.load().nbytes + right.load().nbytes for left, right in pairs]
    total_bytes = sum(sizes)
    recorded_bytes = sum(size * count for size, (_, count) in zip(sizes, found, strict=True))
    work: dict[str, Callable[[], object]] = {
        "measure every pair, one thread": lambda: _measure(pairs, threads=1),
        "measure every pair, a thread a core": lambda: _measure(pairs, threads=torch.get_num_threads()),
        "compare, all digests differ, numbers equal": partial(lockstep.compare_recordings, reference, renamed),
        "compare, noise everywhere, operators re-run": partial(lockstep.compare_recordings, reference, noisy),
        "numbers equal, as a process, wall to wall": partial(_process, reference, renamed),
        "noise everywhere, as a process, fixed rule": partial(_process, reference, noisy, "--judge", "fixed"),
        "noise everywhere, as a process, operators re-run": partial(_process, reference, noisy),
    }  # fmt: skip
    times, dots = _in_turn(bench, work)
    speed = 2 * bench.size.probe_bytes / statistics.median(dots)
    yield Row("torch.dot", "GB/s", speed / 1e9, 2 * bench.size.probe_bytes / min(dots) / 1e9)
    for what, taken in times.items():
        median, best = (total_bytes / value for value in (statistics.median(taken), min(taken)))
        seconds_taken = statistics.median(taken)
        note = f"{median / 1e9:.2f} GB/s, {seconds_taken:.2f} s for {total_bytes / 1e9:.2f} GB"
        if not what.startswith("measure"):
            recorded = recorded_bytes / seconds_taken
            note += f" (all records: {recorded_bytes / 1e9:.1f} GB, {100 * recorded / speed:.0f} %)"
        yield Row(what, "%", 100 * median / speed, 100 * best / speed, _BAR, note)


def _in_turn(
    bench: Bench, work: dict[str, Callable[[], object]]
) -> tuple[dict[str, list[float]], list[float]]:
    """Seconds of every job, one round after the other, and of `torch.dot` between them."""
    left, right = torch.randn(2, bench.size.probe_bytes // 4).unbind()
    times: dict[str, list[float]] = {what: [] for what in work}
    dots: list[float] = []
    for _ in range(min(bench.rounds, 3)):
        for what, job in work.items():
            dots += [seconds(lambda: torch.dot(left, right)) for _ in range(3)]
            times[what].append(seconds(job))
    return times, dots


def _pairs(reference: Path, candidate: Path) -> list[tuple[tuple[Content, Content], int]]:
    """Distinct contents that face each other, as calls and roles say, and how many records hold them."""
    sides = [open_recording(path).records() for path in (reference, candidate)]
    found: dict[tuple[str | None, str | None], tuple[Content, Content]] = {}
    counts: Counter[tuple[str | None, str | None]] = Counter()
    for left, right in zip(*sides, strict=True):
        if (left.site, left.role, left.index) != (right.site, right.role, right.index):
            raise RuntimeError(f"{left.site} faces {right.site}: the two runs are not the same")
        if left.content.loader is not None and right.content.loader is not None:
            found[left.digest, right.digest] = left.content, right.content
            counts[left.digest, right.digest] += 1
    counted = [(pair, counts[digests]) for digests, pair in found.items()]
    return sorted(counted, key=lambda one: -one[0][0].numel)


def _measure(pairs: Pairs, *, threads: int) -> None:
    def measure(pair: tuple[Content, Content]) -> None:
        measure_tensors(pair[0].opened(), pair[1].opened(), dtype=pair[0].dtype)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(measure, pairs))


def _process(reference: Path, candidate: Path, *options: str) -> None:
    measured(compare_command(reference, candidate, *options), allowed=(0, 1))
