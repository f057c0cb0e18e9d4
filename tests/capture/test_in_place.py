"""Operators that write in place, views of tensors, and memory that is written to piece by piece."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from harness import Role, Training, calls, check, named, one_call, same, supervised, values
from torch import Tensor, nn
from torch.nn import functional as F

LEVELS = ("module", "api", "aten")
SAVES = ("stats", "sketch", "tensors")


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(5, 4),)


class InPlaceNet(nn.Module):
    """In-place activations, `y += 1` behind a module, and a write to a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.act = nn.ReLU(inplace=True)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.last(self.act(self.first(x)))
        y += 1
        F.relu_(y)
        z = y + 0
        z[:, 0] *= 2
        return z


class Forward(nn.Module):
    """A module with one linear layer and a function of its output as the rest."""

    def __init__(self, rest: object) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)
        self.rest = rest

    def forward(self, x: Tensor) -> Tensor:
        return self.rest(self.lin(x))  # type: ignore[operator]


@pytest.mark.parametrize("save", SAVES)
@pytest.mark.parametrize("level", LEVELS)
def test_recording_in_place_operators_changes_nothing(
    tmp_path: Path, level: str, save: str
) -> None:
    def build() -> Training:
        return supervised(InPlaceNet(), batch)

    check(build, tmp_path / "ref", level=level, save=save)


def test_in_place_relu_is_recorded_as_it_was_before_and_after(tmp_path: Path) -> None:
    # given a network whose activation overwrites its input
    recording = check(lambda: supervised(InPlaceNet(), batch), tmp_path / "ref")

    # then the layer's output, the activation's input and output hold the values of their time
    linear = one_call(recording, "torch.nn.Linear", "first")
    activation = one_call(recording, "torch.nn.ReLU", "act")
    written = values(linear, Role.OUTPUT)
    assert (written < 0).any()
    assert same(values(activation, Role.INPUT), written)
    assert same(values(activation, Role.OUTPUT), written.relu())
    # and so do the gradients
    grad_output = values(activation, Role.GRAD_OUTPUT)
    assert same(values(activation, Role.GRAD_INPUT), torch.where(written > 0, grad_output, 0.0))
    assert same(values(linear, Role.GRAD_OUTPUT), values(activation, Role.GRAD_INPUT))


def test_adding_in_place_behind_a_module_leaves_the_modules_records_alone(tmp_path: Path) -> None:
    recording = check(lambda: supervised(InPlaceNet(), batch), tmp_path / "ref")

    linear = one_call(recording, "torch.nn.Linear", "last")
    added = one_call(recording, "add_", "")
    relu = one_call(recording, "relu_", "")
    assert same(values(added, Role.INPUT), values(linear, Role.OUTPUT))
    assert same(values(added, Role.OUTPUT), values(linear, Role.OUTPUT) + 1)
    assert same(values(relu, Role.OUTPUT), values(added, Role.OUTPUT).relu())
    assert same(values(linear, Role.GRAD_OUTPUT), values(added, Role.GRAD_INPUT))
    passed = values(added, Role.OUTPUT) > 0
    received = values(relu, Role.GRAD_OUTPUT)
    assert same(values(relu, Role.GRAD_INPUT), torch.where(passed, received, 0.0))


def test_views_carry_their_own_gradients(tmp_path: Path) -> None:
    # given views by index, transposition and chunks
    def rest(y: Tensor) -> Tensor:
        left, right = y.chunk(2, dim=1)
        return left.t() @ right + y[:, 0].sum() + y.transpose(0, 1)[0].mean()

    recording = check(lambda: supervised(Forward(rest), batch), tmp_path / "ref")

    # then every view is recorded as what it shows
    output = values(one_call(recording, "torch.nn.Linear", "lin"), Role.OUTPUT)
    chunk = one_call(recording, "chunk")
    assert same(values(chunk, Role.OUTPUT, 0), output[:, :2])
    assert same(values(chunk, Role.OUTPUT, 1), output[:, 2:])
    first, second = calls(recording, "__getitem__")
    assert same(values(first, Role.OUTPUT), output[:, 0])
    # and what each sends back adds up to what the layer gets
    parts = [chunk, first, one_call(recording, "transpose")]
    total = sum(values(call, Role.GRAD_INPUT) for call in parts)
    grad = values(one_call(recording, "torch.nn.Linear", "lin"), Role.GRAD_OUTPUT)
    assert torch.allclose(grad, total, rtol=1e-6, atol=0)
    assert same(values(second, Role.OUTPUT), output.transpose(0, 1)[0])
    left, right = values(chunk, Role.GRAD_OUTPUT, 0), values(chunk, Role.GRAD_OUTPUT, 1)
    assert same(values(chunk, Role.GRAD_INPUT), torch.cat([left, right], dim=1))


@pytest.mark.parametrize("level", LEVELS)
def test_writing_to_a_view_shows_in_the_whole(tmp_path: Path, level: str) -> None:
    def rest(y: Tensor) -> Tensor:
        z = y * 1
        z[:, 1].mul_(3)
        return z + 1

    recording = check(lambda: supervised(Forward(rest), batch), tmp_path / "ref", level=level)

    if level == "api":
        before = values(one_call(recording, "torch.Tensor.mul"), Role.OUTPUT)
        expected = before.clone()
        expected[:, 1] *= 3
        assert same(values(one_call(recording, "torch.Tensor.add"), Role.INPUT), expected)


