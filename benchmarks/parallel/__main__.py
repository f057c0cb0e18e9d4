"""Trains on two gloo ranks with one slip each, and on one rank, and compares; each slip has a sound twin.

    python benchmarks/parallel [--only PATTERN] [--kept FILE] [--docs docs/distributed.md]

Samplers and packed batches are run on one rank. With `--kept`, outcomes of earlier calls with other patterns count too.

The exit code is 1 if a slip is not named where it is, or a sound training is not said to agree.
The trainings are those of the tests.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from lockstep import compare_recordings
from lockstep.core.finding import Comparison, Course, Verdict

sys.path.insert(0, str(Path(__file__).parents[1]))

from report import put_into

_HEAD = ["| slip on two ranks | how they share | slip | sound twin |", "|---|---|---|---|"]
_NOT_NAMED, _ALARM = "NOT NAMED", "FALSE ALARM"
_HERE = Path(__file__).parent
_TRAININGS = _HERE.parents[1] / "tests" / "unify"


@dataclass(frozen=True)
class Kind:
    """A slip, and where it is.

    Parameters
    ----------
    words
        What goes wrong.
    over
        How ranks share the training.
    script
        Which trainings.
    slip, sound, one
        Names of the training with the slip, of its sound twin, and of that of one rank.
    ranks
        On how many ranks those with the slip, and without, are trained.
    at
        A pattern of the first origin: phase, module, operator and tensor; "end" for the end of the training. "" where
        the training is sound, and has no twin.
    """

    words: str
    over: str
    script: Path
    slip: str
    sound: str
    one: str
    ranks: int
    at: str


def _kinds() -> list[Kind]:
    with (_HERE / "kinds.csv").open(encoding="utf-8", newline="") as file:
        return [
            Kind(
                words,
                over,
                (_HERE if (_HERE / script).exists() else _TRAININGS) / script,
                slip,
                sound,
                one,
                int(ranks),
                at,
            )
            for words, over, script, slip, sound, one, ranks, at in list(csv.reader(file))[1:]
        ]


def _ranks(script: Path, folder: Path, names: list[str], count: int) -> None:
    """Train on so many ranks, all trainings in one launch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "OMP_NUM_THREADS": "1"}
    shared |= {"WORLD_SIZE": str(count)} if count > 1 else {}
    started = [
        subprocess.Popen(
            [sys.executable, str(script), str(folder), *names],
            env={**os.environ, **shared, "RANK": str(rank)},
        )
        for rank in range(count)
    ]
    ended = [one.wait() for one in started]
    if any(ended):
        raise SystemExit(f"{script.name} failed on {count} ranks")


def _recorded(folder: Path, kinds: list[Kind]) -> None:
    for script in dict.fromkeys(kind.script for kind in kinds):
        own = [kind for kind in kinds if kind.script == script]
        _ranks(script, folder / script.stem / "one", sorted({kind.one for kind in own}), 1)
        many = sorted({name for kind in own for name in (kind.slip, kind.sound)})
        _ranks(script, folder / script.stem / "many", many, own[0].ranks)


def _place(found: Comparison) -> str:
    if found.origins:
        first = found.origins[0]
        return f"{first.phase.value} {first.module} {first.op} {first.role.value} {first.tensor}"
    return "end" if found.ends and found.ends.course is Course.APART else ""


def _rows(folder: Path, kinds: list[Kind]) -> list[tuple[Kind, Comparison, Comparison]]:
    found: dict[tuple[Path, str, str], Comparison] = {}

    def compared(kind: Kind, many: str) -> Comparison:
        key = kind.script, kind.one, many
        if key not in found:
            sides = (folder / kind.script.stem / side for side in ("one", "many"))
            one, two = (side / name for side, name in zip(sides, (kind.one, many), strict=True))
            found[key] = compare_recordings(one, two)
        return found[key]

    return [(kind, compared(kind, kind.slip), compared(kind, kind.sound)) for kind in kinds]


def main() -> int:
    """Print a line a kind, and whether all came out as they should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="*", help="names of slips, as a pattern")
    parser.add_argument(
        "--kept", type=Path, help="a file of outcomes, of this call and of earlier ones"
    )
    parser.add_argument("--docs", type=Path, help="a page of docs to keep the table in")
    asked = parser.parse_args()
    kinds = [kind for kind in _kinds() if fnmatch.fnmatch(kind.slip, asked.only)]
    kept = json.loads(asked.kept.read_text()) if asked.kept and asked.kept.exists() else {}
    begun = time.monotonic()
    print("\n".join(_HEAD))
    with tempfile.TemporaryDirectory() as folder:
        _recorded(Path(folder), kinds)
        for kind, slip, sound in _rows(Path(folder), kinds):
            kept[f"{kind.script.name} {kind.one} {kind.slip}"] = row = _row(kind, slip, sound)
            print(row, flush=True)
    kept["minutes"] = kept.get("minutes", 0) + (time.monotonic() - begun) / 60
    if asked.kept:
        asked.kept.write_text(json.dumps(kept, indent=1))
    names = [f"{kind.script.name} {kind.one} {kind.slip}" for kind in _kinds()]
    lines = [kept[name] for name in names if name in kept]
    wrong = sum(_NOT_NAMED in line or _ALARM in line for line in lines)
    said = (
        f"{len(lines) - wrong} of {len(lines)} kinds came out as they should, in {kept['minutes']:.1f} minutes,"
        f" by `make bench-parallel` on {date.today()}."
    )
    print(said)
    if asked.docs:
        put_into(asked.docs, "parallel", "\n".join([*_HEAD, *lines, "", said, ""]))
    return 1 if wrong else 0


def _row(kind: Kind, slip: Comparison, sound: Comparison) -> str:
    place = _place(slip)
    named = slip.verdict is Verdict.DIVERGED and re.match(kind.at, place) is not None
    told = "named" if named else f"{_NOT_NAMED} ({slip.verdict.value}, {place or 'no origin'})"
    agrees = sound.verdict is Verdict.AGREE
    twin = "agrees" if agrees else f"{_ALARM} ({sound.verdict.value}, {_place(sound)})"
    return f"| {kind.words} | {kind.over} | {told if kind.at else '-'} | {twin} |"


if __name__ == "__main__":
    sys.exit(main())
