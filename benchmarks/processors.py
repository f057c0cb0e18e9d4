"""One training on many kinds of processor: sound recordings, each compared with each, must never be called a fault.

    python benchmarks/processors.py [--arch gpt2 ...] [--settings native,1 SSE41,4 ...] [--docs docs/rooms/judge.md]

A setting is the newest instruction set that oneDNN and PyTorch's own kernels may use, and a number of threads. Each
setting trains in a process of its own, since both libraries read theirs once. Every recording is compared with every
other one, from whole tensors and from sketches. The control: the same training with one result off by a planted amount
must be named, from each setting beside the sound training of the first.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parent / "faults"))

from architectures import ARCHITECTURES
from cases import Case
from report import put_into
from score import Score, said_of, score_fault, score_twin
from training import Training
from twins import Twin
from workers import compare, draw

SOUND = Twin("processor", lambda training: None)
PLANTED = "output-scaled-kernel"
WEIGHTS = ("tensors", "sketch")
PRECISIONS: dict[str, Callable[[], AbstractContextManager[Any]] | None] = {
    "float32": None,
    "bfloat16 autocast": lambda: torch.autocast("cpu", torch.bfloat16),
}
INSTRUCTION_SETS = {
    "native": {},
    "AVX512": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"},
    "AVX2": {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2"},
    "SSE41": {"ONEDNN_MAX_CPU_ISA": "SSE41", "ATEN_CPU_CAPABILITY": "default"},
    "SSE41 oneDNN": {"ONEDNN_MAX_CPU_ISA": "SSE41"},
    "scalar PyTorch": {"ATEN_CPU_CAPABILITY": "default"},
}
"""What oneDNN and PyTorch's own kernels are told by the environment."""

SETTINGS = (
    "native,1", "native,2", "native,4", "AVX512,2", "AVX2,1", "AVX2,4", "SSE41 oneDNN,2", "scalar PyTorch,2",
    "SSE41,1", "SSE41,4",
)  # fmt: skip
ARCHITECTURES_TRIED = ("gpt2", "bert", "vit", "resnet", "unet", "lstm", "mixtral", "detector")


@dataclass(frozen=True)
class Setting:
    """An instruction set of `INSTRUCTION_SETS` and a number of threads."""

    name: str

    @property
    def threads(self) -> int:
        """Threads of the training."""
        return int(self.name.rpartition(",")[2])

    @property
    def environment(self) -> dict[str, str]:
        """The process environment that stands for it."""
        limits = INSTRUCTION_SETS[self.name.rpartition(",")[0]]
        kept = {name: value for name, value in os.environ.items() if name not in _READ}
        return {**kept, **limits, "OMP_NUM_THREADS": str(self.threads)}


_READ = {name for limits in INSTRUCTION_SETS.values() for name in limits}


@dataclass(frozen=True)
class Row:
    """One comparison: which training, which two settings, from what, and how it was scored."""

    training: str
    pair: tuple[str, str]
    weight: str
    score: str
    said: dict[str, Any]


def train(names: list[str], directory: Path) -> None:
    """Record every training of `names` in both precisions, and the faulty ones.

    A training that PyTorch cannot run on this kind of processor leaves no recording.
    """
    for name in names:
        case = _case(name)
        for precision, context in PRECISIONS.items():
            _record(name, context, directory / f"{name} {precision}", None)
            _record(name, context, directory / f"{name} {precision} planted", case)


def _record(
    name: str,
    context: Callable[[], AbstractContextManager[Any]] | None,
    to: Path,
    case: Case | None,
) -> None:
    training = Training.of(ARCHITECTURES[name])
    if context is not None:
        training.around_step.append(context)
    if case is not None:
        case.fault.plant(training, case.planted)
    try:
        training.run(to)
    except RuntimeError as problem:  # oneDNN has no kernel of this kind for an older processor
        print(f"not run: {to.name} on {to.parent.name}: {problem}", file=sys.stderr)
        shutil.rmtree(to)


def _case(name: str) -> Case:
    threads = torch.get_num_threads()
    drawn = next(case for case in draw(name, None) if case.kind == PLANTED)
    torch.set_num_threads(threads)
    return drawn


def compared(names: list[str], settings: list[Setting], directory: Path) -> Iterator[Row]:
    """Compare every recording with every other one, and every planted one with the first sound one."""
    for name in names:
        case = _case(name)
        for precision in PRECISIONS:
            training = f"{name} {precision}"
            ran = [one for one in settings if (directory / one.name / training).exists()]
            for first, second in combinations(ran, 2):
                for weight in WEIGHTS:
                    found = compare(
                        directory / first.name / training, directory / second.name / training,
                        weight, "best",
                    )  # fmt: skip
                    answer = score_twin(SOUND, found)
                    yield Row(
                        training,
                        (first.name, second.name),
                        weight,
                        answer.score.value,
                        said_of(found),
                    )
            for other in ran[1:]:
                sides = (
                    directory / ran[0].name / training,
                    directory / other.name / f"{training} planted",
                )
                for weight in WEIGHTS:
                    answer = score_fault(case, compare(*sides, weight, "best"))
                    yield Row(
                        f"{training} planted",
                        (ran[0].name, other.name),
                        weight,
                        answer.score.value,
                        answer.said,
                    )


def table(rows: list[Row]) -> str:
    """The rows as Markdown: one line for each architecture and precision."""
    scores: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        scores[row.training][row.score] += 1
    lines = [
        "| training | sound pairs compared | called a fault | planted fault named |",
        "|---|---|---|---|",
    ]
    for training in [name for name in scores if not name.endswith(" planted")]:
        sound, planted = scores[training], scores[f"{training} planted"]
        named = planted[Score.EXACT.value] + planted[Score.MODULE.value]
        lines.append(
            f"| {training} | {sound.total()} | {sound[Score.FALSE_ALARM.value]} "
            f"| {named} of {planted.total()} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--arch", nargs="+", default=list(ARCHITECTURES_TRIED))
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--results", type=Path, help="write every answer to this file (JSON lines)")
    parser.add_argument("--docs", type=Path, help="put the table into this Markdown file")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train is not None:
        train(options.arch, options.train)
        return
    settings = [Setting(name) for name in options.settings]
    with tempfile.TemporaryDirectory(prefix="lockstep-processors-") as name:
        directory = Path(name)
        for setting in settings:
            print(f"training: {setting.name}", file=sys.stderr)
            subprocess.run(
                [sys.executable, __file__, "--train", directory / setting.name, "--arch", *options.arch],
                env=setting.environment, check=True,
            )  # fmt: skip
        torch.set_num_threads(1)
        rows = []
        for row in compared(options.arch, settings, directory):
            rows.append(row)
            if options.results is not None:
                with options.results.open("a") as file:
                    file.write(json.dumps(vars(row)) + "\n")
            if row.score in (Score.FALSE_ALARM.value, Score.MISSED.value, Score.WRONG.value):
                print(row.training, *row.pair, row.weight, row.score, row.said["origins"][:1])
    print(table(rows))
    if options.docs is not None:
        put_into(options.docs, "bench-processors", table(rows) + "\n")


if __name__ == "__main__":
    main()
