"""The table: in the terminal, as JSON and in a Markdown page."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

import torch
from bench import Bench, Row

from lockstep.core.version import DISTRIBUTION, VERSION

Tables = Mapping[str, Sequence[Row]]


def heading(bench: Bench, command: str) -> str:
    """What was run, when, on what."""
    others = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    packages = f"{DISTRIBUTION} {VERSION}, {others}"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    accelerator = "" if bench.device == "cpu" else f", {torch.cuda.get_device_name()}"
    return (
        f"`{command}`, {day}: {packages}, Python {platform.python_version()}; {_processor()}, {os.cpu_count()} cores,"
        f" {torch.get_num_threads()} threads{accelerator}. {bench.size}; {bench.rounds} rounds."
    )


def _processor() -> str:
    """What the processor calls itself."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


def print_title(title: str) -> None:
    """Print the head of one workload's rows."""
    print(f"\n{title:60} {'median':>12} {'best':>12} {'bar':>10}  met", flush=True)


def print_row(row: Row) -> None:
    """Print one row as soon as it is known."""
    median, best, bar = _cells(row)
    print(f"  {row.what:58} {median:>12} {best:>12} {bar:>10}  {row.met:3}  {row.note}", flush=True)


def markdown(head: str, tables: Tables) -> str:
    """The whole table for a page."""
    lines = [head, "", "| what | median | best | bar | met | |", "|---|---|---|---|---|---|"]
    for name, rows in tables.items():
        lines.append(f"| **{name}** | | | | | |")
        lines += [f"| {' | '.join((row.what, *_cells(row), row.met, row.note))} |" for row in rows]
    return "\n".join(lines) + "\n"


def write_json(file: Path, head: str, tables: Tables) -> None:
    """Write every figure."""
    rows = [
        {"workload": name, **dataclasses.asdict(row), "bar": str(row.bar or ""), "met": row.met}
        for name, found in tables.items()
        for row in found
    ]
    file.write_text(json.dumps({"run": head, "rows": rows}, indent=1) + "\n")


def put_into(file: Path, marker: str, text: str) -> None:
    """Replace what stands between two markers of a page.

    Raises
    ------
    SystemExit
        If the page lacks them.
    """
    begin, end = f"<!-- {marker} begin -->", f"<!-- {marker} end -->"
    head, found, rest = file.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{file}: lacks the markers {begin} and {end}")
    file.write_text(f"{head}{begin}\n{text}{end}{tail}")


def _cells(row: Row) -> tuple[str, str, str]:
    """Median, best and bar."""
    best = "" if row.best is None else f"{_number(row.best)} {row.unit}"
    return f"{_number(row.median)} {row.unit}", best, f"{row.bar} {row.unit}" if row.bar else ""


def _number(value: float) -> str:
    """Three digits, never as a power of ten; four for a ratio near 1."""
    if 0.9 < value < 1.1:
        return f"{value:.4f}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
