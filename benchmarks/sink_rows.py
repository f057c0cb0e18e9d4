"""What a row costs the thread that trains: the same rows given to the recorder's own `Session` and to a `Sink`."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import trainings
from bench import Bench, Row

import lockstep
from lockstep.capture.recorder import active_recorder
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.sink import Sink
from lockstep.capture.sink_call import Shared
from lockstep.core.manifest import Options
from lockstep.core.records import Call
from lockstep.store.reader import open_recording

_OPERATIONS = 200
_STEPS = 6
_SAVE = "sketch"

Held = dict[int, Any]
"""What stands for a content, by its number."""


def rows(bench: Bench) -> Iterator[Row]:
    """Blocks of steps in a session, in a sink and in one that is told each array once, in turn: one process."""
    target, operations = bench.directory / "rows", min(_OPERATIONS, bench.size.small_operations)
    calls = _recorded_calls(target, trainings.tiny_step(trainings.Operations(operations)))
    count = sum(1 + len(call.records) for call in calls)
    session, sink, shared = list[float](), list[float](), list[float]()
    for _ in range(2 * bench.rounds):
        session += _in_session(target, calls)
        sink += _in_sink(target, calls, lambda array: array)
        shared += _in_sink(target, calls, Shared)
    note = f"{count} rows a step, {len(calls)} of them calls; first and last step of each block left out"
    for what, times in (
        ("a row through `Session`", session),
        ("a row through `Sink`", sink),
        ("a row through `Sink`, each array told once", shared),
    ):
        median, best = (1e6 * one / count for one in (statistics.median(times), min(times)))
        yield Row(what, "us", median, best, None, note)


def _thread_seconds(work: Callable[[], object]) -> float:
    """Processor time of this thread for one call, whatever else the machine does."""
    start = time.thread_time()
    work()
    return time.thread_time() - start


def _recorded_calls(target: Path, step: Callable[[], None]) -> list[Call]:
    """The calls of one step of a tiny model."""
    with lockstep.record(target, steps="0:3", save=_SAVE):
        for _ in range(3):
            step()
    (rank,) = open_recording(target).ranks.values()
    calls = list(rank.calls(1))
    shutil.rmtree(target)
    return calls


def _numbers_for(calls: list[Call], random: np.random.Generator) -> dict[int, np.ndarray[Any, Any]]:
    """Numbers for each content, other ones in each step as in a training."""
    return {
        record.content.id: random.normal(size=record.shape).astype("f4")
        for call in calls
        for record in call.records
    }


def _in_session(target: Path, calls: list[Call]) -> list[float]:
    random, times = np.random.default_rng(0), list[float]()
    with lockstep.record(target, steps=f"0:{_STEPS}", save=_SAVE) as recording:
        recorder = active_recorder()
        assert recorder is not None
        for _ in range(_STEPS):
            numbers = _numbers_for(calls, random)
            held = {number: torch.as_tensor(array) for number, array in numbers.items()}
            session = recorder.begin()
            assert session is not None
            times.append(
                _thread_seconds(lambda held=held, to=session: _tell_session(to, calls, held))
            )
            times[-1] += _thread_seconds(recording.step)
    shutil.rmtree(target)
    return times[1:-1]


def _tell_session(session: Session, calls: list[Call], held: Held) -> None:
    with (
        Silence()
    ):  # as where a tap asks it: what is done with a tensor here is no call of the training
        for call in calls:
            site = call.site
            told = session.rows.plain_call(
                call.kind, site.phase, site.module, site.op, (), call.arguments
            )
            for record in call.records:
                content = session.contents.of(held[record.content.id])
                session.rows.add_record(
                    told, record.site.phase, record.role, record.index, record.name, content
                )
            session.rows.add_call(told)


def _in_sink(
    target: Path, calls: list[Call], given: Callable[[np.ndarray[Any, Any]], Any]
) -> list[float]:
    random, times = np.random.default_rng(0), list[float]()
    options = Options(steps=f"0:{_STEPS}", save=_SAVE)
    with Sink(target, {"numpy": np.__version__}, options=options) as sink:
        for _ in range(_STEPS):
            numbers = _numbers_for(calls, random)
            held = {number: given(array) for number, array in numbers.items()}
            sink.step()
            times.append(_thread_seconds(lambda held=held: _tell_sink(sink, calls, held)))
            times[-1] += _thread_seconds(sink.end_step)
    shutil.rmtree(target)
    return times[1:-1]


def _tell_sink(sink: Sink, calls: list[Call], held: Held) -> None:
    for call in calls:
        site = call.site
        told = sink.open_call(
            site.module, site.op, phase=site.phase, kind=call.kind, arguments=call.arguments
        )
        for record in call.records:
            array = held[record.content.id]
            told.record(
                record.role, record.name, array, index=record.index, phase=record.site.phase
            )
