"""Compares two recordings of many synthetic ranks, and prints time and memory: `many_ranks.py [--ranks 64 256 1024]`.

Every rank is a copy of one that was recorded, of two steps. One candidate is equal; in the other one the last rank has
another batch. Each comparison is a process of its own, started as `lockstep compare` is. The exit code is 1 if another
rank than that one is named, or equal ones differ.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import lockstep
from lockstep import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.report.comparison.json import render_json
from lockstep.store.integrity import with_digest

_HEAD = [
    "| ranks | what differs | time | processor time | memory at most |",
    "|---|---|---|---|---|",
]


def _record(folder: Path, *, scale: float) -> None:
    """Two steps of a small training on one rank."""
    import torch  # not in the process that compares, whose memory is measured

    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    draw = torch.Generator().manual_seed(1)
    with lockstep.record(folder, model=model, steps="0:2"):
        for _ in range(2):
            loss = model(torch.randn(8, 16, generator=draw) * scale).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _copied(one: Path, other: Path, folder: Path, ranks: int) -> Path:
    """A recording of so many ranks, all as `one`, the last as `other`."""
    folder.mkdir()
    shutil.copy(one / "manifest.json", folder)
    for number in range(ranks):
        source = (other if number == ranks - 1 else one) / "rank0"
        rank = folder / f"rank{number}"
        shutil.copytree(source, rank)
        manifest = json.loads((source / "manifest.json").read_text())
        manifest.pop("digest", None)
        manifest |= {"rank": rank.name, "world_size": ranks}
        (rank / "manifest.json").write_text(with_digest(json.dumps(manifest, indent=1)))
    return folder


def _measured(folder: Path, ranks: int) -> Iterator[tuple[str, float, float, float]]:
    """What differs, seconds, seconds of processor time and GB, of each comparison in a process of its own."""
    names = ("one", "one", "other")
    sides = [
        str(_copied(folder / "one", folder / name, folder / f"{number}-{ranks}", ranks))
        for number, name in enumerate(names)
    ]
    shared = {**os.environ, "OMP_NUM_THREADS": "1"}
    for what, candidate in (("nothing", sides[1]), ("one rank", sides[2])):
        command = [sys.executable, __file__, "--compare", sides[0], candidate]
        found = subprocess.run(command, env=shared, check=True, capture_output=True, text=True)
        seconds, processor, memory = map(float, found.stdout.split())
        yield what, seconds, processor, memory
    for side in sides:
        shutil.rmtree(side)


def _compare(reference: str, candidate: str) -> int:
    begun, processor = time.perf_counter(), time.process_time()
    found = compare_recordings(reference, candidate)
    render_json(found)
    seconds, processor = time.perf_counter() - begun, time.process_time() - processor
    last = f"rank{len(found.ranks.numbers) - 1}"
    expected = {last} if found.verdict is Verdict.DIVERGED else set()
    if found.verdict is Verdict.INCOMPARABLE or {one.rank for one in found.origins} != expected:
        print(found, file=sys.stderr)
        return 1
    status = Path("/proc/self/status").read_text()
    print(seconds, processor, int(status.partition("VmHWM:")[2].split()[0]) / 1e6)
    return 0


def main() -> int:
    """Print a line for each number of ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[64, 256, 1024])
    parser.add_argument("--docs", type=Path, help="a page of docs to keep the table in")
    parser.add_argument("--compare", nargs=2, help="used by itself")
    asked = parser.parse_args()
    if asked.compare:
        return _compare(*asked.compare)
    lines = []
    print("\n".join(_HEAD))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _record(folder / "one", scale=1.0)
        _record(folder / "other", scale=1.01)
        for ranks in asked.ranks:
            for what, seconds, processor, memory in _measured(folder, ranks):
                figures = f"{seconds:.1f} s | {processor:.1f} s | {memory:.2f} GB"
                lines.append(f"| {ranks} | {what} | {figures} |")
                print(lines[-1], flush=True)
    if asked.docs:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from report import put_into

        put_into(asked.docs, "many-ranks", "\n".join([*_HEAD, *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
