"""Running the yardstick: record what is needed once, compare, gather the answers."""

from __future__ import annotations

import argparse
import fnmatch
import importlib
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

import torch
from pool import Task, pooled
from score import said_of
from workers import compare

from frameworks import table
from frameworks.answers import Score, score_case, score_pair
from frameworks.cases import Case, Half, Pair, Recipe, all_cases, all_pairs, half_of
from frameworks.recording import (
    TIMEOUT_S,
    BrokenBenchmarkError,
    BrokenTrainingError,
    record,
    same,
    trained,
)
from frameworks.subjects import SUBJECTS
from lockstep.core.errors import LockstepError
from lockstep.core.finding import Comparison
from lockstep.devices.tensor_numbers import prepare_kernels

Row = dict[str, Any]
WEIGHTS = ("sketch", "tensors")
_LIBRARIES = {
    "accelerate": "accelerate", "compile": "torch._inductor.compile_fx", "fsdp": "torch.distributed.fsdp",
    "lightning": "lightning", "peft": "peft", "trainer": "transformers.trainer",
}  # fmt: skip
"""What a way of training imports, by a part of its name."""


def run(options: argparse.Namespace) -> int:
    """Run the chosen cases and pairs and print or keep the table."""
    cases, pairs = _chosen(options)
    if options.list:
        for one in (*cases, *pairs):
            place = one.candidate.place if isinstance(one, Case) else ""
            print(f"{one.name:60}  {half_of(one.name).value:24}  {place}".rstrip())
        return 0
    every = [one.candidate for one in (*cases, *pairs)]
    load({one.way for one in every}, {one.subject for one in every})
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lockstep-frameworks-") as name:
        directory = options.keep or Path(name)
        directory.mkdir(parents=True, exist_ok=True)
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(Path(name) / "compiled"))
        weights = tuple(options.weight or WEIGHTS)
        rows = _rows(cases, pairs, weights, options, directory)
    text = table.render(rows, seconds=time.monotonic() - start)
    if options.docs:
        table.put_into(options.docs, text)
    else:
        print(text)
    return 0


def load(ways: Iterable[str], subjects: Iterable[str]) -> None:
    """Import what takes seconds, once, before processes are forked."""
    import torch._dynamo
    import torch._inductor.config
    from transformers import utils

    for part, module in _LIBRARIES.items():
        if any(part in way for way in ways):
            importlib.import_module(module)
    for name in subjects:
        SUBJECTS[name].load()
    torch.set_num_threads(1)
    prepare_kernels()
    utils.logging.set_verbosity_error()
    torch._inductor.config.compile_threads = 1
    torch._inductor.config.fallback_random = True  # dropout draws as it does in eager mode


def _chosen(options: argparse.Namespace) -> tuple[list[Case], list[Pair]]:
    half = Half(options.split)
    patterns = options.case

    def wanted(one: Case | Pair) -> bool:
        if patterns:
            return any(fnmatch.fnmatch(one.name, pattern) for pattern in patterns)
        return half_of(one.name) is half

    cases, pairs = list(filter(wanted, all_cases())), list(filter(wanted, all_pairs()))
    if options.fault:
        cases = [one for one in cases if _matches(one.kind.name, options.fault)]
    if options.way:
        cases = [one for one in cases if _matches(one.candidate.way, options.way)]
        pairs = [one for one in pairs if _matches(one.candidate.way, options.way)]
    if options.only == "faults" or (options.fault and not options.only):
        pairs = []
    if options.only == "twins":
        cases = []
    return cases, pairs


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


# ---------------------------------------------------------------------------------------- running


def _rows(
    cases: Sequence[Case],
    pairs: Sequence[Pair],
    weights: tuple[str, ...],
    options: argparse.Namespace,
    directory: Path,
) -> list[Row]:
    needed = {recipe: None for pair in pairs for recipe in (pair.reference, pair.candidate)}
    needed.update({case.reference: None for case in cases})
    problems = {
        name: text
        for name, text in _told(
            [_recording(recipe, directory) for recipe in needed], options, directory
        )
        if text
    }
    tasks = [_judging_pair(pair, weights, problems, directory) for pair in pairs]
    tasks += [_judging_case(case, weights, problems, directory, options) for case in cases]
    rows: list[Row] = [
        {"group": "recording", "case": recipe.name, "problem": problems.get(recipe.name, "")}
        for recipe in needed
    ]
    _keep(rows, options.results, "w")
    for _, found in _told(tasks, options, directory):
        rows.extend(found)
        _keep(found, options.results, "a")
    return rows


