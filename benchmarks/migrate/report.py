"""The table of `make bench-migrate`: in the terminal and in a Markdown page."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from corpus import Gathered
from measures import UNACCOUNTED, Findings

from lockstep.core.version import DISTRIBUTION, VERSION

_BEGIN, _END = "<!-- bench-migrate begin -->", "<!-- bench-migrate end -->"
_FATES = ("rewritten", "listed", "kept", UNACCOUNTED)


@dataclass(frozen=True)
class Row:
    """One bar: what was measured, the bar in words, and whether it is met; `None` where nothing is asked."""

    what: str
    value: str
    bar: str = ""
    met: bool | None = None


def bars(found: Findings) -> list[Row]:
    """The bars of one target."""
    sites = sum(found.sites.values())
    return [
        Row("files", f"{found.files}, {found.scripts} of them scripts with sites; {found.changed} changed"),
        Row("sites accounted for", _share(sites - len(found.unaccounted), sites), "100 %", not found.unaccounted),
        Row(
            "parse afterwards, of the files that parsed before",
            _share(found.parsed - len(found.broken), found.parsed), "100 %", not found.broken,
        ),
        Row(
            "files that do not parse, listed as such",
            _share(len(found.failures), len(found.failures) + len(found.unread)), "100 %", not found.unread,
        ),
        Row("new warnings of pyflakes", str(len(found.new_warnings)), "none", not found.new_warnings),
        Row("emitted names that the target lacks", str(len(found.missing_names)), "none", not found.missing_names),
        Row("files that a second run changes", str(len(found.second_run)), "none", not found.second_run),
        Row("lines changed outside of every rewritten place", str(len(found.outside)), "none", not found.outside),
    ]  # fmt: skip


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.2f} %)" if whole else "0 of 0"


def heading(gathered: Gathered, command: str, seconds: float) -> str:
    """What was run, when, on what."""
    packages = f"{DISTRIBUTION} {VERSION}, pyflakes {version('pyflakes')}"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    left_out = f", without {', '.join(gathered.missing)}" if gathered.missing else ""
    return (
        f"`{command}`, {day}: {packages}, Python {platform.python_version()}; {_processor()}, {os.cpu_count()} cores."
        f" {gathered.files} files of {gathered.repositories} repositories, digest {gathered.digest}{left_out};"
        f" {seconds / 60:.0f} minutes."
    )


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


def table(title: str, rows: Sequence[Row]) -> str:
    """Rows for the terminal."""
    lines = [f"\n{title}"]
    for row in rows:
        met = {True: "met", False: "NOT MET", None: ""}[row.met]
        lines.append(f"  {row.what:52} {row.value:44} {row.bar:>14}  {met}".rstrip())
    return "\n".join(lines)


def markdown(head: str, tables: Mapping[str, Sequence[Row]], kinds: Findings, target: str) -> str:
    """The whole report for a page."""
    lines = [head, "", "| what | measured | bar | met |", "|---|---|---|---|"]
    for title, rows in tables.items():
        lines.append(f"| **{title}** | | | |")
        for row in rows:
            met = {True: "yes", False: "no", None: ""}[row.met]
            lines.append(f"| {row.what} | {row.value} | {row.bar} | {met} |")
    lines += ["", f"What became of the sites with `--to {target}`, by the counter's own kinds:", ""]
    lines += [f"| kind of site | {' | '.join(_FATES)} |", "|---|" + "---|" * len(_FATES)]
    lines += [f"| {kind} | {' | '.join(map(str, counts))} |" for kind, counts in by_kind(kinds)]
    return "\n".join(lines) + "\n"


def by_kind(found: Findings) -> list[tuple[str, list[int]]]:
    """How many sites of each kind came to which end, the largest kinds first."""
    kinds = {kind for kind, _ in found.sites}
    counts = [(kind, [found.sites[kind, fate] for fate in _FATES]) for kind in kinds]
    return sorted(counts, key=lambda entry: (-sum(entry[1]), entry[0]))


def put_into(file: Path, text: str, begin: str = _BEGIN, end: str = _END) -> None:
    """Replace what stands between the markers of a page.

    Raises
    ------
    SystemExit
        If the page lacks them.
    """
    head, found, rest = file.read_text().partition(begin)
    _, closed, tail = rest.partition(end)
    if not found or not closed:
        raise SystemExit(f"{file}: lacks the markers {begin} and {end}")
    file.write_text(f"{head}{begin}\n{text}{end}{tail}")