@pytest.mark.parametrize("level", LEVELS)
def test_writing_behind_autograds_back_is_noticed(tmp_path: Path, level: str) -> None:
    # given a tensor that changes through `.data`, which leaves its version as it is
    class Behind(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.act = nn.Tanh()

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            y.data.mul_(2)
            return self.act(y)

    recording = check(lambda: supervised(Behind(), batch), tmp_path / "ref", level=level)

    # then the next module gets what is there now
    written = values(one_call(recording, "torch.nn.Linear", "lin"), Role.OUTPUT)
    read = values(one_call(recording, "torch.nn.Tanh", "act"), Role.INPUT)
    assert same(read, written * 2)


def test_results_written_to_a_given_tensor_are_outputs_only(tmp_path: Path) -> None:
    def rest(y: Tensor) -> Tensor:
        scratch = torch.empty_like(y)
        torch.mul(y.detach(), 2.0, out=scratch)
        return y + scratch

    recording = check(lambda: supervised(Forward(rest), batch), tmp_path / "ref")

    multiply = one_call(recording, "torch.mul")
    assert [record.index for record in multiply.with_role(Role.INPUT)] == [0]
    assert same(values(multiply, Role.OUTPUT), values(multiply, Role.INPUT) * 2)


def test_assigning_to_items_is_recorded_as_an_output(tmp_path: Path) -> None:
    def rest(y: Tensor) -> Tensor:
        z = torch.zeros(5, 4)
        z[1:3] = y[1:3]
        return z * 2

    recording = check(lambda: supervised(Forward(rest), batch), tmp_path / "ref")

    assign = one_call(recording, "__setitem__")
    (written,) = assign.with_role(Role.OUTPUT)
    assert written.name == "args.0"
    expected = torch.zeros(5, 4)
    expected[1:3] = values(one_call(recording, "torch.nn.Linear", "lin"), Role.OUTPUT)[1:3]
    assert same(values(assign, Role.OUTPUT, written.index), expected)


@pytest.mark.parametrize("level", ["api", "aten"])
def test_memory_counts_only_once_it_was_written_to(tmp_path: Path, level: str) -> None:
    # given memory as it is found, filled row by row
    def rest(y: Tensor) -> Tensor:
        scratch = torch.empty(2, 4)
        scratch[0] = y.detach()[0]
        scratch[1].copy_(y.detach()[1])
        return y[:2] + scratch

    recording = check(lambda: supervised(Forward(rest), batch), tmp_path / "ref", level=level)

    # then it has numbers from the last write on
    found = [record for call in calls(recording, "") for record in call.records]
    unread = [record for record in found if "memory as it was found" in record.content.note]
    assert unread
    assert all(record.digest is None for record in unread)
    output = values(one_call(recording, "torch.nn.Linear", "lin"), Role.OUTPUT)
    add = "torch.Tensor.add" if level == "api" else "aten.add.Tensor"
    sums = [call for call in calls(recording, add) if call.with_role(Role.INPUT)[0].shape == (2, 4)]
    assert same(values(sums[0], Role.INPUT, 1), output[:2])


@pytest.mark.parametrize("rows", [(2, 0, 1), (0, 1, 1)])
@pytest.mark.parametrize("how", ["scatter_", "index_copy_"])
def test_memory_counts_once_an_index_has_reached_all_of_it(
    tmp_path: Path, how: str, rows: tuple[int, ...]
) -> None:
    # given memory as it is found, whose rows are written in an order that an index gives
    def rest(y: Tensor) -> Tensor:
        scratch, index = torch.empty(3, 4), torch.tensor(rows)
        if how == "scatter_":
            scratch.scatter_(0, index[:, None].expand(3, 4), y.detach()[:3])
        else:
            scratch.index_copy_(0, index, y.detach()[:3])
        return y[:3] + (scratch if len(set(rows)) == 3 else scratch[:2].sum(0))

    recording = check(lambda: supervised(Forward(rest), batch), tmp_path / "ref")

    # then it has numbers where every row was reached, and none where one was not
    found = [record for call in calls(recording, f"torch.Tensor.{how}") for record in call.records]
    written = [record for record in found if record.role is Role.OUTPUT]
    assert written
    assert all((one.digest is not None) == (len(set(rows)) == 3) for one in written)


def test_recording_the_same_run_twice_gives_equal_digests(tmp_path: Path) -> None:
    def rest(y: Tensor) -> Tensor:
        scratch = torch.empty(3, 4)
        scratch[:2] = y.detach()[:2]
        return y[:2] + scratch[:2]

    def build() -> Training:
        return supervised(Forward(rest), batch)

    first = check(build, tmp_path / "first")
    second = check(build, tmp_path / "second")

    digests = [[record.digest for record in run.records()] for run in (first, second)]
    assert digests[0] == digests[1]


def test_foreach_operators_that_return_nothing_are_recorded(tmp_path: Path) -> None:
    # given gradients clipped by torch, which scales them all with one operator
    def build() -> Training:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(3, 4)).sum()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            return norm.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref")

    # then the optimizer gets what the clipping left
    before = named(recording, "0.weight", Role.PARAM_GRAD)
    clip = one_call(recording, "_foreach_mul_")
    clipped = [record for record in clip.records if record.role is Role.OUTPUT]
    update = next(record for record in before if record.site.phase.value == "optimizer")
    assert len(clipped) == 4
    assert update.digest in {record.digest for record in clipped}
