"""What is around a training: modes, threads, exceptions, evaluation, other steps, what stays behind."""

from __future__ import annotations

import gc
import threading
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from harness import (
    CallKind,
    Phase,
    Role,
    Training,
    calls,
    check,
    fingerprint,
    hooked_parameters,
    named,
    one_call,
    same,
    state_of_torch,
    supervised,
    trace_of,
    values,
)
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import lockstep
from lockstep.core.errors import CaptureError

LEVELS = ("module", "api", "aten")


def batch() -> tuple[Tensor, ...]:
    return (torch.randn(5, 4),)


def plain() -> Training:
    return supervised(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), batch)


class Counting(TorchFunctionMode):
    """A function mode of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class CountingDispatch(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [Counting, CountingDispatch])
def test_a_mode_that_is_on_when_recording_starts_and_goes_before_it_stops(
    tmp_path: Path, level: str, kind: type[Counting]
) -> None:
    # given a mode of the user's own around the beginning of a recording
    with kind() as bare:
        trace_of(plain(), 2)
    before = state_of_torch()
    recording = lockstep.record(tmp_path / "ref", steps="0:3", level=level)
    with kind() as mode:
        recording.start()
        training = plain()
        trace_of(training, 2)
    # then it sees exactly what it would have seen, and leaves by itself
    assert mode.count == bare.count
    trace_of(training, 1)
    recording.stop()
    assert state_of_torch() == before
    assert len(calls(lockstep.open(tmp_path / "ref"), "torch.nn.Linear", step=2)) == 2


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", [Counting, CountingDispatch])
def test_a_mode_that_comes_while_recording_and_stays(
    tmp_path: Path, level: str, kind: type[Counting]
) -> None:
    before = state_of_torch()
    recording = lockstep.record(tmp_path / "ref", steps="0:1", level=level)
    recording.start()
    with kind() as mode:
        training = plain()
        trace_of(training, 2)
        assert recording_is_over(level)
        seen = mode.count
        torch.ones(2).add(1)
        assert mode.count > seen
    recording.stop()
    assert state_of_torch() == before


def recording_is_over(level: str) -> bool:
    return vars(nn.Module)["__call__"] is nn.Module._wrapped_call_impl


@pytest.mark.parametrize("level", LEVELS)
def test_a_default_device_may_come_and_go(tmp_path: Path, level: str) -> None:
    before = state_of_torch()
    with torch.device("cpu"), lockstep.record(tmp_path / "first", level=level):
        trace_of(plain(), 2)
    assert state_of_torch() == before
    with lockstep.record(tmp_path / "second", level=level):
        with torch.device("meta"):
            assert torch.ones(1).device.type == "meta"
        trace_of(plain(), 2)
    assert state_of_torch() == before
    recording = lockstep.record(tmp_path / "third", level=level)
    with torch.device("meta"):
        recording.start()
        assert torch.ones(1).device.type == "meta"
    training = plain()
    trace_of(training, 2)
    recording.stop()
    assert state_of_torch() == before
    recording = lockstep.record(tmp_path / "fourth", level=level)
    recording.start()
    torch.set_default_device("cpu")
    trace_of(training, 2)
    recording.stop()
    torch.set_default_device(None)
    assert state_of_torch() == before


@pytest.mark.parametrize("level", LEVELS)
def test_a_training_in_another_thread(tmp_path: Path, level: str) -> None:
    # given a recording that the main thread starts and stops
    def train(left: list[Any]) -> None:
        torch.manual_seed(7)
        left.append(trace_of(plain(), 2))

    bare: list[Any] = []
    train(bare)
    before = state_of_torch()
    recorded: list[Any] = []
    with lockstep.record(tmp_path / "ref", level=level, save="tensors"):
        thread = threading.Thread(target=train, args=(recorded,))
        thread.start()
        thread.join()

    # then the other thread's training is recorded, bitwise as it was
    assert recorded == bare
    assert state_of_torch() == before
    recording = lockstep.open(tmp_path / "ref")
    assert recording.missing == ()
    linear = one_call(recording, "torch.nn.Linear", "0")
    assert linear.with_role(Role.GRAD_OUTPUT)
    if level == "api":
        assert len(calls(recording, "torch.nn.functional.linear")) == 2
        assert len(calls(recording, "torch.nn.functional.linear", step=1)) == 2


@pytest.mark.parametrize("level", LEVELS)
def test_an_exception_that_the_user_catches(tmp_path: Path, level: str) -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.wrong = nn.Linear(4, 4), nn.Linear(3, 4)

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.wrong(x)
            except RuntimeError:
                return self.lin(x)

    recording = check(lambda: supervised(Fragile(), batch), tmp_path / "ref", level=level)

    wrong = one_call(recording, "torch.nn.Linear", "wrong")
    assert wrong.arguments["raised"] is True
    assert wrong.with_role(Role.OUTPUT) == ()
    right = one_call(recording, "torch.nn.Linear", "lin")
    assert right.parent == wrong.parent
    if level == "api":
        assert one_call(recording, "linear", "wrong").arguments["raised"] is True
        assert one_call(recording, "linear", "lin").site.module == "lin"


def test_an_exception_in_backward_leaves_the_next_step_alone(tmp_path: Path) -> None:
    def build() -> Training:
        training = plain()
        model, ordinary = training.model, training.step
        assert model is not None

        def step(number: int) -> Any:
            if number == 1:
                output = model(torch.randn(5, 4))
                output.register_hook(_fail)
                with pytest.raises(ZeroDivisionError):
                    output.sum().backward()
            return ordinary(number)

        training.step = step
        return training

    recording = check(build, tmp_path / "ref", steps=3)

    assert len(calls(recording, "linear", "0", step=1)) == 2
    assert len(calls(recording, "linear", "0", step=2)) == 1


def _fail(_grad: Tensor) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("level", LEVELS)
def test_evaluation_between_steps_is_not_recorded(tmp_path: Path, level: str) -> None:
    def build() -> Training:
        training = plain()
        model, ordinary = training.model, training.step
        assert model is not None

        def step(number: int) -> list[Any]:
            value = ordinary(number)
            model.eval()
            with torch.inference_mode():
                first = model(torch.randn(5, 4))
            with torch.no_grad():
                second = model(torch.randn(5, 4)).argmax(1)
            model.train()
            return [value, first.clone(), second]

        training.step = step
        return training

    recording = check(build, tmp_path / "ref", steps=3, level=level)

    for step in range(3):
        assert len(calls(recording, "torch.nn.Linear", "0", step=step)) == 1
        assert len(named(recording, "0.weight", Role.PARAM_AFTER, step=step)) == 1


def test_inference_tensors_inside_a_step_are_read_as_they_are(tmp_path: Path) -> None:
    # given inference tensors, which do not count their versions, changed in a step
    def build() -> Training:
        training = plain()
        ordinary, teacher = training.step, nn.Linear(4, 4)
        training.others["teacher"] = teacher

        def step(number: int) -> list[Any]:
            with torch.inference_mode():
                target = teacher(torch.ones(2, 4))
                doubled = target.mul_(2).add(1)
            return [ordinary(number), doubled.clone()]

        training.step = step
        return training

    recording = check(build, tmp_path / "ref", steps=1)

    layer = one_call(recording, "torch.nn.Linear", "Linear")
    assert same(values(one_call(recording, "mul_"), Role.OUTPUT), values(layer, Role.OUTPUT) * 2)
    assert same(
        values(one_call(recording, "torch.Tensor.add"), Role.INPUT), values(layer, Role.OUTPUT) * 2
    )


@pytest.mark.parametrize(
    ("chosen", "expected"), [("1", [1]), ("0,2", [0, 2]), ("1:3", [1, 2]), (1, [0])]
)
@pytest.mark.parametrize("level", LEVELS)
def test_only_the_chosen_steps_leave_anything(
    tmp_path: Path, level: str, chosen: int | str, expected: list[int]
) -> None:
    states = []

    def build() -> Training:
        training = plain()
        ordinary = training.step

        def step(number: int) -> Any:
            value = ordinary(number)
            states.append(state_of_torch())
            return value

        training.step = step
        return training

    recording = check(build, tmp_path / "ref", steps=4, record_steps=chosen, level=level)

    bare, recorded = states[0], states[4:]
    found = recording.ranks["rank0"].steps if recording.ranks else ()
    assert list(found) == expected
    for step in expected:
        assert len(calls(recording, "torch.nn.Linear", step=step)) == 2
        (before,) = {r.digest for r in named(recording, "0.weight", Role.PARAM, step=step)
                     if r.site.phase is Phase.OPTIMIZER}  # fmt: skip
        assert before
    # after the last chosen step everything is as it was, but that backward, schedules that follow losses, and steps of
    # optimizers, which a script may make anew, are heard until the end; taps are in place only for chosen steps
    if expected:
        left = {
            place: one
            for place, (one, before) in enumerate(zip(recorded[max(expected)], bare, strict=True))
            if one != before
        }
        hooks = bare.index(torch.optim.Optimizer.__init__) + 6
        assert left.pop(hooks) == bare[hooks] + 1
        assert [one.__name__ for one in left.values()] == ["_engine_run_backward", "step"]
    for step, state in enumerate(recorded[:-1]):
        next_is_chosen = step + 1 in expected
        assert (state[0] == bare[0]) == (not next_is_chosen)


def test_a_step_that_never_comes_leaves_an_empty_recording(tmp_path: Path) -> None:
    before = state_of_torch()
    with lockstep.record(tmp_path / "ref", steps="7"):
        trace_of(plain(), 2)

    assert state_of_torch() == before
    recording = lockstep.open(tmp_path / "ref")
    assert recording.ranks == {}
    assert recording.missing != ()


def test_initial_parameters_are_recorded_where_recording_begins(tmp_path: Path) -> None:
    recording = check(plain, tmp_path / "ref", steps=3, record_steps="1:3")

    (initial,) = calls(recording, "torch.nn.Linear", "0", kind=CallKind.INIT, step=1)
    assert [record.name for record in initial.records] == ["0.weight", "0.bias"]
    update = named(recording, "0.weight", Role.PARAM, step=1)
    assert len({record.digest for record in update}) == 1


def test_two_recordings_one_after_another_are_equal(tmp_path: Path) -> None:
    first = check(plain, tmp_path / "first")
    second = check(plain, tmp_path / "second")

    assert fingerprint(first) == fingerprint(second)


def test_a_second_recording_at_the_same_time_is_refused(tmp_path: Path) -> None:
    before = state_of_torch()
    with lockstep.record(tmp_path / "first"):
        with pytest.raises(CaptureError, match="already running"):
            lockstep.record(tmp_path / "second").start()
        trace_of(plain(), 2)
    assert state_of_torch() == before
    assert not (tmp_path / "second").exists()
    assert lockstep.open(tmp_path / "first").missing == ()


@pytest.mark.parametrize("level", LEVELS)
def test_nothing_is_kept_alive(tmp_path: Path, level: str) -> None:
    # given a training whose model, data and last graph are still there when recording stops
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            y += 1
            return y.relu_()

    model, data = Model(), torch.randn(5, 4)
    optimizer = torch.optim.Adam(model.parameters())
    with lockstep.record(tmp_path / "ref", model=model, level=level):
        for _ in range(3):
            optimizer.zero_grad()
            output = model(data)
            output.sum().backward(retain_graph=True)
            optimizer.step()
    assert hooked_parameters(model) == {}
    node = output.grad_fn
    watched = [weakref.ref(item) for item in (model, model.lin, optimizer, data, model.lin.weight)]

    # when the training's own references go, but for a node of the graph
    del model, optimizer, data, output
    gc.collect()

    # then so does everything that the graph itself does not hold
    assert [ref() for ref in watched[:3]] == [None, None, None]
    assert node is not None
    del node
    gc.collect()
    assert [ref() for ref in watched] == [None] * 5


@pytest.mark.parametrize("level", LEVELS)
def test_activations_die_when_they_would_have_died(tmp_path: Path, level: str) -> None:
    # given a forward whose intermediate results autograd does not need
    died: list[bool] = []

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.lin(x)
            z = y + 1
            gone = weakref.ref(z)
            z = z * 2
            died.append(gone() is None)
            return z + y

    check(lambda: supervised(Model(), batch), tmp_path / "ref", level=level, save="stats")

    assert died == [True] * 4


@pytest.mark.parametrize("level", LEVELS)
def test_data_loader_workers_leave_nothing_behind(tmp_path: Path, level: str) -> None:
    # given worker processes forked while a step is recorded
    def build() -> Training:
        dataset = TensorDataset(torch.arange(24.0).reshape(6, 4))
        loader = DataLoader(dataset, batch_size=3, num_workers=1, multiprocessing_context="fork")
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(_: int) -> list[Tensor]:
            losses = []
            for (x,) in loader:
                optimizer.zero_grad()
                loss = model(x).sum()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
            return losses

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref", steps=1, record_steps=2, level=level)

    assert list(recording.ranks) == ["rank0"]
    assert [len(calls(recording, "torch.nn.Linear", step=step)) for step in (0, 1)] == [1, 1]


def test_an_error_of_our_own_ends_the_recording_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a recorder that breaks in the middle of a step
    from lockstep.capture.rows.session import Session

    torch.manual_seed(7)
    bare = trace_of(plain(), 3)
    before = state_of_torch()

    def broken(*_: Any, **__: Any) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(Session, "_tap", broken)
    torch.manual_seed(7)
    with lockstep.record(tmp_path / "ref"):
        recorded = trace_of(plain(), 3)

    # then the training goes on as ever, and both the user and the recording are told
    assert recorded == bare
    assert state_of_torch() == before
    assert "recording stopped: KeyError: 'a bug'" in capsys.readouterr().err
    (sentence, *_) = lockstep.open(tmp_path / "ref").missing
    assert "KeyError" in sentence


def test_the_batch_is_data_and_what_comes_from_it_is_not(tmp_path: Path) -> None:
    # given a loop that prepares its batch, in the second step of a recording
    def build() -> Training:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        images, labels = torch.randn(5, 4), torch.tensor([0, 1, 1, 0, 1])

        def step(_: int) -> Tensor:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return Training(model, step, optimizers=[optimizer])

    recording = check(build, tmp_path / "ref")

    for step in (0, 1):
        arrived = calls(recording, kind=CallKind.DATA, step=step)
        shapes = [record.shape for call in arrived for record in call.records]
        assert shapes == [(5, 4), (5,)]
        assert {call.site.phase for call in arrived} == {Phase.DATA}
