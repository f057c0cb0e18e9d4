"""What `--save program` adds to `--save sketch`: seconds of a step, and bytes on disk, of a GPT-2 and a ResNet."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
import trainings
from bench import AtMost, Bench, Row, Size, bytes_below, ratio_row, seconds

import lockstep
from lockstep.core.operators import Family, family_of
from lockstep.core.records import Call, Content
from lockstep.core.site import CallKind, Role
from lockstep.store.reader import open_recording

_BAR = AtMost(1.2)
_STEPS = 4
_SAVES = ("sketch", "program")

Make = Callable[[Size, str], trainings.Training]


@dataclass
class _Costs:
    """Of one weight: seconds of first and later steps of a recording, and bytes of one of a single step."""

    first: list[float] = field(default_factory=list)
    within: list[float] = field(default_factory=list)
    size_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)


def rows(bench: Bench) -> Iterator[Row]:
    """Recordings of both weights in turn, each of a fresh training."""
    for name, make in (("GPT-2", trainings.gpt2), ("ResNet", trainings.resnet)):
        costs = {save: _Costs() for save in _SAVES}
        for number in range(bench.rounds):
            for save in _SAVES if number % 2 else _SAVES[::-1]:
                _measure(bench, make, save, costs[save])
        step = make(bench.size, bench.device)
        parameters = sum(one.nbytes for one in step.model.parameters())
        yield from _rows(name, costs["sketch"], costs["program"], parameters)


def _measure(bench: Bench, make: Make, save: str, costs: _Costs) -> None:
    """Recordings of one step and of some more, from the first step of an optimizer on."""
    target = bench.directory / "program"
    step = make(bench.size, bench.device)
    with lockstep.record(target, steps=f"0:{_STEPS}", save=save):
        costs.first.append(seconds(step))
        costs.within += [seconds(step) for _ in range(_STEPS - 1)]
    shutil.rmtree(target)
    if not costs.size_bytes:
        step = make(bench.size, bench.device)
        with lockstep.record(target, steps="0:1", save=save):
            step()
        costs.size_bytes, costs.parts = bytes_below(target), _parts(target)
        shutil.rmtree(target)


def _rows(name: str, sketch: _Costs, program: _Costs, parameters_bytes: int) -> Iterator[Row]:
    what = f"{name}: the first step, parameters copied, beside one with sketches"
    yield ratio_row(what, program.first, sketch.first, bar=_BAR)
    what = f"{name}: a later step beside one with sketches"
    yield ratio_row(what, program.within, sketch.within, bar=_BAR)
    yield Row(f"{name}: one step with sketches", "MB", sketch.size_bytes / 1e6)
    parts = ", ".join(f"{what} {size / 1e6:.2f}" for what, size in program.parts.items())
    note = f"parameters {parameters_bytes / 1e6:.2f} MB; kept whole, in MB: {parts}"
    yield Row(f"{name}: one step with --save program", "MB", program.size_bytes / 1e6, note=note)


def _parts(target: Path) -> dict[str, int]:
    """Bytes that were kept whole, by what they are; each content once."""
    found: dict[str, int] = {}
    seen: set[int] = set()
    for rank in open_recording(target).ranks.values():
        for call in (one for one in rank.calls(rank.steps[0]) if one.kind is not CallKind.MODULE):
            for record in call.records:
                content = record.content
                if content.loader is not None and content.id not in seen:
                    seen.add(content.id)
                    what = _what(call, record.role, content)
                    found[what] = found.get(what, 0) + _bytes(content)
    return found


def _what(call: Call, role: Role, content: Content) -> str:
    if call.kind is CallKind.INIT:
        return "parameters and buffers"
    if call.kind is CallKind.DATA:
        return "batch"
    if role in (Role.STATE, Role.STATE_AFTER):
        return "states"
    if family_of(call.site.op) is Family.DROPOUT:
        return "dropout"
    return "other" if content.dtype.startswith("float") else "whole numbers and booleans"


def _bytes(content: Content) -> int:
    return content.numel * torch.empty((), dtype=getattr(torch, content.dtype)).element_size()
