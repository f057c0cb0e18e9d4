"""Models of many small tensors: what is recorded is what was there at the time, however late it is measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from harness import Role, Training, calls, check, one_call, one_record, supervised
from torch import Tensor, nn
from torch.distributed._functional_collectives import all_reduce

import lockstep
from lockstep.capture.tensors import contents
from lockstep.core.records import TensorRecord

LEVELS = ("module", "api", "aten")


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(5, 4),)


def kept(record: TensorRecord) -> Any:
    """The values of a small tensor, which is its own sketch."""
    sketch = record.content.sketch
    assert sketch is not None
    return sketch[: record.content.numel]


class Behind(nn.Module):
    """Changes the output of its layer behind autograd's back, and returns it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Identity()
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        self.seen.append(y.detach().clone())
        y.data.mul_(3.0)
        return self.second(y)


def test_a_tensor_is_recorded_as_it_was_when_its_call_ended(tmp_path: Path) -> None:
    # given a module whose output is written to right after it has returned, without a version
    model = Behind()
    training = supervised(model, batch)

    # when a step is recorded at level module
    with lockstep.record(tmp_path / "ref", model=model, steps="0:1", level="module"):
        training.step(0)

    # then the call has the values of its time, and the next one those of its own
    recording = lockstep.open(tmp_path / "ref")
    before = model.seen[0].double().view(-1).numpy()
    after = (model.seen[0] * 3.0).double().view(-1).numpy()
    first = one_record(one_call(recording, "torch.nn.Linear", "first"), Role.OUTPUT)
    second = one_record(one_call(recording, "torch.nn.Identity", "second"), Role.INPUT)
    assert np.array_equal(kept(first), before)
    assert np.array_equal(kept(second), after)
    assert first.statistics is not None
    assert first.statistics.maximum == before.max()


def small_net() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 4)
    )


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("save", ["stats", "sketch"])
def test_what_is_measured_late_reads_as_what_is_measured_at_once(
    tmp_path: Path, level: str, save: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a training, recorded
    def build() -> Training:
        return supervised(small_net(), batch)

    late = check(build, tmp_path / "late", level=level, save=save)

    # when it is recorded again with every tensor measured as it comes
    monkeypatch.setattr(contents, "available", lambda: False)
    at_once = check(build, tmp_path / "at_once", level=level, save=save)

    # then the two tell the same, number for number
    assert rows_of(late) == rows_of(at_once)


def rows_of(recording: Any) -> list[Any]:
    return [
        (call.site, record.role, record.name, record.sequence, content_of(record))
        for call in calls(recording)
        for record in call.records
    ]


def content_of(record: TensorRecord) -> tuple[object, ...]:
    content = record.content
    sketch = None if content.sketch is None else content.sketch.tobytes()
    return content.id, content.shape, content.dtype, content.digest, str(content.statistics), sketch


class Switched(nn.Module):
    """A module whose setting changes between calls to values that are equal, but read differently."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mode: object = 1

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_a_setting_that_changes_is_recorded_as_it_is_at_each_call(tmp_path: Path) -> None:
    # given a module whose setting is 1, then True, 1.0, a list, and the same list changed
    model = Switched()
    training = supervised(model, batch)
    modes: list[object] = [1, True, 1.0, [1, 2]]

    # when a step is recorded with each
    with lockstep.record(tmp_path / "ref", model=model, steps="0:5", level="module"):
        for mode in modes:
            model.mode = mode
            training.step(0)
        modes[-1].append(3)  # type: ignore[attr-defined]
        training.step(0)

    # then every call tells its own
    recording = lockstep.open(tmp_path / "ref")
    found = [one_call(recording, "Switched", "", step=step).arguments["mode"] for step in range(5)]
    assert [repr(mode) for mode in found] == ["1", "True", "1.0", "[1, 2]", "[1, 2, 3]"]


def test_a_tensor_that_is_met_again_in_another_class_takes_no_number_of_others(
    tmp_path: Path,
) -> None:
    # given a result of a collective, which torch hands on in a class of its own, and a small tensor that comes after it
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    try:
        # when they are saved whole
        with lockstep.record(tmp_path / "ref", steps="0:1", save="tensors"):
            hidden = model(torch.ones(3, 4))
            summed = all_reduce(hidden.detach() * 0 + 1, "sum", dist.group.WORLD)
            (hidden * (summed * 2)).sum().backward()
            optimizer.step()
    finally:
        dist.destroy_process_group()

    # then every one reads as it was
    _, doubled, _ = calls(lockstep.open(tmp_path / "ref"), "torch.Tensor.mul")
    assert one_record(doubled, Role.OUTPUT).load().tolist() == np.full((3, 4), 2.0).tolist()
