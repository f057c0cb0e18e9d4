"""Sound pairs and planted faults on a device: records them, compares them, writes tables.

    python benchmarks/devices --device cuda --out campaign          all pieces; a killed run goes on where it was
    python benchmarks/devices --device cuda --out campaign --pieces 1      the next piece of at most 8 minutes
    python benchmarks/devices --device cpu --emulate reorder --only 'gpt/*' --out campaign
    python benchmarks/devices --plan                                how many rows and pieces there are
    python benchmarks/devices --device cuda --cost                  what recording adds to a step of a GPT

The exit code is 0 where all rows are done and as they should be, 1 where one is not, 3 where some are left.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import cost
import tables
from pairs import Row, rows
from pieces import PIECE_S, Journal, pieces_of, seconds_of, still_needed
from running import Runner

LEFT = 3


def main() -> int:
    """Run the campaign, or a part of it."""
    given = _options()
    chosen = rows(given.only or ["*"])
    if not chosen:
        raise SystemExit(
            f"--only {' '.join(given.only)}: no row has such a name; --plan lists them"
        )
    if given.plan:
        _print_plan(chosen, listed=bool(given.only))
        return 0
    given.out.mkdir(parents=True, exist_ok=True)
    title = tables.heading(given.device, given.emulate)
    if given.cost:
        text = cost.render(given.device, title, toy=given.toy)
        (given.out / "cost.md").write_text(text)
        print(text)
        return 0
    return _run(given, chosen, title)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/devices", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--device", default="cuda", help="as torch.device has it [cuda]")
    parser.add_argument(
        "--emulate", default="", help="with --device cpu: as `lockstep record` has it"
    )
    parser.add_argument(
        "--only", action="append", metavar="PATTERN", help="rows, as in 'gpt/fp32/*'; repeatable"
    )
    parser.add_argument("--out", type=Path, default=Path("device-campaign"), metavar="FOLDER")
    parser.add_argument("--pieces", type=int, metavar="N", help="stop after so many pieces")
    parser.add_argument("--plan", action="store_true", help="print what there is to do, and end")
    parser.add_argument("--cost", action="store_true", help="measure what recording adds to a step")
    parser.add_argument("--toy", action="store_true", help="--cost at a size that means nothing")
    return parser.parse_args()


def _print_plan(chosen: list[Row], *, listed: bool) -> None:
    made: set[tuple[str, object]] = set()
    recordings = {(row.group, side.name) for row in chosen for side in row.sides}
    faults = sum(bool(row.candidate.fault) for row in chosen)
    groups, pieces = {row.group for row in chosen}, pieces_of(chosen)
    total = 0.0
    for row in chosen:
        total += seconds_of(row, made)  # type: ignore[arg-type]
        made |= {(row.group, side) for side in row.sides}
    if listed:
        print("\n".join(row.name for row in chosen))
    print(
        f"{len(chosen)} rows ({len(chosen) - faults} sound pairs, {faults} planted faults) of "
        f"{len(groups)} trainings in a precision; {len(recordings)} recordings; "
        f"{len(pieces)} pieces of at most {PIECE_S / 60:.0f} minutes, {total / 3600:.1f} hours"
    )


def _run(given: argparse.Namespace, chosen: list[Row], title: str) -> int:
    journal = Journal(given.out / "journal.jsonl")
    runner = Runner(given.out, given.device, given.emulate)
    left = journal.left(chosen)
    if len(left) < len(chosen):
        print(f"{len(chosen) - len(left)} of {len(chosen)} rows are done; going on", flush=True)
    pieces = pieces_of(left)
    for number, piece in enumerate(pieces[: given.pieces], 1):
        print(f"piece {number} of {len(pieces)}: {len(piece)} rows", flush=True)
        _run_piece(piece, journal, runner, chosen)
        _write(given.out, chosen, journal, title)
    left = journal.left(chosen)
    if left:
        print(f"{len(left)} rows are left: the same command goes on")
        return LEFT
    print(_write(given.out, chosen, journal, title))
    wrong = [row for row in chosen if journal.done[row.name]["answer"] not in _RIGHT]
    return 1 if wrong else 0


_RIGHT = ("as it should be", "not on this device")


def _run_piece(piece: list[Row], journal: Journal, runner: Runner, chosen: list[Row]) -> None:
    start = time.monotonic()
    for row in piece:
        if time.monotonic() - start > PIECE_S:
            return  # what is left comes with the next piece
        said = runner.row(row)
        journal.add(row, said)
        print(f"  {row.name}: {said['answer']} ({said['seconds']} s)", flush=True)
        needed = still_needed(journal.left(chosen))
        for group, name in runner.made():
            if (group, name) not in needed:
                runner.forget(group, name)


def _write(out: Path, chosen: list[Row], journal: Journal, title: str) -> str:
    text = tables.render(chosen, journal.done, title)
    (out / "tables.md").write_text(text)
    return text


if __name__ == "__main__":
    sys.exit(main())
