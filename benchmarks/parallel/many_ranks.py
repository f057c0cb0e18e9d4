"""Compares two recordings of many synthetic ranks, and prints time and memory: `many_ranks.py [--ranks 64 256 1024]`.

Every rank is a copy of one that was recorded, of two steps; one rank of the candidate, the last one, has another
batch. Each comparison is a process of its own. The exit code is 1 if another rank than that one is named.
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
from pathlib import Path

import lockstep
from lockstep import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.store.integrity import with_digest

_HEAD = ["| ranks | time | memory at most | time a rank |", "|---|---|---|---|"]


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


def _measured(folder: Path, ranks: int) -> tuple[float, float]:
    """Seconds and GB of one comparison in a process of its own."""
    sides = [
        str(_copied(folder / "one", folder / other, folder / f"{other}-{ranks}", ranks))
        for other in ("one", "other")
    ]
    command = [sys.executable, __file__, "--compare", *sides]
    shared = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, env=shared, check=True, capture_output=True, text=True)
    for side in sides:
        shutil.rmtree(side)
    seconds, memory = map(float, found.stdout.split())
    return seconds, memory


def _compare(reference: str, candidate: str) -> int:
    begun = time.monotonic()
    found = compare_recordings(reference, candidate)
    seconds = time.monotonic() - begun
    last = f"rank{len(found.ranks.numbers) - 1}"
    if found.verdict is not Verdict.DIVERGED or {one.rank for one in found.origins} != {last}:
        print(found, file=sys.stderr)
        return 1
    status = Path("/proc/self/status").read_text()
    print(seconds, int(status.partition("VmHWM:")[2].split()[0]) / 1e6)
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
            seconds, memory = _measured(folder, ranks)
            each = seconds / ranks * 1000
            lines.append(f"| {ranks} | {seconds:.1f} s | {memory:.2f} GB | {each:.0f} ms |")
            print(lines[-1], flush=True)
    if asked.docs:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        from report import put_into

        put_into(asked.docs, "many-ranks", "\n".join([*_HEAD, *lines, ""]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
