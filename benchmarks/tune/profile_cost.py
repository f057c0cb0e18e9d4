"""What `lockstep profile` costs a training outside of the profiled steps: pairs of runs, in turns.

    python benchmarks/tune/profile_cost.py [--repeat 5] [--docs docs/profile.md]

The exit code is 1 where a step takes more than 1.15 times as long.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from lockstep_tune.paired_times import speedup

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import put_into

_PROFILED, _FIRST, _STEPS = "3:8", 20, 120
ALLOWED = 1.15


def small_layers() -> None:
    """Two hundred small tensors and a fused optimizer: 2 ms a step, to which a hook adds the most."""
    layers = [one for _ in range(60) for one in (nn.Linear(32, 32), nn.Tanh())]
    _train(nn.Sequential(*layers, nn.Linear(32, 4)), torch.randn(16, 32))


def wide_layers() -> None:
    """Six layers of 512: a step is spent in products."""
    layers = [one for _ in range(6) for one in (nn.Linear(512, 512), nn.GELU())]
    _train(nn.Sequential(*layers, nn.Linear(512, 4)), torch.randn(128, 512))


def _train(model: nn.Module, x: torch.Tensor) -> None:
    """Train, and write the mean seconds of a step after the profiled ones."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    y = torch.arange(len(x)) % 4
    began = 0.0
    for step in range(_STEPS):
        if step == _FIRST:
            began = time.perf_counter()
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    took = (time.perf_counter() - began) / (_STEPS - _FIRST)
    Path(sys.argv[2]).write_text(json.dumps(took))


TRAININGS = {one.__name__: one for one in (small_layers, wide_layers)}


def step_s(name: str, *, profiled: bool) -> float:
    """Seconds of a step in a run of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, name, f"{folder}/took"]
        if profiled:
            profile = ["profile", "--json", "--steps", _PROFILED, "--"]
            command = [sys.executable, "-m", "lockstep", *profile, *command]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return float(json.loads(Path(folder, "took").read_text()))


def row(name: str, repeat: int) -> tuple[tuple[str, ...], bool]:
    """One row of the table, and whether the cost is allowed."""
    pairs = []
    for at in range(repeat):
        order = (True, False) if at % 2 else (False, True)
        took = {profiled: step_s(name, profiled=profiled) for profiled in order}
        pairs.append((took[True], took[False]))
    cost = speedup(pairs)
    about = (TRAININGS[name].__doc__ or "").rstrip(".")
    bare = f"{min(one for _, one in pairs) * 1e3:.3g} ms"
    return (
        about,
        bare,
        f"{cost.ratio:.2f} ({cost.low:.2f} to {cost.high:.2f})",
    ), cost.ratio <= ALLOWED


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="benchmarks/tune/profile_cost.py")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown file")
    given = parser.parse_args()
    lines = [
        "| training | a step by itself | with `profile`, outside of the profiled steps: times as long |",
        "|---|---|---|",
    ]
    allowed = True
    for name in TRAININGS:
        cells, holds = row(name, given.repeat)
        allowed &= holds
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if given.docs is not None:
        put_into(given.docs, "bench-profile-cost", "\n".join(lines) + "\n")
    return 0 if allowed else 1


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in TRAININGS:
        TRAININGS[sys.argv[1]]()
    else:
        sys.exit(main())
