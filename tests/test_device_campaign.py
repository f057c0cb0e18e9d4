"""`make bench-device`: its plan, and a run that goes on where another one was killed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).parents[1]


def run(programs: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the campaign as a user does."""
    return subprocess.run(
        [str(programs / "python"), "benchmarks/devices", *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip


def test_the_plan_has_all_pairs_and_forty_faults(programs: Path) -> None:
    # when the plan is printed
    done = run(programs, "--plan")
    # then it counts what there is to do
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("615 rows (575 sound pairs, 40 planted faults) of 60 trainings")


def test_a_name_that_no_row_has_is_an_error(programs: Path) -> None:
    done = run(programs, "--plan", "--only", "gpt2/*")
    assert done.returncode == 1
    assert "no row has such a name" in done.stderr


def test_a_killed_run_goes_on_and_what_a_device_lacks_is_said(
    programs: Path, tmp_path: Path
) -> None:
    # given a journal whose last line a kill cut off
    known = {"row": "mlp/tf32/compiled", "answer": "as it should be", "word": "AGREE", "seconds": 1}
    journal = tmp_path / "journal.jsonl"
    journal.write_text(json.dumps(known) + '\n{"row": "mlp/tf32/twi')
    # when the same command is given again
    done = run(
        programs, "--device", "cpu", "--only", "mlp/tf32/[tc][wo][im]*", "--out", str(tmp_path)
    )
    # then the row that was done is not done again, and the other one is
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 rows are done; going on" in done.stdout
    assert "mlp/tf32/compiled: " not in done.stdout
    rows = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [row["row"] for row in rows] == ["mlp/tf32/compiled", "mlp/tf32/twice"]
    # and TF32, which a CPU lacks, is named as such: neither right nor wrong
    assert rows[1]["answer"] == "not on this device"
    assert rows[1]["why"] == "TF32 is a setting of CUDA, not of cpu"
    tables = (tmp_path / "tables.md").read_text()
    assert "| mlp/tf32 | - | ok |" in tables
    assert "2 sound pairs: 1 as it should be, 1 not on this device." in tables


@pytest.fixture
def cost(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """`benchmarks/devices/cost.py`."""
    path = ROOT / "benchmarks" / "devices" / "cost.py"
    spec = importlib.util.spec_from_file_location("cost_of_recording", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cost_of_recording", module)
    spec.loader.exec_module(module)
    return module


class Stream:
    """A device's stream that has done nothing until somebody waits for it; each mark comes 5 ms after the last."""

    def __init__(self) -> None:
        self.marks, self.done = 0, 0

    def event(self, device: torch.device) -> StreamEvent:
        """Return a new event on it."""
        return StreamEvent(self)


class StreamEvent:
    """An event as devices have it."""

    def __init__(self, stream: Stream) -> None:
        self.stream, self.place = stream, 0

    def record(self) -> None:
        self.stream.marks += 1
        self.place = self.stream.marks

    def synchronize(self) -> None:
        self.stream.done = max(self.stream.done, self.place)

    def elapsed_time(self, other: StreamEvent) -> float:
        if max(self.place, other.place) > self.stream.done:
            raise RuntimeError("not ready")
        return 5.0 * (other.place - self.place)


def test_steps_are_timed_by_events_of_the_device(
    cost: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a device whose events know their time once it has come past them
    stream = Stream()
    monkeypatch.setattr(cost, "event_of", stream.event)
    # when the cost of being armed is measured
    found = cost.measure(torch.device("cpu"), cost.TOY, rounds_of_each=1, weights=("armed",))
    # then a bare and a recorded step take what the events say, in seconds
    bare, recorded, _ = found["armed"]
    assert (bare, recorded) == (pytest.approx(0.005), pytest.approx(0.005))
    assert stream.done == stream.marks == 2 * (cost.STEPS + 1)


def test_a_cpu_is_timed_by_its_clock(cost: ModuleType) -> None:
    clock = cost.Clock(torch.device("cpu"))
    for _ in range(3):
        clock.mark()
    assert len(clock.seconds()) == 2
    assert min(clock.seconds()) >= 0
