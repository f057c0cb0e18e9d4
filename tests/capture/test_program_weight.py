"""`--save program`: what no recorded call makes is kept whole, all else as sketches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from harness import (
    Call,
    Recording,
    Role,
    Training,
    calls,
    check,
    named,
    one_call,
    same,
    supervised,
    values,
)
from torch import Tensor, nn
from torch.nn import functional as F

import lockstep
from lockstep.core.errors import UsageError
from lockstep.core.manifest import BATCHES_LEFT_OUT, SOURCES_LEFT_OUT, NotSeen
from lockstep.core.records import TensorRecord
from lockstep.core.site import CallKind

WIDE = 300
"""More elements than a sketch has numbers."""


class Model(nn.Module):
    """A layer, and what a test puts behind it."""

    def __init__(self, behind: Callable[[Tensor], Tensor] = torch.tanh) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(WIDE, WIDE), nn.BatchNorm1d(WIDE)
        self.behind = behind

    def forward(self, value: Tensor) -> Tensor:
        return self.behind(self.norm(self.layer(value)))


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(4, WIDE),)


def record(
    tmp_path: Path, behind: Callable[[Tensor], Tensor] = torch.tanh, **options: Any
) -> Recording:
    """Record such a training, and find that no bit of it has changed."""

    def build() -> Training:
        model = Model(behind)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return supervised(model, batch, optimizer=optimizer)

    return check(build, tmp_path / "recording", save="program", **options)


def is_whole(record: TensorRecord) -> bool:
    return record.content.loader is not None


def whole(call: Call, role: Role) -> set[bool]:
    return {is_whole(one) for one in call.with_role(role)}


def updates(recording: Recording, step: int) -> list[Call]:
    return calls(recording, step=step, kind=CallKind.OPTIMIZER)


def gaps(recording: Recording) -> dict[str, NotSeen]:
    return {gap.what: gap for gap in recording.ranks["rank0"].manifest.not_seen}


def test_parameters_buffers_and_the_batch_are_whole(tmp_path: Path) -> None:
    torch.manual_seed(7)
    expected = Model()
    recording = record(tmp_path)
    linear = one_call(recording, "linear")
    assert same(values(linear, Role.INPUT, 1), expected.layer.weight.detach())
    assert same(values(linear, Role.INPUT, 2), expected.layer.bias.detach())
    for name, role in (("norm.running_mean", Role.BUFFER), ("layer.weight", Role.PARAM)):
        assert is_whole(named(recording, name, role)[0])
    for step in (0, 1):
        (data,) = calls(recording, step=step, kind=CallKind.DATA)
        assert whole(data, Role.OUTPUT) == {True}


def test_a_batch_that_is_cast_before_the_model_is_called_is_whole(tmp_path: Path) -> None:
    def build() -> Training:
        model = torch.nn.Linear(24, 40).bfloat16()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            x = torch.randn(32, 24).bfloat16()
            optimizer.zero_grad()
            loss: Tensor = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "recording", save="program")
    for step in (0, 1):
        (linear, *_) = (
            one for one in calls(recording, step=step) if one.site.op.endswith("linear")
        )
        assert is_whole(linear.with_role(Role.INPUT)[0])


def test_what_calls_and_updates_make_is_a_sketch(tmp_path: Path) -> None:
    recording = record(tmp_path)
    linear = one_call(recording, "linear")
    for role in (Role.OUTPUT, Role.GRAD_OUTPUT):
        assert whole(linear, role) == {False}
        assert all(one.content.sketch is not None for one in linear.with_role(role))
    weights = [one for one in updates(recording, 0) if one.records[0].name == "layer.weight"]
    assert whole(weights[0], Role.PARAM_AFTER) == whole(weights[0], Role.PARAM_GRAD) == {False}
    assert {is_whole(one) for one in named(recording, "layer.weight", Role.PARAM, step=1)} == {
        False
    }
    assert {
        is_whole(one)
        for one in named(recording, "layer.weight|momentum_buffer", Role.STATE, step=1)
    } == {False}


def test_what_changed_between_two_steps_is_whole(tmp_path: Path) -> None:
    def build() -> Training:
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = model(*batch()).square().mean()
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                model.layer.weight.data.copy_(model.layer.weight * 1.5)
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "recording", save="program")
    (taken,) = {one.content.id for one in named(recording, "layer.weight", Role.PARAM, step=1)}
    assert {is_whole(one) for one in named(recording, "layer.weight", Role.PARAM, step=1)} == {True}
    (left,) = named(recording, "layer.weight", Role.PARAM_AFTER)
    assert left.content.id != taken
    assert not is_whole(left)


def test_states_before_the_first_recorded_update_are_whole(tmp_path: Path) -> None:
    recording = record(tmp_path, steps=4, record_steps="2:4")
    name = "layer.weight|momentum_buffer"
    assert {is_whole(one) for one in named(recording, name, Role.STATE, step=2)} == {True}
    assert {is_whole(one) for one in named(recording, name, Role.STATE, step=3)} == {False}
    assert {is_whole(one) for one in named(recording, name, Role.STATE_AFTER, step=2)} == {False}


@pytest.mark.parametrize(
    ("op", "behind"),
    [
        ("dropout", lambda h: F.dropout(h, 0.5)),
        ("randn_like", lambda h: h + torch.randn_like(h)),
        ("randn", lambda h: h * torch.randn(4, WIDE)),
        ("bernoulli_", lambda h: h * torch.empty(4, WIDE).bernoulli_(0.3)),
        ("gt", lambda h: h * (h > 0)),
        ("argsort", lambda h: h.gather(1, h.argsort(1))),
        ("tensor", lambda h: h * torch.tensor([0.5] * WIDE)),
    ],
)
def test_what_is_drawn_decided_or_given_by_python_is_whole(
    tmp_path: Path, op: str, behind: Callable[[Tensor], Tensor]
) -> None:
    recording = record(tmp_path, behind)
    call = one_call(recording, op)
    assert whole(call, Role.OUTPUT) == {True}
    assert (call.random_state is not None) == (
        op in ("dropout", "randn_like", "randn", "bernoulli_")
    )
    assert call.random_state is None or call.random_state.loader is not None


def test_what_enters_without_a_call_that_made_it_is_whole(tmp_path: Path) -> None:
    secret = np.linspace(0, 1, WIDE, dtype=np.float32)

    def behind(h: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction():
            other = torch.from_numpy(secret).clone()
        return h + other

    recording = record(tmp_path, behind)
    (total,) = calls(recording, "add") + calls(recording, "__add__")
    assert [is_whole(one) for one in total.with_role(Role.INPUT)] == [False, True]
    assert same(values(total, Role.INPUT, 1), torch.from_numpy(secret))


def test_what_is_no_larger_than_a_sketch_is_whole(tmp_path: Path) -> None:
    recording = record(tmp_path, lambda h: h.mean(1, keepdim=True))
    assert whole(one_call(recording, "square"), Role.OUTPUT) == {True}


def test_where_there_is_no_room_for_all_parameters_none_is_kept_and_it_is_said(
    tmp_path: Path,
) -> None:
    # given less room than the parameters take
    # when it is recorded
    recording = record(tmp_path, whole_bytes="100kB")

    # then all have sketches alone, since a part of them is of no use, and the size is named
    gap = gaps(recording)[SOURCES_LEFT_OUT]
    for name in ("layer.weight", "layer.bias"):
        (parameter,) = named(recording, name, Role.PARAM)[:1]
        assert not is_whole(parameter)
        assert parameter.content.sketch is not None
    assert "go beyond --whole-bytes 100kB" in gap.reason
    # When the named size is given, then all is kept
    assert gap.whole_bytes is not None
    again = record(tmp_path / "again", whole_bytes=gap.whole_bytes)
    assert SOURCES_LEFT_OUT not in gaps(again)
    assert is_whole(named(again, "layer.weight", Role.PARAM)[0])


def test_parameters_are_whole_though_recorded_calls_have_made_them(tmp_path: Path) -> None:
    # given a script that makes its model while recording is on
    with lockstep.record(tmp_path / "recording", steps="0:2", save="program"):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        start = model.layer.weight.detach().clone()
        for _ in range(2):
            optimizer.zero_grad()
            model(*batch()).square().mean().backward()
            optimizer.step()
    recording = lockstep.open(tmp_path / "recording")

    # then the parameters that the first step begins with are whole, and one copy of them
    linear = one_call(recording, "linear", step=0)
    assert same(values(linear, Role.INPUT, 1), start)
    assert not is_whole(one_call(recording, "linear", step=1).with_role(Role.INPUT)[1])


def test_with_redact_no_batch_is_whole_and_it_is_said(tmp_path: Path) -> None:
    recording = record(tmp_path, lambda h: F.dropout(h, 0.5) * (h > 0), redact=True)
    assert BATCHES_LEFT_OUT in gaps(recording)
    (data,) = calls(recording, kind=CallKind.DATA)
    assert whole(data, Role.OUTPUT) == {False}
    for op in ("dropout", "gt"):
        assert whole(one_call(recording, op), Role.OUTPUT) == {False}
    assert is_whole(named(recording, "layer.weight", Role.PARAM)[0])
    assert {is_whole(one) for one in one_call(recording, "linear").with_role(Role.INPUT)[:1]} == {
        False
    }


def test_a_sound_pair_agrees_and_tells_of_a_fault(tmp_path: Path) -> None:
    one, two = record(tmp_path / "one"), record(tmp_path / "two")
    assert lockstep.compare_recordings(one.path, two.path).verdict.value == "agree"
    other = record(tmp_path / "other", lambda h: torch.tanh(h) * 1.01)
    assert lockstep.compare_recordings(one.path, other.path).verdict.value == "diverged"


@pytest.mark.parametrize("save", ["stats", "sketch", "tensors"])
def test_other_weights_know_no_such_size(tmp_path: Path, save: str) -> None:
    recording = check(
        lambda: supervised(Model(), batch), tmp_path / "recording", save=save, whole_bytes=1
    )
    assert SOURCES_LEFT_OUT not in gaps(recording)


def test_a_size_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="whole_bytes"):
        lockstep.record(tmp_path / "recording", save="program", whole_bytes="much")


def test_elements_of_a_large_update_are_whole_and_stand_beside_its_records(tmp_path: Path) -> None:
    def build() -> Training:
        model = torch.nn.Linear(40, 20)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(torch.randn(8, 40)).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "recording", save="program")
    sampled = {one.records[0].name: one.sample for one in updates(recording, 0)}
    assert sampled["bias"] == ()
    names = {one.name for one in sampled["weight"]}
    assert {"param", "grad", "param|after", "exp_avg|after", "exp_avg_sq|after"} <= names
    assert all(is_whole(one) for one in sampled["weight"])
    assert {one.content.numel for one in sampled["weight"]} == {1, 256}
    roles = lockstep.reading.record_table(recording, columns=["role"])["role"].unique().to_list()
    assert Role.SAMPLE.value not in roles
