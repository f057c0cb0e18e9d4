"""Memory of a comparison as recordings grow: nothing in them is shared between the two sides."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import recordings
from bench import AtMost, Bench, Row, bytes_below
from children import compare_command, measured

_BAR = AtMost(1000.0)


def rows(bench: Bench) -> Iterator[Row]:
    """One pair of recordings after the other, each compared in a process of its own."""
    sizes = bench.size.whole_bytes + (bench.size.many_bytes if bench.large else ())
    reference, candidate = bench.directory / "ref", bench.directory / "cand"
    for total_bytes in sizes:
        steps = recordings.steps_for(bench.size, total_bytes // 2, bench.directory / "probe")
        recordings.record_steps(reference, bench.size, save="tensors", steps=steps)
        recordings.record_steps(
            candidate, bench.size, save="tensors", steps=steps, emulate=recordings.NOISE
        )
        on_disk = bytes_below(reference) + bytes_below(candidate)
        used = measured(compare_command(reference, candidate), allowed=(0, 1))
        note = f"{steps} steps; wall {used.wall_s:.1f} s, CPU {used.cpu_s:.1f} s"
        what = f"peak memory at {on_disk / 1e9:.3g} GB of recordings"
        yield Row(what, "MB", used.peak_bytes / 1e6, None, _BAR, note)
        shutil.rmtree(reference)
        shutil.rmtree(candidate)
