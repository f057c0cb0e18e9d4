"""Comparing recordings of sketches with very many tensor records, as processes."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import recordings
from bench import AtMost, Bench, Row
from children import Usage, compare_command, measured

_SECONDS = {100_000: AtMost(5.0), 1_000_000: AtMost(60.0)}
_MEMORY = AtMost(3000.0)
_GROWTH = AtMost(1.2)


def rows(bench: Bench) -> Iterator[Row]:
    """Identical and noisy pairs at growing sizes."""
    small = replace(
        bench.size,
        layers=2 * bench.size.layers,
        width=32,
        heads=2,
        vocabulary=64,
        batch=2,
        tokens=8,
    )
    templates = {name: bench.directory / f"template-{name}" for name in ("ref", "noise")}
    recordings.record_steps(templates["ref"], small, save="sketch", steps=2)
    emulate = recordings.NOISE
    recordings.record_steps(templates["noise"], small, save="sketch", steps=2, emulate=emulate)
    per_record: dict[str, list[float]] = {"identical": [], "noisy": []}
    for count in bench.size.records + (bench.size.many_records if bench.large else ()):
        for variant, used, records in _compared(bench, templates, count):
            walls = [one.wall_s for one in used]
            per_record[variant].append(statistics.median(walls) / records)
            yield from _rows_of(f"{count:,} records, {variant}", used, count, records)
    for variant, times in per_record.items():
        for before, after in pairwise(times):
            what = f"{variant}: time a record, as the count grows"
            note = f"{before * 1e6:.1f} to {after * 1e6:.1f} us a record"
            yield Row(what, "x", after / before, None, _GROWTH, note)


def _compared(
    bench: Bench, templates: dict[str, Path], count: int
) -> Iterator[tuple[str, list[Usage], int]]:
    """What each variant used, in turn."""
    reference, identical, noisy = (bench.directory / name for name in ("ref", "identical", "noisy"))
    records = recordings.multiplied(templates["ref"], reference, count)
    recordings.multiplied(templates["noise"], noisy, count)
    shutil.copytree(reference, identical)
    used: dict[str, list[Usage]] = {"identical": [], "noisy": []}
    for _ in range(1 if count > 200_000 else min(bench.rounds, 3)):
        used["identical"].append(measured(compare_command(reference, identical)))
        used["noisy"].append(measured(compare_command(reference, noisy), allowed=(0, 1)))
    for path in (reference, identical, noisy):
        shutil.rmtree(path)
    yield from ((variant, found, records) for variant, found in used.items())


def _rows_of(what: str, used: list[Usage], count: int, records: int) -> Iterator[Row]:
    walls = [one.wall_s for one in used]
    cpu = statistics.median(one.cpu_s for one in used)
    note = f"{records:,} records; CPU {cpu:.1f} s"
    yield Row(f"{what}: wall", "s", statistics.median(walls), min(walls), _SECONDS.get(count), note)
    yield Row(f"{what}: peak", "MB", max(one.peak_bytes for one in used) / 1e6, None, _MEMORY)
