"""The fault benchmark: plants faults in real architectures and looks whether Lockstep names them.

python benchmarks/faults                        the published table
python benchmarks/faults --split development    the cases that constants may be chosen on
python benchmarks/faults --arch t5 --fault matmul-fp16 --keep kept     one case, its recordings kept
python benchmarks/faults --proofs                 whether the tests that replay --write-test writes tell a fault
python benchmarks/faults --split frameworks     mistakes and sound pairs in Trainer, DDP, FSDP, compile ...
python benchmarks/faults --split frameworks --case 'trainer/gpt2/*'    some of its cases, of either half
"""

from __future__ import annotations

import argparse
import fnmatch
import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import peer
import proofs
import report
import workers
from architectures import ARCHITECTURES, Split
from cases import Case
from kinds import KINDS
from pool import Task, pooled
from training import Training
from twins import TWINS

SPLITS = (*(item.value for item in Split), "frameworks", "frameworks-development")

TIMEOUT_S = 240.0
"""A case takes a few seconds; what takes this long hangs."""


def main() -> int:
    """Run the benchmark."""
    options = _options()
    if options.split.startswith("frameworks"):
        from frameworks import running  # its libraries take seconds to load

        return running.run(options)
    architectures = [
        name
        for name, item in ARCHITECTURES.items()
        if _chosen(name, options.arch) and (options.arch or item.split.value == options.split)
    ]
    for name in architectures:
        ARCHITECTURES[name].load()
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="lockstep-faults-") as name:
        return _run(options, architectures, Path(name))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="benchmarks/faults", description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--split", choices=SPLITS, default=Split.TABLE.value)
    parser.add_argument("--arch", action="append", help="these architectures only, of either split")
    parser.add_argument("--fault", action="append", help="these kinds of fault only (patterns)")
    parser.add_argument("--twin", action="append", help="these twins only (patterns)")
    parser.add_argument("--case", action="append", help="these cases of frameworks only (patterns)")
    parser.add_argument("--way", action="append", help="these ways of frameworks only (patterns)")
    parser.add_argument("--only", choices=("faults", "twins"), help="this part of frameworks only")
    parser.add_argument("--weight", action="append", choices=(*workers.WEIGHTS, workers.OF_ITS_OWN))
    parser.add_argument("--rule", action="append", choices=workers.RULES)
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--keep", type=Path, help="keep the recordings in this directory")
    parser.add_argument("--seed", type=int, help="draw other sites and amounts")
    parser.add_argument("--results", type=Path, help="write every answer to this file (JSON lines)")
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown file")
    parser.add_argument(
        "--peer", type=Path, nargs="?", const=Path(".venv-peer"), metavar="DIR",
        help="run mindstudio-probe on the same cases too, in an environment made here [.venv-peer]",
    )  # fmt: skip
    parser.add_argument("--as-peer", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument(
        "--proofs", action="store_true",
        help="run the stand-alone tests of forward and backward faults, with the fault and without",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the cases and run none")
    return parser.parse_args()


def _chosen(name: str, patterns: Sequence[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _run(options: argparse.Namespace, architectures: list[str], directory: Path) -> int:
    start = time.monotonic()
    methods = workers.Methods(
        tuple(options.weight or workers.WEIGHTS), tuple(options.rule or workers.RULES)
    )
    if workers.OF_ITS_OWN in methods.weights:
        if len(methods.weights) > 1:
            raise SystemExit(
                f"--weight {workers.OF_ITS_OWN} stands alone: it has its own recordings"
            )
        Training.recorded = workers.OF_ITS_OWN
    if options.as_peer:
        methods = peer.take_over()
    cases = _prepared(architectures, directory, options, methods)
    if options.list:
        for case in cases:
            target = case.planted.target
            where = target.parameter or f"{target.place.module} {target.place.op}"
            late = ", from step 1" if case.planted.from_step else ""
            print(f"{case.name:40} {where} {case.planted.amount:.3g}{late}")
        return 0
    if options.proofs:
        return _run_proofs(options, cases, directory)
    tasks = list(_tasks(options, architectures, cases, directory, methods))
    rows: list[dict[str, Any]] = []
    answers = pooled(tasks, options.jobs, directory, timeout_s=TIMEOUT_S)
    for number, (name, found) in enumerate(answers, 1):
        rows.extend(found)
        best = {row["weight"]: row["score"] for row in found if row["rule"] == methods.rules[0]}
        print(f"[{number}/{len(tasks)}] {name}: {best}", file=sys.stderr, flush=True)
        if options.results:
            with options.results.open("a" if number > 1 else "w") as file:
                file.writelines(json.dumps(row) + "\n" for row in found)
    if options.keep:
        _keep_references(architectures, directory, options.keep)
    if options.as_peer:
        return 0
    if options.peer:
        rows.extend(_peer_rows(options))
    text = report.render(rows, seconds=time.monotonic() - start)
    if options.docs:
        report.put_into(options.docs, text)
    else:
        print(text)
    return 0


def _run_proofs(options: argparse.Namespace, cases: list[Case], directory: Path) -> int:
    tasks = [
        Task(
            case.name,
            partial(proofs.run_proof, case, directory / case.architecture, options.keep),
            partial(proofs.failed, case),
        )
        for case in cases
        if case.fault.group in proofs.GROUPS and case.fault.ranks == 1
    ]
    rows: list[dict[str, Any]] = []
    for number, (name, found) in enumerate(
        pooled(tasks, options.jobs, directory, timeout_s=TIMEOUT_S), 1
    ):
        rows += found
        print(f"[{number}/{len(tasks)}] {name}: {found[0]['answer']}", file=sys.stderr, flush=True)
    if options.results:
        proofs.write(rows, options.results)
    print(proofs.render(rows))
    return 0


def _peer_rows(options: argparse.Namespace) -> list[dict[str, Any]]:
    """What the peer says of the same cases."""
    selection = ["--split", options.split, "--jobs", str(options.jobs)]
    if options.seed is not None:
        selection += ["--seed", str(options.seed)]
    for name in ("arch", "fault", "twin"):
        for pattern in getattr(options, name) or ():
            selection += [f"--{name}", pattern]
    found = peer.rows(options.peer, selection)
    if options.results:
        with options.results.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in found)
    return found


def _task(name: str, group: str, work: Callable[[], list[Any]], methods: workers.Methods) -> Task:
    return Task(name, work, lambda text: workers.crashed(name, group, methods, text))


def _tasks(
    options: argparse.Namespace,
    architectures: Iterable[str],
    cases: Iterable[Case],
    directory: Path,
    methods: workers.Methods,
) -> Iterable[Task]:
    """Twins and faults, kind by kind over all architectures."""
    keep = options.keep
    twins = [] if options.fault and not options.twin else list(TWINS)
    for twin in (twin for twin in twins if _chosen(twin, options.twin) and _is_available(twin)):
        for name in architectures:
            work = partial(workers.run_twin, name, twin, directory / name, methods, keep)
            yield _task(f"{name}/{twin}", "twin", work, methods)
    for case in cases:
        work = partial(workers.run_case, case, directory / case.architecture, methods, keep)
        yield _task(case.name, case.fault.group, work, methods)


def _is_available(twin: str) -> bool:
    """Whether this version of Lockstep has what the twin needs."""
    if not twin.startswith("emulated"):
        return True
    found = importlib.util.find_spec("lockstep.devices.emulation.mode") is not None
    if not found:
        print(f"{twin}: left out, there is no emulated device yet", file=sys.stderr)
    return found


def _prepared(
    architectures: Iterable[str],
    directory: Path,
    options: argparse.Namespace,
    methods: workers.Methods,
) -> list[Case]:
    """Draw the cases and, unless they are only listed, record every reference."""
    tasks: list[Task] = []
    for name in architectures:
        (directory / name).mkdir()
        work = partial(workers.prepare, name, directory / name, options.seed)
        if options.list:
            work = partial(workers.draw, name, options.seed)
        tasks.append(_task(name, "reference", work, methods))
    found: dict[str, Any] = dict(pooled(tasks, options.jobs, directory, timeout_s=TIMEOUT_S))
    for name, cases in found.items():
        if cases and isinstance(cases[0], dict):
            raise SystemExit(f"{name}: the reference could not be recorded\n{cases[0]['error']}")
    if options.twin and not options.fault:
        return []
    cases = [case for name in architectures for case in found[name]]
    order = list(KINDS)
    chosen = [case for case in cases if _chosen(case.kind, options.fault)]
    return sorted(chosen, key=lambda case: order.index(case.kind))


def _keep_references(architectures: Iterable[str], directory: Path, keep: Path) -> None:
    for name in architectures:
        target = keep / name / "reference"
        shutil.rmtree(target, ignore_errors=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(directory / name / "reference", target)


if __name__ == "__main__":
    sys.exit(main())