def _keep(rows: Iterable[Row], results: Path | None, mode: str) -> None:
    if results:
        with results.open(mode) as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def _told(
    tasks: Sequence[Task], options: argparse.Namespace, directory: Path
) -> Iterable[tuple[str, Any]]:
    """Run tasks, and tell how far they are."""
    answers = pooled(tasks, options.jobs, directory, timeout_s=4 * TIMEOUT_S)
    for number, (name, found) in enumerate(answers, 1):
        told = found if isinstance(found, str) else {row["weight"]: row["score"] for row in found}
        last = told.strip().splitlines()[-1:] if isinstance(told, str) else told
        print(f"[{number}/{len(tasks)}] {name}: {last or 'recorded'}", file=sys.stderr, flush=True)
        yield name, found


def _place(recipe: Recipe, directory: Path) -> Path:
    return directory / recipe.name.replace("/", "~")


def _recording(recipe: Recipe, directory: Path) -> Task:
    """Record a training that several comparisons use; gives what went wrong, or nothing."""

    def work() -> str:
        try:
            record(recipe, _place(recipe, directory))
        except BrokenTrainingError as error:
            return str(error)
        return ""

    return Task(recipe.name, work, lambda text: text)


def _judging_pair(
    pair: Pair, weights: tuple[str, ...], problems: dict[str, str], directory: Path
) -> Task:
    common: Row = {"group": "twin", "case": pair.name, "way": pair.candidate.way, "changed": True}
    sides = [_place(one, directory) for one in (pair.reference, pair.candidate)]
    broken = problems.get(pair.reference.name) or problems.get(pair.candidate.name) or ""

    def work() -> list[Row]:
        return _judged(common, sides, weights, broken, partial(score_pair, pair))

    return Task(pair.name, work, partial(_crashed, common, weights))


def _judging_case(
    case: Case,
    weights: tuple[str, ...],
    problems: dict[str, str],
    directory: Path,
    options: argparse.Namespace,
) -> Task:
    candidate = _place(case.candidate, directory)
    common: Row = {
        "group": case.kind.name, "case": case.name, "way": case.candidate.way,
        "place": case.candidate.place, "changed": True,
    }  # fmt: skip

    def work() -> list[Row]:
        broken = problems.get(case.reference.name, "")
        try:
            record(case.candidate, candidate)
        except BrokenTrainingError as error:
            broken = broken or str(error)
        sound = trained(case.sound, _place(case.sound, directory))
        common["changed"] = not all(map(same, sound, trained(case.candidate, candidate)))
        sides = [_place(case.reference, directory), candidate]
        try:
            return _judged(common, sides, weights, broken, partial(score_case, case))
        finally:
            if options.keep is None:
                shutil.rmtree(candidate, ignore_errors=True)

    return Task(case.name, work, partial(_crashed, common, weights))


def _judged(
    common: Row,
    sides: Sequence[Path],
    weights: tuple[str, ...],
    broken: str,
    score: Callable[[Comparison], Score],
) -> list[Row]:
    """A row for each weight; `broken` tells of a training that recording broke or changed."""
    torch.set_num_threads(1)
    rows = []
    for weight in weights:
        start = time.perf_counter()
        row = {**common, "weight": weight, "broken": broken}
        try:
            found = compare(*sides, weight, "best")
            answer = Score.BROKEN if broken else score(found)
            row.update(score=answer.value, **said_of(found))
        except LockstepError as error:
            answer = Score.BROKEN if broken else Score.CRASHED
            row.update(score=answer.value, error=f"{type(error).__name__}: {error}")
        rows.append({**row, "seconds": round(time.perf_counter() - start, 2)})
    return rows


def _crashed(common: Row, weights: tuple[str, ...], text: str) -> list[Row]:
    score = "no training" if BrokenBenchmarkError.__name__ in text else Score.CRASHED.value
    return [{**common, "weight": weight, "score": score, "error": text} for weight in weights]
