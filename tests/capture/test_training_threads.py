"""Several threads of one process: one training is recorded whole, whatever the others do."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from harness import CallKind
from torch import Tensor, nn

import lockstep
from lockstep.capture.rows.session import Session
from lockstep.core.manifest import OTHER_TRAININGS
from lockstep.store.reader import RankRecording

WIDTHS, STEPS = (8, 5, 11), 3


def _model(width: int) -> nn.Module:
    generator = torch.Generator().manual_seed(width)
    model = nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 1))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model


def _sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def _bits(model: nn.Module) -> bytes:
    return b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())


def _in_threads(actions: list[Callable[[], None]]) -> None:
    threads = [
        threading.Thread(target=action, name=f"trainer {n}") for n, action in enumerate(actions)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _side_by_side(*, made_by_main: bool) -> list[bytes]:
    """Three trainings in three threads, which meet before each thing that they do."""
    left = [b""] * len(WIDTHS)
    meeting = threading.Barrier(len(WIDTHS))
    made = [(model, _sgd(model)) for model in map(_model, WIDTHS)] if made_by_main else []

    def train(number: int) -> None:
        model, optimizer = made[number] if made else (m := _model(WIDTHS[number]), _sgd(m))
        for step in range(STEPS):
            meeting.wait()
            optimizer.zero_grad()
            loss = model(torch.full((5, 4), step + 1.0)).square().mean()
            meeting.wait()
            loss.backward()
            meeting.wait()
            optimizer.step()
        left[number] = _bits(model)

    _in_threads([lambda number=number: train(number) for number in range(len(WIDTHS))])  # type: ignore[misc]
    return left


def _gaps(rank: RankRecording) -> list[str]:
    return [gap.what for gap in rank.manifest.not_seen if gap.what == OTHER_TRAININGS]


@pytest.mark.parametrize("level", ["module", "api", "aten"])
@pytest.mark.parametrize("made_by_main", [False, True])
def test_one_of_several_trainings_is_recorded_whole(
    made_by_main: bool, level: str, tmp_path: Path
) -> None:
    # given three trainings in three threads, bare and recorded
    bare = _side_by_side(made_by_main=made_by_main)
    with lockstep.record(tmp_path / "ref", steps=f"0:{STEPS}", level=level):
        recorded = _side_by_side(made_by_main=made_by_main)

    # then all three keep every bit,
    assert recorded == bare
    # one of them has all its steps, each with the calls and the parameters of one model alone,
    (rank,) = (recording := lockstep.open(tmp_path / "ref")).ranks.values()
    assert rank.complete_steps == tuple(range(STEPS))
    for step in rank.steps:
        calls = rank.calls(step)
        modules = [call.site.module for call in calls if call.kind is CallKind.MODULE]
        assert modules == ["", "0", "1", "2"]
        updated = [r.name for c in calls if c.kind is CallKind.OPTIMIZER for r in c.records]
        assert set(updated) == {"0.weight", "0.bias", "2.weight", "2.bias"}
        assert all(call.parent < call.id for call in calls)
    widths = {tuple(r.shape) for c in rank.calls(0) for r in c.records if r.name == "0.weight"}
    assert len(widths) == 1
    # and the others are said not to be there
    assert len(_gaps(rank)) == 1
    assert ["that of trainer" in sentence for sentence in recording.missing] == [True]
    assert recording.unrecorded == (OTHER_TRAININGS,)


def test_a_forward_in_threads_is_of_the_main_threads_training(tmp_path: Path) -> None:
    # given a model whose forward runs in threads that stay, of which another one looks at a teacher without a gradient
    def train() -> bytes:
        model, teacher = _model(8), _model(3)
        optimizer = _sgd(model)
        with ThreadPoolExecutor(2) as pool:
            for step in range(STEPS):
                optimizer.zero_grad()
                halves = [torch.full((3, 4), step + part) for part in (1.0, 2.0)]
                outputs: list[Tensor] = list(pool.map(model, halves))
                wanted = pool.submit(lambda: teacher(torch.ones(6, 4)).detach()).result()
                (torch.cat(outputs) - wanted).square().mean().backward()
                optimizer.step()
        return _bits(model)

    bare = train()
    with lockstep.record(tmp_path / "ref", steps=f"0:{STEPS}"):
        recorded = train()

    # then all of it is there, and nothing is said to be missing
    assert recorded == bare
    (rank,) = (recording := lockstep.open(tmp_path / "ref")).ranks.values()
    assert (recording.missing, recording.unrecorded, _gaps(rank)) == ((), (), [])
    assert rank.complete_steps == tuple(range(STEPS))
    for step in rank.steps:
        modules = [call for call in rank.calls(step) if call.kind is CallKind.MODULE]
        assert sum(call.site.op == "torch.nn.Linear" for call in modules) == 6


def test_trainings_in_one_thread_after_the_other_are_steps_of_one_recording(tmp_path: Path) -> None:
    # given trainings in threads of which each ends before the next begins, as a sweep in one thread is
    def train(width: int) -> None:
        model = _model(width)
        optimizer = _sgd(model)
        optimizer.zero_grad()
        model(torch.ones(5, 4)).square().mean().backward()
        optimizer.step()

    with lockstep.record(tmp_path / "ref", steps="0:2"):
        for width in (8, 8):
            _in_threads([lambda width=width: train(width)])  # type: ignore[misc]

    (rank,) = (recording := lockstep.open(tmp_path / "ref")).ranks.values()
    assert (recording.missing, rank.complete_steps) == ((), (0, 1))


def test_a_forward_beside_the_one_that_opens_the_step_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a step that one thread is about to open, with another thread in a forward of the same model meanwhile
    model = _model(8)
    optimizer = _sgd(model)
    outputs: list[Tensor] = []
    beside: list[threading.Thread] = []
    set_aside_by: list[threading.Thread] = []
    begin_step, set_aside = Session.begin_step, Session.set_aside

    def aside(session: Session) -> None:
        set_aside_by.append(threading.current_thread())
        set_aside(session)

    def begun(session: Session, step: int) -> None:
        if step == 1 and not beside:
            beside.append(threading.Thread(target=lambda: outputs.append(model(torch.ones(3, 4)))))
            beside[0].start()
            beside[0].join(0.5)  # it waits for this thread, so that this ends by its time
        begin_step(session, step)

    monkeypatch.setattr(Session, "begin_step", begun)
    monkeypatch.setattr(Session, "set_aside", aside)

    # when that step is recorded
    with lockstep.record(tmp_path / "ref", steps="0:2"):
        for _ in range(2):
            outputs = [model(torch.zeros(3, 4))]
            if beside:
                beside[0].join()
            torch.cat(outputs).square().mean().backward()
            optimizer.step()

    # then the calls of both are in it, and the other thread has not set the first one's aside
    assert beside[0] not in set_aside_by
    (rank,) = lockstep.open(tmp_path / "ref").ranks.values()
    modules = [call.site.module for call in rank.calls(1) if call.kind is CallKind.MODULE]
    assert sorted(modules) == sorted(["", "0", "1", "2"] * 2)
