"""Give modules the inputs that a reference recorded, so that each is judged by itself.

Only what a step computes is given: in the reference the input is a result of an earlier call of the step, and here it
is one of the same call. So that call is judged, and nothing between it and the module is hidden. Batches, constants and
parameters stay as they are, and what an operator of the candidate alone has made. What a call writes to in place stays
too, as the script may go on with it.

The given tensor is a copy of the candidate's own, with the reference's bits: gradients flow as before, and nothing but
the module sees it.
"""

from __future__ import annotations

import weakref
from collections import Counter, defaultdict
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._C import TensorBase
from torch.utils._python_dispatch import _disable_current_modes

from lockstep.capture.calls.leaves import NamedTensor as NamedValue
from lockstep.capture.calls.leaves import argument_tensors
from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.calls.surroundings import changes_in_place
from lockstep.capture.recording.rank_recording import RankRecording
from lockstep.capture.silence import Silence
from lockstep.core.errors import CorruptError, RecordingError
from lockstep.core.manifest import GIVEN_INPUTS, NotSeen
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.text import words_of
from lockstep.core.windows import GivenInput
from lockstep.devices.methods import copy_, detach
from lockstep.devices.tensor_numbers import digest_of, dtype_name
from lockstep.store.named_files import NamedTensor, whole_tensor
from lockstep.store.reader import open_recording

_Maker = tuple[str, str, int]
"""Module, operator and number of the call that gave a tensor."""
_Key = tuple[str, bool]
"""A module's path, and whether activation checkpointing runs it again."""


_Made = dict[int, list[tuple[int, _Maker]]]


@dataclass(frozen=True, slots=True)
class Computed:
    """An input that the reference has computed, and the last call that gave it."""

    tensor: NamedTensor
    maker: _Maker


@dataclass(slots=True)
class _Step:
    """The inputs that the reference computed in a step, by module and by which of its calls, and how many had come."""

    number: int
    inputs: dict[_Key, list[dict[str, Computed]]]
    begun: Counter[_Key] = field(default_factory=Counter)
    makers: dict[int, tuple[weakref.ref[torch.Tensor], _Maker]] = field(default_factory=dict)

    def is_made_by(self, tensor: torch.Tensor, maker: _Maker) -> bool:
        """Whether a call of this step gave a tensor."""
        known = self.makers.get(id(tensor))
        return known is not None and known[0]() is tensor and known[1] == maker


