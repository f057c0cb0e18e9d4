"""Migrates real public scripts to every target and holds what comes out against the bars.

python benchmarks/migrate --mirror clones                   gathers the scripts from clones; corpus.yaml says how
python benchmarks/migrate --corpus scripts --to npu         scripts gathered before, one target
python benchmarks/migrate --corpus scripts --faults faults  writes the place of everything that misses a bar
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import corpus
import report
import speed
from measures import Findings, measure

TARGETS = ("neutral", "npu", "xpu", "hpu", "mps")
LARGE_LINES = 5000
FILES_PER_S = 20


def main() -> int:
    """Measure, print, keep; 1 where a bar is not met."""
    options = _options()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as name:
        scratch = Path(name)
        gathered, folder = _scripts(options, scratch / "scripts")
        tables: dict[str, list[report.Row]] = {}
        found: dict[str, Findings] = {}
        for target, findings in _migrated(folder, options.to):
            found[target] = findings
            tables[f"--to {target}"] = report.bars(findings)
            print(report.table(f"--to {target}", tables[f"--to {target}"]), flush=True)
        title = "The command, from start to end"
        tables[title] = list(_speed_rows(folder, gathered.files, scratch))
        print(report.table(title, tables[title]), flush=True)
    head = report.heading(gathered, _command(options), time.perf_counter() - started)
    page = report.markdown(head, tables, found[options.to[0]], options.to[0])
    print(f"\n{page[page.index('What became') :]}\n{head}")
    if options.faults:
        _write_faults(options.faults, found)
    if options.docs:
        report.put_into(options.docs, page)
    return 1 if any(row.met is False for rows in tables.values() for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/migrate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--mirror", type=Path, help="folder of clones to gather the scripts from")
    parser.add_argument("--corpus", type=Path, help="folder of scripts that were gathered before")
    parser.add_argument(
        "--list", type=Path, default=corpus.LIST, help="the repositories [corpus.yaml]"
    )
    parser.add_argument("--to", action="append", choices=TARGETS, help="a target [all]")
    parser.add_argument("--faults", type=Path, help="folder for lists of what misses a bar")
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown page")
    options = parser.parse_args()
    options.to = options.to or list(TARGETS)
    if (options.mirror is None) == (options.corpus is None):
        parser.error(
            f"give --mirror or --corpus: the scripts are other people's and not kept here; {corpus.LIST} says how to"
            " clone them"
        )
    return options


def _scripts(options: argparse.Namespace, folder: Path) -> tuple[corpus.Gathered, Path]:
    if options.corpus:
        return corpus.found_in(
            options.corpus, corpus.repositories(options.list)
        ), options.corpus.resolve()
    gathered = corpus.gather(corpus.repositories(options.list), options.mirror, folder)
    if not gathered.files:
        raise SystemExit(
            f"{options.mirror}: none of the repositories is there; {corpus.LIST} says how to clone them"
        )
    return gathered, folder


def _migrated(folder: Path, targets: list[str]) -> Iterator[tuple[str, Findings]]:
    """What came of every repository, each migrated by itself, as its user would."""
    roots = sorted(path for path in folder.iterdir() if path.is_dir())
    with ProcessPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
        jobs = {
            target: [pool.submit(measure, root, target) for root in roots] for target in targets
        }
        for target in targets:
            found = Findings()
            for job in jobs[target]:
                found.add(job.result())
            yield target, found


def _speed_rows(folder: Path, files: int, scratch: Path) -> Iterator[report.Row]:
    large = speed.write_generated(scratch, LARGE_LINES)
    nothing = speed.write_generated(scratch, 1)
    migrate = [*speed.MIGRATE, "--dry-run"]
    speed.seconds([*migrate, str(nothing)])  # warms the file caches
    taken = speed.seconds([*migrate, str(folder)])
    rate = files / taken
    yield report.Row(
        f"files/s, {files} files, {speed.CORES} cores",
        f"{rate:.0f} ({taken:.1f} s)",
        f">= {FILES_PER_S}",
        rate >= FILES_PER_S,
    )
    taken = min(speed.seconds([*migrate, str(large)]) for _ in range(3))
    yield report.Row(f"a file of {LARGE_LINES} lines", f"{taken:.2f} s", "< 1 s", taken < 1)
    taken = min(speed.seconds([*migrate, str(nothing)]) for _ in range(3))
    yield report.Row("a file of one line", f"{taken:.2f} s")
    torch = sorted(name for name in speed.modules_loaded([*migrate, str(large)]) if name == "torch")
    yield report.Row("imports torch", "yes" if torch else "no", "no", not torch)


def _write_faults(folder: Path, found: dict[str, Findings]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for target, findings in found.items():
        for name, value in vars(findings).items():
            if isinstance(value, list):
                (folder / f"{target}.{name}.txt").write_text("".join(f"{line}\n" for line in value))


def _command(options: argparse.Namespace) -> str:
    given = "--corpus DIR" if options.corpus else "--mirror DIR"
    chosen = "".join(f" --to {target}" for target in options.to if options.to != list(TARGETS))
    return f'make bench-migrate OPTIONS="{given}{chosen}"'


if __name__ == "__main__":
    sys.exit(main())
