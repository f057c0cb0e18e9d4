"""Draws listed places of public repositories at random, for a person to judge.

python benchmarks/migrate/draw.py --corpus scripts --seed 63 --count 30 > drawn.csv
"""

from __future__ import annotations

import argparse
import csv
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, fields
from itertools import repeat
from pathlib import Path

from lockstep_migrate.delivery.rows import listed_rows
from lockstep_migrate.files.collection import collect
from lockstep_migrate.options import MigrationOptions
from lockstep_migrate.project import plan_collection

TARGETS = ("neutral", "mps", "xpu", "npu")


@dataclass(frozen=True, slots=True, order=True)
class Listed:
    """A place that needs a person, and how it was judged."""

    target: str
    repository: str
    file: str
    line: int
    rule: str
    text: str
    reason: str
    instead: str
    judged: str = ""


def listed_in(root: Path, target: str) -> list[Listed]:
    """Every listed place of a repository."""
    plan = plan_collection(collect([root]), MigrationOptions(target))
    name = root.name.replace("__", "/")
    return [
        Listed(target, name, row.file, row.line, row.rule, _short(row.before), row.reason, row.replacement)
        for row in listed_rows(plan)
    ]  # fmt: skip


def _short(text: str) -> str:
    return " ".join(text.split())[:120]


def drawn(corpus: Path, targets: list[str], seed: int, count: int) -> Iterator[Listed]:
    """As many places of each target, in the order of the draw."""
    roots = sorted(path for path in corpus.iterdir() if path.is_dir())
    draw = random.Random(seed)
    with ProcessPoolExecutor(2) as pool:
        for target in targets:
            found = [row for rows in pool.map(listed_in, roots, repeat(target)) for row in rows]
            print(f"{target}: {len(found)} listed", file=sys.stderr)
            yield from draw.sample(sorted(found), min(count, len(found)))


def main() -> None:
    """Print what is drawn."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--corpus", type=Path, required=True, help="folder of gathered scripts")
    parser.add_argument("--to", action="append", choices=TARGETS, help="a target [all]")
    parser.add_argument("--seed", type=int, default=63)
    parser.add_argument("--count", type=int, default=30, help="places for each target [30]")
    options = parser.parse_args()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(field.name for field in fields(Listed))
    writer.writerows(
        map(
            astuple, drawn(options.corpus, options.to or list(TARGETS), options.seed, options.count)
        )
    )


if __name__ == "__main__":
    main()
