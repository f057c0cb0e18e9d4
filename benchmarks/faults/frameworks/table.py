"""The table: from answers to Markdown."""

from __future__ import annotations

import platform
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from report import markdown_table, put_between, said_in_a_line

Row = dict[str, Any]
MARKERS = ("<!-- bench-frameworks begin -->", "<!-- bench-frameworks end -->")
PACKAGES = ("torch", "transformers", "accelerate", "lightning", "peft")


def render(rows: Sequence[Row], *, seconds: float) -> str:
    """The whole report as Markdown; mistakes that change no bit are no mistakes and are listed apart."""
    recordings = [row for row in rows if row["group"] == "recording"]
    answers = [row for row in rows if row["group"] != "recording"]
    twins = [row for row in answers if row["group"] == "twin"]
    faults = [row for row in answers if row["group"] != "twin"]
    idle = sorted({row["case"] for row in faults if not row["changed"]})
    faults = [row for row in faults if row["changed"]]
    parts = [
        _heading(seconds),
        _summary(
            "Mistakes",
            faults,
            ("named", "wrong place", "not judged", "wrong AGREE", "crashed", "training broken"),
        ),
        _summary(
            "Sound pairs",
            twins,
            ("silent", "not judged", "false alarm", "crashed", "training broken"),
        ),
        _by("way", "Per way of training", faults, twins),
        _by("group", "Per kind of mistake", faults, []),
        _listed("Not named", faults, "named"),
        _listed("Accused, or not judged, though sound", twins, "silent"),
        _broken(recordings, answers),
    ]
    if idle:
        parts.append(f"Without any effect, and not counted: {', '.join(idle)}.")
    return "\n\n".join(part for part in parts if part) + "\n"


def put_into(file: Path, text: str) -> None:
    """Replace the table in a Markdown file."""
    put_between(file, text, MARKERS)


def _heading(seconds: float) -> str:
    packages = ", ".join(f"{name} {version(name)}" for name in PACKAGES)
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return (
        f"`make bench-faults-frameworks`, {day}: {packages}, Python {platform.python_version()},"
        f" {platform.machine()}, CPU; {seconds / 60:.0f} minutes."
    )


def _weights(rows: Iterable[Row]) -> list[str]:
    return sorted({row["weight"] for row in rows})


def _summary(title: str, rows: Sequence[Row], columns: tuple[str, ...]) -> str:
    """A line for each weight."""
    body = []
    for weight in _weights(rows):
        mine = [row for row in rows if row["weight"] == weight]
        counts = [sum(row["score"] == column for row in mine) for column in columns]
        body.append((weight, len(mine), f"{counts[0]} ({counts[0] / len(mine):.1%})", *counts[1:]))
    return f"### {title}\n\n" + markdown_table(("weight", "all", *columns), body) if body else ""


def _by(key: str, title: str, faults: Sequence[Row], twins: Sequence[Row]) -> str:
    """Named of all, and silent of all, for each way or kind."""
    if not faults and not twins:
        return ""
    weights = _weights([*faults, *twins])
    grouped: dict[str, dict[tuple[str, str], list[str]]] = defaultdict(lambda: defaultdict(list))
    for what, rows in (("named", faults), ("silent", twins)):
        for row in rows:
            grouped[row[key]][what, row["weight"]].append(row["score"])
    columns = [(what, weight) for what in ("named", "silent") for weight in weights]
    if not twins:
        columns = columns[: len(weights)]
    body = []
    for name in sorted(grouped):
        cells = []
        for column in columns:
            scores = grouped[name][column]
            cells.append(f"{scores.count(column[0])} / {len(scores)}" if scores else "")
        body.append((name, *cells))
    names = {"named": "mistakes named", "silent": "sound pairs silent"}
    header = (key, *(f"{names[what]}, {weight}" for what, weight in columns))
    return f"### {title}\n\n" + markdown_table(header, body)


def _listed(title: str, rows: Sequence[Row], right: str) -> str:
    """Every answer that is not the right one."""
    body = [
        (row["case"], row["weight"], row.get("place", ""), row["score"], said_in_a_line(row))
        for row in rows
        if row["score"] != right
    ]
    header = ("case", "weight", "place", "score", "said")
    return f"### {title}\n\n" + markdown_table(header, body) if body else ""


def _broken(recordings: Sequence[Row], answers: Sequence[Row]) -> str:
    """Trainings that failed or ended otherwise while they were recorded."""
    broken = {row["case"]: row["problem"] for row in recordings if row["problem"]}
    mine = {row["case"]: row["broken"] for row in answers if row.get("broken")}
    broken.update({name: text for name, text in mine.items() if text not in broken.values()})
    count = len(recordings) + len({row["case"] for row in answers if row["group"] != "twin"})
    title = f"### Trainings\n\n{count} recorded; {len(broken)} broken or changed by it."
    body = [
        (name, text.strip().splitlines()[-1][:160].replace("|", "/"))
        for name, text in broken.items()
    ]
    return title + ("\n\n" + markdown_table(("training", "problem"), body) if body else "")
