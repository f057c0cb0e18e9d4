"""The step log of a training: a row for each step, recorded or not, that changes nothing."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep.capture.step_log.update_facts import (
    EACH_STEP,
    STRIDE,
    gradient_norms,
    takes_norms,
)
from lockstep.comparison import compare_recordings
from lockstep.core.finding import Verdict
from lockstep.core.step_rows import BY_LOSS, Fact, StepLog, StepRow
from lockstep.report.comparison.json import comparison_json
from lockstep.report.comparison.screen import headline, render_comparison
from lockstep.store.step_log import ROW_BYTES, STEP_LOG, StepLogWriter, read_step_log

STEPS = 40
LATE = 24
Change = Callable[[torch.optim.Optimizer, nn.Module], object]


@dataclass
class Loop:
    """A plain loop; `changes` is called before step `LATE`."""

    changes: Change = lambda optimizer, model: None
    accumulates: int = 1
    epochs: Callable[[int], int] = lambda epoch: epoch
    scaler: Any = None
    overflows_at: int | None = None
    state: dict[str, Tensor] = field(default_factory=dict)

    def train(self, steps: int = STEPS) -> dict[str, Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
        inputs = torch.randn(64, 8)
        data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
        batches = itertools.chain.from_iterable(self._epoch(data, epoch) for epoch in range(99))
        for step in range(steps):
            if step == LATE:
                self.changes(optimizer, model)
            optimizer.zero_grad()
            for _ in range(self.accumulates):
                inputs, targets = next(batches)
                loss = (model(inputs) - targets).square().mean() / self.accumulates
                if step == self.overflows_at:
                    loss = loss * float("inf")
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            if self.scaler is None:
                optimizer.step()
            else:
                self.scaler.step(optimizer)
                self.scaler.update()
            schedule.step()
        self.state = model.state_dict()
        return self.state

    def _epoch(self, data: TensorDataset, epoch: int) -> DataLoader[Any]:
        order = torch.Generator().manual_seed(self.epochs(epoch))
        return DataLoader(data, 8, shuffle=True, generator=order)


def recorded(directory: Path, loop: Loop | None = None, **options: Any) -> Path:
    with lockstep.record(directory, **options):
        (loop or Loop()).train()
    return directory


def log_of(directory: Path) -> StepLog:
    log = read_step_log(directory / "rank0")
    assert log is not None
    return log


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("logs") / "ref")


# --- rows -------------------------------------------------------------------------------------------------------------


def test_every_step_has_a_row_recorded_or_not(reference: Path) -> None:
    log = log_of(reference)

    assert [row.step for row in log.rows] == list(range(STEPS))
    assert log.devices == ("cpu",)
    assert all(row.loss is not None and row.passes == 1 for row in log.rows)
    assert [row.settings["0.lr"] for row in log.rows[:2]] == [1e-2, 1e-2 * 0.95]
    assert all(row.batches["0"].startswith("1:") for row in log.rows)
    assert len({row.batches["0"] for row in log.rows}) == STEPS
    assert len({row.generators["torch"] for row in log.rows}) == STEPS
    assert [bool(row.gradient_norms) for row in log.rows] == [takes_norms(n) for n in range(STEPS)]
    assert sum(map(takes_norms, range(STEPS))) == EACH_STEP + (STEPS - EACH_STEP) // STRIDE


def test_a_row_takes_at_most_300_bytes(reference: Path) -> None:
    lines = (reference / "rank0" / STEP_LOG).read_bytes().split(b"\n")

    assert max(len(line) + 1 for line in lines[2:]) <= ROW_BYTES


def test_a_step_log_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    bare, logged = Loop(), Loop()
    bare.train()
    recorded(tmp_path / "ref", logged)

    assert all(torch.equal(bare.state[name], logged.state[name]) for name in bare.state)


def test_recorded_steps_change_no_row(reference: Path, tmp_path: Path) -> None:
    # given a recording of other steps of the same training
    recorded(tmp_path / "other", steps="10:12,39")

    pairs = zip(log_of(reference).rows, log_of(tmp_path / "other").rows, strict=True)
    # then its rows are the same, but for the time
    assert all(_without_time(one) == _without_time(two) for one, two in pairs)


def _without_time(row: StepRow) -> tuple[Any, ...]:
    return (
        row.step, row.loss, row.passes, dict(row.settings), row.skipped, row.gradient_norms,
        dict(row.batches), dict(row.generators),
    )  # fmt: skip


def test_losses_of_accumulated_passes_are_one_mean(tmp_path: Path) -> None:
    log = log_of(recorded(tmp_path / "ref", Loop(accumulates=3)))

    assert [row.step for row in log.rows] == list(range(STEPS))
    assert {row.passes for row in log.rows} == {3}
    assert all(row.batches["0"].startswith("3:") for row in log.rows[:2])


def test_a_skipped_update_has_its_row_during_and_after_the_recorded_steps(tmp_path: Path) -> None:
    # given a scaler that finds an overflow in a step after the recorded ones
    loop = Loop(scaler=torch.amp.GradScaler("cpu", init_scale=256.0), overflows_at=10)
    directory = recorded(tmp_path / "ref", loop)

    # then that step counts as one, and the scale is halved after it
    log = log_of(directory)
    assert [row.step for row in log.rows] == list(range(STEPS))
    assert [row.step for row in log.rows if row.skipped] == [10]
    assert [log.rows[step].settings["scale"] for step in (9, 10, 11)] == [256.0, 256.0, 128.0]
    assert lockstep.open(directory).ranks["rank0"].manifest.trained == STEPS


def test_a_scaler_that_is_set_otherwise_is_named_before_its_factor_shows_it(tmp_path: Path) -> None:
    # given two scalers that grow at other times, none of which has come yet
    scalers = [torch.amp.GradScaler("cpu", init_scale=256.0) for _ in range(2)]
    recorded(tmp_path / "ref", Loop(scaler=scalers[0]))

    def grows_sooner(*_: Any) -> None:
        scalers[1].set_growth_interval(500)

    recorded(tmp_path / "cand", Loop(grows_sooner, scaler=scalers[1]))
    found = compare_recordings(tmp_path / "ref", tmp_path / "cand").step_logs

    assert found is not None
    assert found.first is not None
    assert found.first.step == LATE
    words = "growth_interval of the gradient scaler is 500, and 2000 in the reference"
    assert str(found.first).endswith(words)


def test_two_optimizers_have_settings_of_their_own(tmp_path: Path) -> None:
    with lockstep.record(tmp_path / "ref"):
        nets = [nn.Linear(4, 1), nn.Linear(4, 1)]
        optimizers = [
            torch.optim.SGD(nets[0].parameters(), lr=0.1),
            torch.optim.Adam(nets[1].parameters(), lr=0.01),
        ]
        for _ in range(6):
            for net, optimizer in zip(nets, optimizers, strict=True):
                optimizer.zero_grad()
                net(torch.ones(2, 4)).sum().backward()
                optimizer.step()

    rows = log_of(tmp_path / "ref").rows
    assert [row.step for row in rows] == list(range(6))
    assert (rows[5].settings["0.lr"], rows[5].settings["1.0.lr"]) == (0.1, 0.01)
    assert {row.passes for row in rows} == {2}


def test_a_schedule_that_asks_for_losses_is_noted(tmp_path: Path) -> None:
    # given a rate that waits for the loss to fall
    with lockstep.record(tmp_path / "run", steps="0:1"):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        for _ in range(3):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            schedule.step(loss.item())
    # then its rows say so from the first time it asked on
    rows = log_of(tmp_path / "run").rows
    assert [BY_LOSS in row.settings for row in rows] == [False, True, True]


def test_redacted_recordings_hold_no_digest_of_a_batch(tmp_path: Path) -> None:
    log = log_of(recorded(tmp_path / "ref", redact=True))

    assert len(log.rows) == STEPS
    assert not any(row.batches for row in log.rows)


def test_a_recording_may_leave_the_log_out(tmp_path: Path) -> None:
    directory = recorded(tmp_path / "ref", step_log=False)

    assert not (directory / "rank0" / STEP_LOG).exists()


def test_a_disk_that_refuses_ends_the_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a disk that is full after ten rows
    added = StepLogWriter.add

    def refuses(writer: StepLogWriter, row: StepRow) -> None:
        if row.step == 10:
            raise OSError(28, "No space left on device")
        added(writer, row)

    monkeypatch.setattr(StepLogWriter, "add", refuses)
    bare, loop = Loop(), Loop()
    bare.train()
    directory = recorded(tmp_path / "ref", loop)

    # then the training and its recording are whole, and the log says why it ends
    assert all(torch.equal(bare.state[name], loop.state[name]) for name in bare.state)
    log = log_of(directory)
    assert [row.step for row in log.rows] == list(range(10))
    assert "No space left" in log.stopped_because
    assert lockstep.open(directory).ranks["rank0"].complete_steps == (0, 1)


_KILLED = """
import os, signal, torch, lockstep
with lockstep.record({directory!r}):
    net = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step in range(30):
        if step == 20:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        net(torch.ones(2, 4)).sum().backward()
        optimizer.step()
