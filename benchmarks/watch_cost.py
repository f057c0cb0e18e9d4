"""What watching costs a step of a GPT-2 that runs as a command."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import AtMost, Bench, Row, ratio_row

_CHILD = Path(__file__).with_name("watched_child.py")
_WARM = 2
"""Steps at the start of a command that are not timed: loading and compiling are no part of a step."""


def rows(bench: Bench) -> Iterator[Row]:
    """Bare and watched commands in turn, one after the other."""
    place = bench.directory / "watch"
    place.mkdir()
    steps = bench.size.watched_steps
    child = [sys.executable, str(_CHILD), str(steps), str(place / "times.json"), _size(bench)]
    _run(["record", "-o", str(place / "ref"), "--steps", f"0:{steps}", "--", *child])
    ways = {
        "default rules, level module": (["watch", "--level", "module"], AtMost(1.25)),
        "default rules, level api": (["watch"], AtMost(1.5)),
        "nan and inf only, level module": (["watch", "--level", "module", "--only-rule", "not-finite"], AtMost(1.1)),
        "default rules, level api, each fifth step": (["watch", "--every", "5"], None),
        "follow": (["follow", str(place / "ref"), "-o", str(place / "cand"), "--force"], AtMost(1.7)),
    }  # fmt: skip
    bare: list[float] = []
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(bench.rounds):
        for name, (verb, _) in ways.items():
            subprocess.run(child, check=True, capture_output=True)
            bare += _times(place)
            events = (
                [] if verb[0] == "follow" else ["--events", str(place / "events.jsonl"), "--force"]
            )
            _run([*verb, *events, "--", *child])
            took[name] += _times(place)
    yield Row("bare step", "s", statistics.median(bare), min(bare))
    for name, (_, bar) in ways.items():
        yield ratio_row(name, took[name], bare, bar=bar)
    shutil.rmtree(place)


def _size(bench: Bench) -> str:
    return json.dumps(dataclasses.asdict(bench.size))


def _run(words: Sequence[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "lockstep", *words], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise RuntimeError(f"{words[0]}: {found.stderr or found.stdout}")


def _times(place: Path) -> list[float]:
    path = place / "times.json"
    took: list[float] = json.loads(path.read_text())
    path.unlink()
    return took[_WARM:]
