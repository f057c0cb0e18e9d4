"""Recording trainings that are nothing but overhead, as a user runs them: whole commands against whole commands."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence

from bench import AtMost, Bench, Row, ratio_row
from children import LOCKSTEP, measured

_BAR = AtMost(4)

_LOOSE = """
import sys
import torch
count, steps, foreach = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "foreach"
parameters = [torch.nn.Parameter(torch.randn(4)) for _ in range(count)]
optimizer = torch.optim.Adam(parameters, foreach=foreach)
for _ in range(steps):
    optimizer.zero_grad()
    x = torch.randn(4)
    sum((parameter * x).sum() for parameter in parameters).backward()
    optimizer.step()
"""

_LAYERS = """
import sys
import torch
count, steps = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Sequential(*(torch.nn.Linear(2, 2) for _ in range(count // 2)))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(steps):
    optimizer.zero_grad()
    model(torch.randn(3, 2)).square().sum().backward()
    optimizer.step()
"""

_CHAIN = """
import sys
import torch
count, steps = int(sys.argv[1]), int(sys.argv[2])
parameter = torch.nn.Parameter(torch.randn(4))
optimizer = torch.optim.SGD([parameter], lr=1e-3)
for _ in range(steps):
    optimizer.zero_grad()
    x = parameter
    for _ in range(count // 2):
        x = x * 1.0001 + 0.0001
    x.sum().backward()
    optimizer.step()
"""

_STEPS = 20
"""Of a training whose first two steps are recorded."""


def rows(bench: Bench) -> Iterator[Row]:
    """Bare and recorded commands in turn."""
    many, chained = bench.size.tiny_parameters, bench.size.chained_operators
    loose = f"{many} parameters of 4 numbers in no module, Adam"
    yield _row(bench, f"{loose} with foreach", _LOOSE, (many, _STEPS, "foreach"))
    yield _row(bench, f"{loose} without", _LOOSE, (many, _STEPS, "loop"))
    yield _row(bench, f"{many} parameters in {many // 2} Linear(2, 2)", _LAYERS, (many, _STEPS))
    for steps in (2, _STEPS):
        what = f"a graph of {chained} operators, {steps} steps"
        yield _row(bench, what, _CHAIN, (chained, steps))


def _row(bench: Bench, what: str, script: str, arguments: Sequence[object]) -> Row:
    file, target = bench.directory / "tiny.py", bench.directory / "tiny"
    file.write_text(script)
    command = [sys.executable, str(file), *map(str, arguments)]
    bare: list[float] = []
    recorded: list[float] = []
    for _ in range(bench.rounds):
        bare.append(measured(command).cpu_s)
        recorded.append(measured([*LOCKSTEP, "record", "-o", str(target), "--", *command]).cpu_s)
        shutil.rmtree(target)
    return ratio_row(what, recorded, bare, bar=_BAR, note="time of the processor, whole commands")
