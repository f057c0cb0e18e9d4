"""Whether the stand-alone test that `lockstep replay --write-test` writes fails under the fault and passes without.

python benchmarks/faults --proofs                        every forward and backward fault of the table
python benchmarks/faults --proofs --split development
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import workers
from architectures import ARCHITECTURES
from cases import Case
from sites import Place
from torch import nn
from training import Training

from lockstep.cli.main import main as lockstep

GROUPS = ("forward", "backward", "overflow")
"""Groups of faults that are an operator's own."""


def run_proof(case: Case, directory: Path, keep: Path | None) -> list[dict[str, Any]]:
    """Record a faulty training, write the test of its origin, run it with the fault and without."""
    torch.set_num_threads(1)
    reference, candidate = directory / "reference", directory / f"{case.kind}-proof"
    folder = directory / f"{case.kind}-test"
    try:
        if case.fault.plant_reference is not None:
            reference = directory / f"{case.kind}-proof-reference"
            workers.record_planted(case, reference, case.fault.plant_reference)
        workers.record_planted(case, candidate, case.fault.plant)
        said = _written(reference, candidate, folder)
        row = {"case": case.name, "group": case.fault.group, "said": said}
        if not folder.exists():
            return [{**row, "answer": "no test was written"}]
        (test,) = folder.glob("test_*.py")
        sound, faulty = _fails(test), _fails_under(case, test)
        answer = {
            (False, True): "fails under the fault alone",
            (False, False): "passes under the fault",
            (True, True): "fails without the fault too",
            (True, False): "fails without the fault only",
        }[bool(sound), bool(faulty)]
        return [{**row, "answer": answer, "sound": sound, "faulty": faulty, "test": test.name}]
    finally:
        for path in (candidate, folder, *([reference] if reference.name != "reference" else [])):
            if keep is not None and path.exists():
                target = keep / directory.name / path.name
                shutil.rmtree(target, ignore_errors=True)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(path, target)
            shutil.rmtree(path, ignore_errors=True)


def failed(case: Case, text: str) -> list[dict[str, Any]]:
    """A row for what could not be run."""
    return [{"case": case.name, "group": case.fault.group, "answer": "crashed", "said": text}]


def _written(reference: Path, candidate: Path, folder: Path) -> str:
    """What the command says."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        lockstep(["replay", str(reference), str(candidate), "--write-test", str(folder)])
    return out.getvalue()


def _fails(test: Path) -> str:
    """What a written test says where it fails, "" where it passes."""
    name = test.stem
    spec = importlib.util.spec_from_file_location(name, test)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    try:
        getattr(module, name)()
    except AssertionError as error:
        return str(error).partition("\n")[0] or "fails"
    return ""


def _fails_under(case: Case, test: Path) -> str:
    """The same while the fault is planted in every call of its operator."""
    planted = case.planted
    place = planted.target.place
    stub = Training.of(ARCHITECTURES[case.architecture])
    stub.model = nn.Module()
    stub.around_run, stub.around_backward, stub.before_step = [], [], []
    target = replace(planted.target, place=Place("", place.op, 0))
    case.fault.plant(stub, replace(planted, target=target, from_step=0))
    with contextlib.ExitStack() as stack:
        for context in stub.around_run:
            stack.enter_context(context())
        for call in stub.before_step:
            call(0)
        for context in (*stub.around_step, *stub.around_backward):
            stack.enter_context(context())
        return _fails(test)


def render(rows: Sequence[dict[str, Any]]) -> str:
    """Answers by kind of fault."""
    kinds = sorted({row["case"].partition("/")[2] for row in rows})
    lines = []
    for kind in kinds:
        answers = Counter(row["answer"] for row in rows if row["case"].endswith(f"/{kind}"))
        lines.append(f"{kind:28} " + ", ".join(f"{n} {what}" for what, n in answers.most_common()))
    total = Counter(row["answer"] for row in rows)
    lines.append("")
    lines += [f"{count:4} of {len(rows)} {what}" for what, count in total.most_common()]
    return "\n".join(lines)


def write(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Every answer as a line of JSON."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
