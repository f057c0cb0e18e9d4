"""Recording on an emulated device: the recorder sees what the device computes, and changes nothing of it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import Training, check, trace_of
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import lockstep
from lockstep.comparison import Comparison
from lockstep.core.errors import UsageError
from lockstep.core.manifest import Options
from lockstep.core.site import Phase
from lockstep.devices.emulation.mode import emulate, emulated_device

DEVICE = "npu-fp16+reorder+random-rounding"


class Net(nn.Module):
    """One of each: convolution, norm, recurrence, attention, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.act = nn.GELU()
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(8, 3)

    def forward(self, image: Tensor) -> Tensor:
        rows = self.norm(self.conv(image)).transpose(1, 2).flatten(2)
        states = self.lstm(rows)[0]
        heads = states.unflatten(2, (2, 4)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return self.head(self.drop(self.act(mixed)).mean(1))


def training() -> Training:
    """A network with AdamW and clipped gradients."""
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(_: int) -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.randn(3, 2, 6, 4)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return loss.detach()

    return Training(model, step, optimizers=[optimizer])


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_recording_changes_nothing_on_a_device(tmp_path: Path, level: str) -> None:
    # given a training on an emulated device
    # when it runs bare and recorded, then every bit is the same (see `check`)
    with emulate("npu-fp16+reorder"):
        recording = check(training, tmp_path / "recording", level=level)
    # and the recording says what it ran on
    manifest = recording.ranks["rank0"].manifest
    assert manifest.numerics["emulated_device"] == "npu-fp16+reorder"
    assert manifest.stopped_because == ""


@pytest.mark.parametrize("level", ["module", "api", "aten"])
def test_a_recording_may_bring_its_own_device(tmp_path: Path, level: str) -> None:
    # given a training that runs on an emulated device, and one on the CPU
    torch.manual_seed(3)
    plain = trace_of(training(), 2)
    torch.manual_seed(3)
    made = training()
    with emulate(DEVICE, training_only=True):
        expected = trace_of(made, 2)
    # when it is recorded with that device
    torch.manual_seed(3)
    made = training()
    with lockstep.record(
        tmp_path / "ref", model=made.model, level=level, emulate="npu-fp16+reorder", calibrate=True
    ):
        assert emulated_device() == DEVICE
        recorded = trace_of(made, 2)
    # then it computes the same, draws the same random numbers as the CPU, and ends with the block
    assert recorded == expected
    assert recorded[".rng"] == plain[".rng"]
    assert recorded[".result.1"] != plain[".result.1"]
    assert emulated_device() == ""
    options = lockstep.open(tmp_path / "ref").manifest.options
    assert (options.emulate, options.calibrate) == ("npu-fp16+reorder", True)


def compared(tmp_path: Path, device: str, **options: Any) -> Comparison:
    """A training on the CPU, compared with the same one on a device."""
    for name, emulated in (("ref", ""), ("cand", device)):
        torch.manual_seed(3)
        made = training()
        with lockstep.record(tmp_path / name, model=made.model, emulate=emulated, **options):
            trace_of(made, 2)
    return lockstep.compare_recordings(tmp_path / "ref", tmp_path / "cand")


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    ("device", "level"),
    [
        ("reorder", "api"),
        ("reorder", "aten"),
        ("random-rounding", "api"),
        ("random-rounding", "aten"),
        ("ftz", "api"),
        ("saturate", "module"),
    ],
)
def test_a_sound_device_agrees(tmp_path: Path, device: str, level: str) -> None:
    comparison = compared(tmp_path, device, level=level)
    assert comparison.verdict == "agree", (comparison.not_compared, comparison.origins)


@pytest.mark.parametrize("device", ["npu-fp16", "npu-bf16", "fp16-accumulate"])
def test_a_coarse_device_does_not_agree(tmp_path: Path, device: str) -> None:
    assert compared(tmp_path, device).verdict == "diverged"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "module", "phase"),
    [
        ("gelu:scale:1.001", "act", Phase.FORWARD),
        ("gelu_backward:scale:1.01", "act", Phase.BACKWARD),
        ("mkldnn_rnn_layer_backward:noise", "lstm", Phase.BACKWARD),
        ("head/addmm:offset", "head", Phase.FORWARD),
        ("torch.nn.functional.conv2d:scale:1.001", "conv", Phase.FORWARD),
    ],
)
def test_a_wrong_operator_is_named(tmp_path: Path, fault: str, module: str, phase: Phase) -> None:
    comparison = compared(tmp_path, f"wrong:{fault}")
    origin = comparison.origins[0]
    assert (origin.module, origin.phase) == (module, phase)


