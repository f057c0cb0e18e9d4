"""Tunes trainings that nobody has tuned, with fast but wrong knobs planted among the sound ones.

    python benchmarks/tune [--only PATTERN] [--repeat 3] [--docs docs/tune.md]

The exit code is 1 where one does not get 1.3 times faster, or a wrong knob is kept.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from trainings import TRAININGS

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import put_into

_HERE = Path(__file__).parent
WANTED = 1.3


@dataclass(frozen=True)
class Case:
    """Knobs that are tried on a training: sound ones with their values, and wrong ones, files in `wrong`."""

    knobs: dict[str, list[Any]]
    wrong: tuple[str, ...] = ()


CASES = {
    "images": Case({"workers": [2]}, ("half_batch", "same_batch")),
    "updates": Case({"optimizer": ["fused"]}, ("every_other_update", "no_clipping")),
    "recomputed": Case({"checkpointing": [False]}, ("no_gradient",)),
    "threads": Case({"threads": [2]}),
}


def tuned(name: str, repeat: int) -> dict[str, Any]:
    """What `lockstep tune` says of a training."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        own = [{"name": one, "python": str(_HERE / "wrong" / f"{one}.py")} for one in case.wrong]
        knobs = Path(folder) / "knobs.yaml"
        knobs.write_text(yaml.safe_dump({"knobs": case.knobs, "own": own}))
        command = [
            sys.executable, "-m", "lockstep", "tune", "--json", "--knobs", str(knobs), "--repeat", str(repeat),
            "-o", f"{folder}/out", "--", sys.executable, str(_HERE / "trainings.py"), name,
        ]  # fmt: skip
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


def row(name: str, found: dict[str, Any]) -> tuple[str, ...]:
    """One row of the table."""
    speed, settings = found["speed"], found["knobs"]
    faster = (
        "-"
        if speed is None
        else f"{speed['ratio']:.2f} ({speed['low']:.2f} to {speed['high']:.2f})"
    )
    own = {one["name"]: one for one in found["tried"] if one["name"] in CASES[name].wrong}
    wrong = ", ".join(f"{one.replace('_', ' ')}: {tried['verdict']}" for one, tried in own.items())
    about = (TRAININGS[name].__doc__ or "").rstrip(".")
    kept = ", ".join(f"{knob}={value}".lower() for knob, value in settings.items())
    return f"{name}: {about}", f"{found['step_s'] * 1e3:.3g} ms", kept or "nothing", faster, wrong


def holds(name: str, found: dict[str, Any]) -> bool:
    """Whether a training got fast enough, and every wrong knob is out."""
    is_faster = found["speed"] is not None and found["speed"]["ratio"] >= WANTED
    return is_faster and not found["own"]


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="benchmarks/tune")
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown file")
    given = parser.parse_args()
    titles = ("training", "a step as it is", "kept", "times faster", "fast but wrong")
    lines = [" | ".join(titles), "|".join("---" for _ in titles)]
    failed = 0
    for name in CASES:
        if fnmatch.fnmatch(name, given.only):
            found = tuned(name, given.repeat)
            failed += not holds(name, found)
            lines.append(" | ".join(row(name, found)))
            print(lines[-1], flush=True)
    table = "".join(f"| {line} |\n" if "---" not in line else f"|{line}|\n" for line in lines)
    if given.docs is not None:
        put_into(given.docs, "bench-tune", table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
