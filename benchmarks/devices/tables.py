"""The campaign's tables in Markdown, from its journal."""

from __future__ import annotations

import platform
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from pairs import SOUND, Row

from lockstep.core.version import DISTRIBUTION, VERSION

Done = dict[str, dict[str, Any]]
SYMBOLS = {
    "as it should be": "ok", "not on this device": "-", "false alarm": "**false alarm**",
    "not named": "**not named**", "failed": "**failed**", "to do": "",
}  # fmt: skip


def heading(device: str, emulate: str) -> str:
    """Date, card and versions."""
    card = _card(torch.device(device)) + (f" emulating {emulate}" if emulate else "")
    parts = (
        time.strftime("%Y-%m-%d"), card, f"{DISTRIBUTION} {VERSION}", f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
    )  # fmt: skip
    return f"`make bench-device`, {', '.join(parts)}."


def _card(device: torch.device) -> str:
    if device.type == "cpu":
        return f"CPU {platform.machine()}"
    module: Any = getattr(torch, device.type, None)
    if device.type == "cuda":
        return (
            f"{torch.cuda.get_device_name(device)}, CUDA {torch.version.cuda or torch.version.hip}"
        )
    name = getattr(module, "get_device_name", None)
    return str(name(device)) if name else device.type


def render(rows: Sequence[Row], done: Done, title: str) -> str:
    """All tables."""
    sound = [row for row in rows if not row.candidate.fault]
    faults = [row for row in rows if row.candidate.fault]
    parts = [title, _count(sound, done, "sound pairs"), _count(faults, done, "planted faults")]
    if sound:
        parts.insert(2, _grid(sound, done))
    if faults:
        parts.append(_faults(faults, done))
    parts.append(_findings(rows, done))
    return "\n\n".join(part for part in parts if part) + "\n"


def _answer(row: Row, done: Done) -> str:
    said = done.get(row.name, {})
    answer = str(said.get("answer", "to do"))
    if answer == "as it should be" and said.get("word") == "ANOTHER PRECISION":
        return "precision"
    return SYMBOLS[answer]


def _count(rows: Sequence[Row], done: Done, what: str) -> str:
    if not rows:
        return ""
    found = Counter(str(done.get(row.name, {}).get("answer", "to do")) for row in rows)
    said = ", ".join(f"{found[one]} {one}" for one in SYMBOLS if found[one])
    return f"{len(rows)} {what}: {said}."


def _grid(rows: Sequence[Row], done: Done) -> str:
    """Trainings and precisions down, pairs across."""
    pairs = [pair for pair, *_ in SOUND if any(row.pair == pair for row in rows)]
    cells = {(row.group, row.pair): _answer(row, done) for row in rows}
    groups = dict.fromkeys(row.group for row in rows)
    body = [[group, *(cells.get((group, pair), "n/a") for pair in pairs)] for group in groups]
    return _table(["training", *pairs], body)


def _faults(rows: Sequence[Row], done: Done) -> str:
    body = []
    for row in rows:
        said = done.get(row.name, {})
        reference = "CPU" if row.reference.on_cpu else "device"
        body.append(
            [
                row.group,
                row.candidate.fault,
                reference,
                said.get("planted", ""),
                said.get("score", _answer(row, done)),
            ]
        )
    return _table(["training", "fault", "reference", "planted at", "named"], body)


def _findings(rows: Iterable[Row], done: Done) -> str:
    body = []
    for row in rows:
        said = done.get(row.name)
        if said and said["answer"] != "as it should be":
            words = said.get("headline") or said.get("why", "")
            body.append([row.name, said["answer"], words])
    return _table(["row", "answer", "said"], body) if body else ""


def _table(head: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *body]
    return "\n".join(f"| {' | '.join(one.replace('|', '/') for one in line)} |" for line in lines)