def test_calibration_starts_from_the_same_parameters_and_data(tmp_path: Path) -> None:
    # given a plain recording and a calibration
    for name, calibrate in (("ref", False), ("ref.cal", True)):
        torch.manual_seed(3)
        with lockstep.record(tmp_path / name, calibrate=calibrate):
            trace_of(training(), 2)
    plain, calibration = (
        [
            (record.site, record.role, record.index, record.digest)
            for call in lockstep.open(tmp_path / name).ranks["rank0"].calls(0)
            if call.site.phase in (Phase.INIT, Phase.DATA)
            for record in call.records
        ]
        for name in ("ref", "ref.cal")
    )
    # then both start from the same parameters and the same batch, bit for bit
    assert len(plain) > 10
    assert plain == calibration
    # and the calibration reached every module after that
    outputs = [
        {
            call.site.module: call.records[-1].digest
            for call in lockstep.open(tmp_path / name).ranks["rank0"].calls(0)
            if call.kind == "module" and call.site.phase is Phase.FORWARD
        }
        for name in ("ref", "ref.cal")
    ]
    assert outputs[0].keys() == outputs[1].keys()
    assert all(outputs[0][module] != outputs[1][module] for module in outputs[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own import
def test_checkpointed_and_compiled_code_runs_on_the_device(tmp_path: Path) -> None:
    # given layers that are checkpointed, or compiled, or neither
    torch.manual_seed(3)
    layer, value = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    compiled = torch.compile(layer)
    ways = {
        "plain": lambda: layer(value),
        "checkpointed": lambda: checkpoint(layer, value, use_reentrant=False),
        "compiled": lambda: compiled(value),
    }
    gradients = {}
    for name, way in ways.items():
        # when they are recorded on a device
        layer.zero_grad()
        with lockstep.record(tmp_path / name, model=layer, steps="0:1", emulate="npu-bf16"):
            way().sum().backward()
        gradients[name] = layer[0].weight.grad
        assert lockstep.open(tmp_path / name).ranks["rank0"].manifest.stopped_because == ""
    # then all compute the same
    assert torch.equal(gradients["plain"], gradients["checkpointed"])
    assert torch.equal(gradients["plain"], gradients["compiled"])


def test_threads_that_the_device_does_not_reach_are_named(tmp_path: Path) -> None:
    # given a model that runs in another thread
    model = nn.Linear(2, 2)

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()

    for name, device in (("ref", "ftz"), ("plain", "")):
        with lockstep.record(tmp_path / name, model=model, steps="0:1", emulate=device):
            thread = threading.Thread(target=step)
            thread.start()
            thread.join()
    # then the recording says so, where a device was asked for
    gaps = {
        name: [gap.what for gap in lockstep.open(tmp_path / name).ranks["rank0"].manifest.not_seen]
        for name in ("ref", "plain")
    }
    assert "the emulated device in other threads" in gaps["ref"]
    assert "the emulated device in other threads" not in gaps["plain"]


def test_a_fault_that_never_came_to_pass_is_told(tmp_path: Path) -> None:
    with lockstep.record(tmp_path / "ref", emulate="wrong:gelo+wrong:gelu#9"):
        trace_of(training(), 2)
    unmatched = lockstep.open(tmp_path / "ref").ranks["rank0"].manifest.unmatched
    assert unmatched.keys() == {"gelo", "gelu#9"}
    assert unmatched["gelo"][0] == "gelu"


def test_no_device_is_none(tmp_path: Path) -> None:
    with lockstep.record(tmp_path / "out", model=nn.Linear(2, 2), emulate=None) as recording:
        recording.step()
    assert not lockstep.open(tmp_path / "out").manifest.options.emulate


def test_an_unknown_device_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean npu-fp16"):
        lockstep.record(tmp_path / "ref", emulate="npu-pf16")
    with pytest.raises(UsageError, match="given twice"):
        lockstep.record(tmp_path / "ref", emulate="random-rounding", calibrate=True)
    assert list(tmp_path.iterdir()) == []
    assert Options().emulate == ""