"""


def test_a_killed_training_keeps_all_rows_but_the_last(tmp_path: Path) -> None:
    directory = tmp_path / "ref"

    ended = subprocess.run(
        [sys.executable, "-c", _KILLED.format(directory=str(directory))], env={**os.environ}
    )

    assert ended.returncode == -signal.SIGKILL
    assert [row.step for row in log_of(directory).rows][:19] == list(range(19))


# --- comparing --------------------------------------------------------------------------------------------------------


def test_sound_trainings_agree_on_another_device(reference: Path, tmp_path: Path) -> None:
    found = compare_recordings(reference, recorded(tmp_path / "cand", emulate="reorder"))

    assert found.verdict is Verdict.AGREE
    logs = found.step_logs
    assert logs is not None
    assert (logs.steps, logs.differences, logs.left) == (STEPS, (), None)
    assert {Fact.BATCH, Fact.SETTING, Fact.TRAINED, Fact.GENERATOR} <= set(logs.facts)
    assert f"equal in all {STEPS} steps: " in render_comparison(found).plain
    assert comparison_json(found)["step_logs"]["steps"] == STEPS


def _decays(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.5


def _freezes(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model.get_submodule("0").requires_grad_(False)


def _draws(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    torch.rand(1)


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (Loop(_decays), "at step 24, weight_decay of parameter group 0 is 0.5, and 0.01 in"),
        (Loop(_freezes), "at step 24, the number of trained parameters is 2 of 4, and 4 of 4"),
        (Loop(_draws), "at step 24, the state of the random generator of torch"),
        (
            Loop(epochs=lambda epoch: min(epoch, 2)),
            "at step 24, the batch is not that of the reference",
        ),
    ],
    ids=["weight decay", "frozen", "one draw more", "order of an epoch"],
)
def test_a_late_fact_is_named_with_its_step_among_noise(
    reference: Path, tmp_path: Path, loop: Loop, words: str
) -> None:
    found = compare_recordings(reference, recorded(tmp_path / "cand", loop, emulate="reorder"))

    assert found.verdict is Verdict.DIVERGED
    assert found.exit_code() == 1
    assert words in headline(found)
    assert found.what_next is not None
    assert "--windows 23:26" in found.what_next.words + found.what_next.command


def _scales(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    model.get_submodule("3").register_forward_hook(lambda module, args, out: out * 1.01)


def test_a_late_operator_leaves_the_growth_of_rounding(reference: Path, tmp_path: Path) -> None:
    found = compare_recordings(
        reference, recorded(tmp_path / "cand", Loop(_scales), emulate="reorder")
    )

    # then that is no verdict, but the headline says so, and the next command looks there
    assert found.verdict is Verdict.AGREE
    assert "the losses leave the growth of rounding at step 24 (step log)" in headline(found)
    assert found.what_next is not None
    assert "--windows 23:26" in found.what_next.words + found.what_next.command


def test_a_changed_log_is_refused(reference: Path, tmp_path: Path) -> None:
    candidate = recorded(tmp_path / "cand")
    path = candidate / "rank0" / STEP_LOG
    path.write_bytes(path.read_bytes().replace(b'"step":7', b'"step":8'))

    with pytest.raises(lockstep.LockstepError, match="line 9 was changed"):
        compare_recordings(reference, candidate)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_norms_of_gradients_are_taken_in_any_dtype(dtype: torch.dtype) -> None:
    parameter = nn.Parameter(torch.ones(3, dtype=dtype))
    parameter.grad = torch.full((3,), 2, dtype=dtype)
    [norm] = gradient_norms(torch.optim.SGD([parameter]))
    assert norm.item() == pytest.approx(12**0.5, rel=1e-2)
