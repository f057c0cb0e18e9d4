"""Watches sound trainings and such with one thing wrong, and tells which rules fired and should not, or did not.

    python benchmarks/watch [--only PATTERN] [--steps 50]

Each training is run by `lockstep watch` in a process of its own, those of two ranks by torchrun. The exit code is 1
where a rule fired that should not, or did not fire that should.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import faulty_unseen  # noqa: F401 - lists its trainings
import sound_unseen  # noqa: F401
import torch
from faulty import PLANTED
from sound import SOUND

ALL = {**SOUND, **{name: one.train for name, one in PLANTED.items()}}


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(prog="benchmarks/watch")
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--train", choices=ALL, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.train:
        torch.manual_seed(given.seed)
        torch.set_num_threads(1)
        ALL[given.train](given.steps)
        return 0
    names = [name for name in ALL if fnmatch.fnmatch(name, given.only)]
    wrong = [name for name in names if not list_row(name, given.steps, given.seed)]
    print(
        f"{len(names) - len(wrong)} of {len(names)} as they should be{': not ' if wrong else ''}{', '.join(wrong)}"
    )
    return 1 if wrong else 0


def list_row(name: str, steps: int, seed: int) -> bool:
    """Watch one training and print a row; whether it is as it should be."""
    fired, noted, said = watched(name, steps, seed)
    wanted, may, notes = expected(name)
    good = fired is not None and wanted <= fired <= wanted | may and notes <= noted
    found = "failed" if fired is None else ", ".join(sorted(fired)) or "nothing"
    print(f"{'ok   ' if good else 'WRONG'} {name}: {found}", flush=True)
    if not good:
        print("\n".join(f"        {line}" for line in said[-12:]), flush=True)
    return good


def expected(name: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """The rules that have to fire, those that may, and those that have to give a note."""
    one = PLANTED.get(name)
    return (frozenset(),) * 3 if one is None else (one.fires, one.may_fire, one.notes)


def watched(name: str, steps: int, seed: int) -> tuple[set[str] | None, set[str], list[str]]:
    """The rules that fired, None where nothing was watched; those that gave notes; what was said meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        events = Path(folder) / "events.jsonl"
        command = [
            sys.executable, "-m", "lockstep", "watch", "--json", "--events", str(events), "--",
            *launched(name), str(Path(__file__).parent), "--train", name, "--steps", str(steps), "--seed", str(seed),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stderr.splitlines()
    if done.returncode == 2 or not done.stdout:
        return None, set(), said
    values = json.loads(done.stdout)
    noted = {one["rule"] for one in values["notes"]}
    return (set(values["fired"]) if seen(values) >= steps else None), noted, said


def launched(name: str) -> Iterator[str]:
    """Python, or as many of it as a training needs."""
    yield sys.executable
    if "two_ranks" in name or name == "drifting_replica":
        yield from ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")


def seen(values: dict[str, Any]) -> int:
    """How many steps were looked at, with those that the script left out by hand."""
    return max(values["steps"].values(), default=0) + values["left_out_by_script"]


if __name__ == "__main__":
    sys.exit(main())