class GivenInputs:
    """Replaces inputs of modules by those of a reference.

    source: The reference, recorded with whole tensors.
    recording: Of this process's rank; its manifest tells what was given.
    """

    def __init__(self, source: Path, recording: RankRecording) -> None:
        self._source, self._recording = source, recording
        self._step: _Step | None = None

    def made(self, call: OpenCall, outputs: Sequence[NamedValue]) -> None:
        """A call of this step has ended, and gave these."""
        with Silence(self._fail):
            step, maker = self._now(), (call.path, call.op, call.number)
            for _, tensor in outputs:
                step.makers[id(tensor)] = weakref.ref(tensor), maker

    def _fail(self, error: Exception) -> None:
        self._say(f"{type(error).__name__}: {words_of(error)}")

    def replace(
        self, path: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, recomputed: bool
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return a module's arguments, those that the step computed replaced by the reference's."""
        try:
            return self._replaced((path, recomputed), args, kwargs)
        except (RecordingError, OSError, RuntimeError, ValueError) as error:
            self._say(f"{path}: {type(error).__name__}: {words_of(error)}")
            return args, kwargs

    def _replaced(
        self, key: _Key, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        step, manifest = self._now(), self._recording.manifest
        call = step.begun[key]
        step.begun[key] += 1
        calls = step.inputs.get(key, ())
        wanted = calls[call] if call < len(calls) else {}
        given: dict[int, torch.Tensor] = {}
        for name, own in argument_tensors(args, kwargs):
            kept = wanted.get(name)
            if kept is None or manifest is None or not _fits(own, kept.tensor):
                continue
            if not step.is_made_by(own, kept.maker):
                continue
            with Silence():
                digest = digest_of(detach(own))
            given[id(own)] = _copy_of(own, kept.tensor)
            manifest.given_inputs.append(GivenInput(step.number, key[0], call, name, digest))
        if not given:
            return args, kwargs
        return _with(args, given), {name: _with(one, given) for name, one in kwargs.items()}

    def _now(self) -> _Step:
        number = self._recording.steps.number
        if self._step is None or self._step.number != number:
            with Silence():
                inputs = self._inputs(number)
            self._step = _Step(number, inputs)
        return self._step

    def _inputs(self, step: int) -> dict[_Key, list[dict[str, Computed]]]:
        rank = open_recording(self._source).ranks.get(self._recording.rank_directory.name)
        if rank is None or step not in rank.complete_steps:
            self._say(f"{self._source} has no step {step} of this rank")
            return {}
        found = inputs_computed(rank.calls(step))
        if not found:
            self._say(
                f"{self._source} has no whole inputs of modules; record it with --save tensors"
            )
        return found

    def _say(self, why: str) -> None:
        manifest = self._recording.manifest
        gap = NotSeen(GIVEN_INPUTS, why)
        if manifest is not None and gap not in manifest.not_seen:
            manifest.not_seen.append(gap)


def inputs_computed(calls: list[Call]) -> dict[_Key, list[dict[str, Computed]]]:
    """Return whole inputs of modules that are results of earlier calls of the step, by module and call, then by name.

    calls: All calls of one step, in order of time.
    """
    made: _Made = defaultdict(list)
    written: set[int] = set()
    for call in calls:
        if _writes(call):
            written |= {record.content.id for record in call.with_role(Role.INPUT)}
        for record in call.with_role(Role.OUTPUT):
            maker = call.site.module, call.site.op, call.site.call
            made[record.content.id].append((record.sequence, maker))
    found: dict[_Key, list[dict[str, Computed]]] = defaultdict(list)
    for call in calls:
        if call.kind is CallKind.MODULE:
            found[call.site.module, call.recomputed].append(_whole(call, made, written))
    return found if any(one for each in found.values() for one in each) else {}


def _writes(call: Call) -> bool:
    """Whether a call writes to what it was given: `add_`, `inplace=True`, a result that is none."""
    flags = (value for name, value in call.arguments.items() if name.endswith("inplace"))
    beside = (not one.name.startswith("result") for one in call.with_role(Role.OUTPUT))
    return changes_in_place(call.site.op) or any(flags) or any(beside)


def _whole(call: Call, made: _Made, written: Container[int]) -> dict[str, Computed]:
    found = {}
    for record in call.with_role(Role.INPUT):
        whole, makers = whole_tensor(record.name, record), _makers(record, made)
        if whole is not None and makers and record.content.id not in written:
            found[record.name] = Computed(whole, max(makers)[1])
    return found


def _makers(record: TensorRecord, made: _Made) -> list[tuple[int, _Maker]]:
    """Calls that gave an input, in the same step and before, each with its place in time."""
    return [one for one in made.get(record.content.id, ()) if one[0] < record.sequence]


def _fits(own: torch.Tensor, kept: NamedTensor) -> bool:
    """Whether an own input was computed with a history, and is of the same kind."""
    return (
        type(own) is torch.Tensor
        and own.grad_fn is not None
        and own.layout is torch.strided
        and (dtype_name(own.dtype), tuple(own.shape)) == (kept.dtype, tuple(kept.shape))
    )


def _copy_of(own: torch.Tensor, kept: NamedTensor) -> torch.Tensor:
    """A copy of a tensor with its history, and with the reference's bits."""
    elements = torch.frombuffer(bytearray(kept.undecoded().tobytes()), dtype=own.dtype)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        given: torch.Tensor = TensorBase.clone(own)
    with Silence():
        copy_(detach(given), elements.reshape(kept.shape))
        if digest_of(detach(given)) != digest_of(elements.reshape(kept.shape)):
            raise CorruptError(kept.name, "the bits of the reference's input did not arrive")
    return given


def _with(value: Any, given: Mapping[int, torch.Tensor]) -> Any:
    """A value with the given tensors in it: plain tuples, lists and dictionaries are made anew."""
    if id(value) in given:
        return given[id(value)]
    if type(value) in (tuple, list):
        return type(value)(_with(one, given) for one in value)
    if type(value) is dict:
        return {name: _with(one, given) for name, one in value.items()}
    return value
