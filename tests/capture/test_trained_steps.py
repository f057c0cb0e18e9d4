"""How long a training was, beyond the steps that were recorded of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import lockstep
from lockstep.report.comparison.screen import headline


def train(steps: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 4)).square().mean().backward()
        optimizer.step()


def recorded(path: Path, steps: int) -> Path:
    with lockstep.record(path, steps="0:2"):
        train(steps)
    return path


def trained(path: Path) -> int | None:
    return lockstep.open(path).ranks["rank0"].manifest.trained


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_the_steps_of_the_whole_training_are_counted(tmp_path: Path, steps: int) -> None:
    assert trained(recorded(tmp_path / "run", steps)) == steps


def test_the_headline_says_how_much_was_not_compared(tmp_path: Path) -> None:
    reference, short = recorded(tmp_path / "a", 5), recorded(tmp_path / "b", 2)
    assert headline(lockstep.compare_recordings(reference, recorded(tmp_path / "c", 5))).startswith(
        "AGREE: steps 0-1 of 5 trained, "
    )
    found = lockstep.compare_recordings(short, recorded(tmp_path / "d", 2))
    assert headline(found).startswith("AGREE: steps 0-1, ")


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")
def test_a_compiled_optimizer_is_not_compiled_anew_for_being_counted(tmp_path: Path) -> None:
    torch._dynamo.reset()
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step, graphs = torch.compile(optimizer.step, backend="eager"), []
    with lockstep.record(tmp_path / "run", steps="0:2"):
        for _ in range(9):
            model(torch.randn(3, 4)).sum().backward()
            step()
            graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs[4] == graphs[-1]
    assert lockstep.open(tmp_path / "run").ranks["rank0"].complete_steps == (0, 1)


def test_a_manifest_that_was_replaced_meanwhile_is_left_alone(tmp_path: Path) -> None:
    # Given a recording that someone moves, and puts another one in its place, while the training goes on
    path, manifest = tmp_path / "run", tmp_path / "run" / "rank0" / "manifest.json"
    with lockstep.record(path, steps="0:2") as recording:
        train(2)
        recording._recorder.recording.closing.wait()
        manifest.write_text("{}")
        train(1)
    assert manifest.read_text() == "{}"
