"""Memory that a thousand watched steps of a tiny model leave behind, in the training and in what watches it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import AtMost, Bench, Row

_AT = (100, 1000)
"""The steps between which it is held; before the first, what is loaded and compiled comes in."""
_BAR = AtMost(10.0)


def rows(bench: Bench) -> Iterator[Row]:
    """What each holds more at the second step than at the first."""
    target = bench.directory / "held.json"
    command = [
        sys.executable, "-m", "lockstep", "watch", "--lines", "0", "--events", str(bench.directory / "events.jsonl"),
        "--force", "--", sys.executable, __file__, str(target),
    ]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    first, last = json.loads(target.read_text())
    for number, who in enumerate(("watching", "training")):
        note = f"{first[number]:.0f} MB at step {_AT[0]}, {last[number]:.0f} MB at step {_AT[1]}"
        yield Row(who, "MB", max(0.0, last[number] - first[number]), None, _BAR, note)


def _train(target: Path) -> None:
    """The watched training: what its parent and it hold, in MB (Linux: the second field of `statm` is in pages)."""
    import os

    import torch

    def held(process: int) -> float:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    found = []
    for step in range(_AT[-1] + 1):
        optimizer.zero_grad()
        model(torch.randn(32, 8)).square().mean().backward()
        optimizer.step()
        if step in _AT:
            found.append([held(os.getppid()), held(os.getpid())])
    target.write_text(json.dumps(found))


if __name__ == "__main__":
    _train(Path(sys.argv[1]))
