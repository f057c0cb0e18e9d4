"""Measures every bar of speed and memory in one run.

python benchmarks                       every workload, about ten minutes
python benchmarks --only 'compare*'     some of them
python benchmarks --large               also the largest recordings: 20 GB of tensors, a million records
python benchmarks --peer                beside mindstudio-probe, in an environment of its own
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import armed
import compare_memory
import log_scan
import peer_rows
import program_weight
import recording_memory
import report
import sink_rows
import sketch_records
import small_ops
import start_up
import step_cost
import tiny_tensors
import walk
import watch_cost
import watch_memory
import whole_tensors
from bench import TOY, Bench, Row, Size

Workload = Callable[[Bench], Iterator[Row]]

WORKLOADS: dict[str, tuple[str, Workload]] = {
    "step": ("A GPT-2 step, level api", step_cost.rows),
    "program": ("A step with --save program", program_weight.rows),
    "small": ("A tiny model's step, level module", small_ops.rows),
    "tiny": ("Trainings of tiny tensors, level api, as commands", tiny_tensors.rows),
    "rows": (
        "A row of a small step, through the recorder's session and through a sink",
        sink_rows.rows,
    ),
    "walk": ("A warm recorded torch.mul: what runs in Python", walk.rows),
    "armed": ("A step outside of the chosen ones", armed.rows),
    "memory": ("Memory that recording adds", recording_memory.rows),
    "compare": ("Comparing whole tensors", whole_tensors.rows),
    "compare-memory": ("Memory of comparing whole tensors", compare_memory.rows),
    "records": ("Comparing many sketches, as processes", sketch_records.rows),
    "watch": ("Watching a GPT-2, as commands", watch_cost.rows),
    "watch-memory": ("Memory over a thousand watched steps", watch_memory.rows),
    "logs": ("Looking through a log, as a process", log_scan.rows),
    "start": ("Start-up of a process", start_up.rows),
}

_DEFAULTS = {"layers": Size.layers, "width": Size.width, "device": "cpu", "rounds": 5}


def main() -> int:
    """Run the workloads and print their tables."""
    options = _options()
    size = (
        TOY
        if options.toy
        else Size(layers=options.layers, width=options.width, heads=max(1, options.width // 64))
    )
    tables: dict[str, list[Row]] = {}
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-", dir=options.scratch) as name:
        bench = Bench(Path(name), size, options.rounds, options.large, options.device)
        head = report.heading(bench, _command(options))
        print(head)
        failed = [
            title
            for title, work in _chosen(options)
            if not _is_measured(title, work, bench, tables)
        ]
    if options.json:
        report.write_json(options.json, head, tables)
    if options.docs and not failed:
        marker = "bench-peer" if options.peer else "bench"
        report.put_into(options.docs, marker, report.markdown(head, tables))
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rounds", type=int, default=_DEFAULTS["rounds"], help="interleaved rounds [5]"
    )
    parser.add_argument(
        "--only", action="append", metavar="ROWS", help=f"{', '.join(WORKLOADS)}; patterns"
    )
    parser.add_argument("--large", action="store_true", help="needs 25 GB of disk and some time")
    parser.add_argument("--layers", type=int, default=_DEFAULTS["layers"], help="of the GPT-2 [6]")
    parser.add_argument("--width", type=int, default=_DEFAULTS["width"], help="of the GPT-2 [384]")
    parser.add_argument(
        "--device", default=_DEFAULTS["device"], help="of the GPT-2 steps, cuda say [cpu]"
    )
    parser.add_argument("--toy", action="store_true", help="toy sizes: the figures mean nothing")
    parser.add_argument("--scratch", type=Path, help="where recordings go while this runs")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown page")
    parser.add_argument(
        "--peer", type=Path, nargs="?", const=Path(".venv-peer"), metavar="DIR",
        help="measure beside mindstudio-probe instead, in an environment made here [.venv-peer]",
    )  # fmt: skip
    options = parser.parse_args()
    if options.docs and options.only:
        parser.error("--docs keeps a whole table; leave out --only")
    return options


def _command(options: argparse.Namespace) -> str:
    """What to type to do the same again."""
    given = ["--large"] if options.large else []
    given += [
        f"--{name} {getattr(options, name)}"
        for name in ("layers", "width", "device", "rounds")
        if getattr(options, name) != _DEFAULTS[name]
    ]
    target = "make bench-peer" if options.peer else "make bench"
    return f'{target} OPTIONS="{" ".join(given)}"' if given else target


def _chosen(options: argparse.Namespace) -> list[tuple[str, Workload]]:
    if options.peer:
        return [("Beside mindstudio-probe", lambda bench: peer_rows.rows(bench, options.peer))]
    patterns = options.only or ["*"]
    chosen = [
        work
        for name, work in WORKLOADS.items()
        if any(fnmatch.fnmatch(name, one) for one in patterns)
    ]
    if not chosen:
        raise SystemExit(
            f"--only {' '.join(patterns)}: no such rows; there are {', '.join(WORKLOADS)}"
        )
    return chosen


def _is_measured(title: str, work: Workload, bench: Bench, tables: dict[str, list[Row]]) -> bool:
    """Run one workload in a scratch directory that goes when it ends; whether it came to its end.

    What fails is printed, and the next workload has its turn: a run takes long.
    """
    report.print_title(title)
    tables[title] = []
    try:
        with tempfile.TemporaryDirectory(prefix="workload-", dir=bench.directory) as name:
            for row in work(replace(bench, directory=Path(name))):
                tables[title].append(row)
                report.print_row(row)
    except Exception:
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    sys.exit(main())
