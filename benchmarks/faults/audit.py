"""How many faults of kernels and updates an audit names without a reference, and how often it cries wolf.

python benchmarks/faults/audit.py                      the published figures
python benchmarks/faults/audit.py --split development  the cases that constants may be chosen on

Faults of code are no target: each operator that was called computes what it should. A fault is named where the recorded
result furthest beyond its floor is at the planted operator; a sound training must have none beyond.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

import torch
import torch._dynamo  # the first step of an optimizer would load it, in every process anew
import workers
from architectures import ARCHITECTURES, Split
from cases import Case
from pool import Task, pooled
from training import Training
from twins import TWINS

from lockstep.core.selection import StepSelection
from lockstep.replay.process.answered_here import Verdicts
from lockstep_audit.auditor import Auditor, SiteChoice
from lockstep_audit.recorded import audit_recording
from lockstep_audit.tally import Beyond

_TIMEOUT_S = 240.0
_MEMORY_BYTES = 4 << 30
_UPDATES = ("one-parameter-step",)
_LOWER_PRECISION = "emulated-npu", "emulated-tf32"
"""Twins that are to be noticed: they compute in fewer bits than their dtype has."""


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(prog="benchmarks/faults/audit.py")
    parser.add_argument("--split", choices=[one.value for one in Split], default=Split.TABLE.value)
    parser.add_argument("--arch", action="append", help="these architectures only (patterns)")
    parser.add_argument("--fault", action="append", help="these kinds of fault only (patterns)")
    parser.add_argument("--jobs", type=int, default=2, help="cases at a time")
    parser.add_argument("--results", type=Path, help="write every answer here (JSON lines)")
    options = parser.parse_args()
    names = [
        name
        for name, item in ARCHITECTURES.items()
        if item.split.value == options.split and _chosen(name, options.arch)
    ]
    for name in names:
        ARCHITECTURES[name].load()
    with tempfile.TemporaryDirectory(prefix="lockstep-audit-faults-") as directory:
        rows = list(_answers(names, Path(directory), options))
    if options.results:
        options.results.write_text("".join(json.dumps(row) + "\n" for row in rows))
    print(_table(rows))
    return 0


def _chosen(name: str, patterns: list[str] | None) -> bool:
    return not patterns or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def _answers(
    names: list[str], directory: Path, options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    draws = [_task(name, "drawn", partial(workers.draw, name, None)) for name in names]
    drawn = dict(pooled(draws, options.jobs, directory, timeout_s=_TIMEOUT_S))
    tasks = [
        _task(f"{name}/{twin}", "twin", partial(_twin, name, twin, directory))
        for name in names
        for twin in TWINS
        if not options.fault
    ]
    for name in names:
        for case in drawn[name]:
            if _is_target(case) and _chosen(case.kind, options.fault):
                tasks.append(_task(case.name, case.fault.group, partial(_fault, case, directory)))
    answers = pooled(tasks, options.jobs, directory, timeout_s=_TIMEOUT_S)
    for number, (name, row) in enumerate(answers, 1):
        print(f"[{number}/{len(tasks)}] {name}: {row['score']}", file=sys.stderr, flush=True)
        yield row


def _is_target(case: Case) -> bool:
    """Whether a kernel or an update computes what it should not."""
    return case.fault.plant.__module__ == "kinds_kernel" or case.kind in _UPDATES


def _task(name: str, group: str, work: Callable[[], Any]) -> Task:
    row = {"case": name, "group": group, "score": "crashed"}
    return Task(name, work, lambda text: {**row, "error": text})


def _twin(architecture: str, twin: str, directory: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    training = Training.of(ARCHITECTURES[architecture])
    TWINS[twin].alter(training)
    row = _audited(training, directory / f"{architecture}-{twin}")
    lower = twin.startswith(_LOWER_PRECISION)
    score = ("noticed" if row["beyond"] else "not noticed") if lower else "silent"
    if row["beyond"] and not lower:
        score = "false alarm"
    group = "lower precision" if lower else "sound"
    return {"case": f"{architecture}/{twin}", "group": group, "score": score, **row}


def _fault(case: Case, directory: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    training = Training.of(ARCHITECTURES[case.architecture])
    plant = case.fault.plant
    plant(training, case.planted)
    row = _audited(training, directory / case.name.replace("/", "-"))
    places = [_is_at(case, one) for one in row["beyond"]]
    score = "missed"
    if places:
        score = "named" if places[0] else "named, not first" if any(places) else "wrong place"
    return {"case": case.name, "group": case.fault.group, "score": score, **row}


def _is_at(case: Case, one: dict[str, Any]) -> bool:
    """Whether a result beyond its floor is at the planted operator, or of the planted parameter."""
    target = case.planted.target
    if target.parameter:
        return one["phase"] == "optimizer" and one["name"].startswith(target.parameter)
    return one["module"] == target.place.module and (
        not target.operators or one["op"] in target.operators
    )


def _audited(training: Training, recording: Path) -> dict[str, Any]:
    training.run(recording)
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = True  # type: ignore[assignment]
    auditor = Auditor(SiteChoice(), memory_bytes=_MEMORY_BYTES, answers=Verdicts)
    audit_recording(auditor, recording, StepSelection.parse("0:"), None, _silent)
    tally = auditor.tally
    return {
        "judged": tally.judged,
        "beyond": [_said(one) for one in tally.beyond],
        "not_judged": tally.not_judged.total(),
        "reasons": _by_reason(tally.not_judged),
    }


def _by_reason(not_judged: Counter[tuple[str, str]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, reason), count in not_judged.items():
        found[reason] += count
    return found


def _said(one: Beyond) -> dict[str, Any]:
    return {
        "module": one.site.module,
        "op": one.site.op,
        "phase": one.site.phase.value,
        "role": one.role,
        "name": one.name,
        "excess": one.worst.excess,
        "error": one.worst.error,
    }


def _silent(what: str, done: int, total: int) -> None:
    pass


def _table(rows: list[dict[str, Any]]) -> str:
    groups = list(dict.fromkeys(row["group"] for row in rows))
    lines = []
    for group in groups:
        scores = Counter(row["score"] for row in rows if row["group"] == group)
        said = ", ".join(f"{count} {score}" for score, count in scores.most_common())
        lines.append(f"{group:16} {scores.total():4}: {said}")
    judged = sum(row.get("judged", 0) for row in rows)
    left = sum(row.get("not_judged", 0) for row in rows)
    lines.append(f"{judged} results judged, {left} not")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
