"""What watching costs a step of a GPT-2 that runs as a command, in processor time of the training and its watcher."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench import AtMost, Bench, Row

_CHILD = Path(__file__).with_name("watched_child.py")
_WARM = 2
"""Steps at the start of a command that are not timed: loading and compiling are no part of a step."""


def rows(bench: Bench) -> Iterator[Row]:
    """Each watched command right behind a bare one; the ratio is that of the two, the row the median of all rounds."""
    place = bench.directory / "watch"
    place.mkdir()
    steps = bench.size.watched_steps
    child = [sys.executable, str(_CHILD), str(steps), str(place / "times.json"), _size(bench)]
    _run(["record", "-o", str(place / "ref"), "--steps", f"0:{steps}", "--", *child])
    ways = {
        "nan and inf only, level module": (["watch", "--level", "module", "--only-rule", "not-finite"], AtMost(1.1)),
        "default rules, level module": (["watch", "--level", "module"], AtMost(1.2)),
        "default rules, level api": (["watch"], AtMost(1.5)),
        "default rules, level api, each fifth step": (["watch", "--every", "5"], None),
        "follow": (["follow", str(place / "ref"), "-o", str(place / "cand"), "--force"], AtMost(1.5)),
    }  # fmt: skip
    ratios: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    bare: list[tuple[float, float]] = []
    for _ in range(bench.rounds):
        for name, (verb, _) in ways.items():
            subprocess.run(child, check=True, capture_output=True)
            bare.append(_step(place))
            events = (
                [] if verb[0] == "follow" else ["--events", str(place / "events.jsonl"), "--force"]
            )
            _run([*verb, *events, "--", *child])
            watched = _step(place)
            ratios[name].append((watched[0] / bare[-1][0], watched[1] / bare[-1][1]))
    for number, what in enumerate(("bare step", "bare step, processor time")):
        took = [one[number] for one in bare]
        yield Row(what, "s", statistics.median(took), min(took))
    for name, (_, bar) in ways.items():
        clock, used = zip(*ratios[name], strict=True)
        note = f"processor time; {statistics.median(clock):.3g} by the clock"
        yield Row(name, "x", statistics.median(used), min(used), bar, note)
    shutil.rmtree(place)


def _size(bench: Bench) -> str:
    return json.dumps(dataclasses.asdict(bench.size))


def _run(words: Sequence[str]) -> None:
    found = subprocess.run(
        [sys.executable, "-m", "lockstep", *words], capture_output=True, text=True, check=False
    )
    if found.returncode:
        raise RuntimeError(f"{words[0]}: {found.stderr or found.stdout}")


def _step(place: Path) -> tuple[float, float]:
    """What a step of the last command took: by the clock the median, of processor time the mean.

    What looks at the steps works on them in lumps, some time after they have ended.
    """
    path = place / "times.json"
    clock, used = zip(*json.loads(path.read_text())[_WARM:], strict=True)
    path.unlink()
    return statistics.median(clock), statistics.fmean(used)
