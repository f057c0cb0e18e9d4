"""Write a recording of calls from elsewhere: read from a different tool's files, or made up."""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.errors import CorruptError, OutputExistsError
from lockstep.core.formulas import Stored
from lockstep.core.manifest import RankManifest, StepSummary
from lockstep.core.read_calls import LaterTensor, ReadCall
from lockstep.core.records import Call, Content, Frame, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.core.sketch import sketch_of
from lockstep.kernels.digest import digest_of_bytes
from lockstep.kernels.numbers import statistics_of
from lockstep.store import later_tensors, schema
from lockstep.store.content_rows import content_row
from lockstep.store.later_tensors import ReadLater
from lockstep.store.tensors import RawTensor, can_store
from lockstep.store.writer import RankWriter

Array = npt.NDArray[Any]


class CallsOfRank:
    """Makes the calls of one rank, as a recording holds them, of those that were read."""

    def __init__(self, rank: int) -> None:
        self._rank = f"rank{rank}"
        self._numbers: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._count = itertools.count()
        self._moments = itertools.count(1)
        self._calls = itertools.count()
        self._places: Counter[tuple[int, Phase, str, str]] = Counter()

    def made_of(self, read: ReadCall) -> Call:
        """The next call; equal bytes are one content, with its numbers and its elements the first time alone."""
        place = read.step, read.phase, read.module, read.op
        site = Site(read.module, read.op, self._places[place], read.phase)
        self._places[place] += 1
        own_class = read.op if read.kind is CallKind.MODULE else ""
        return Call(
            id=next(self._calls), rank=self._rank, step=read.step, kind=read.kind, site=site,
            module_class=read.module_class or own_class, parent=read.parent, sequence=self._moment(read.moment),
            stack=read.stack, arguments=dict(read.arguments), recomputed=False,
            records=tuple(self._records(read, site)),
        )  # fmt: skip

    def _moment(self, given: int | None) -> int:
        return next(self._moments) if given is None else given

    def _records(self, read: ReadCall, site: Site) -> Iterator[TensorRecord]:
        indices: Counter[Role] = Counter()
        for one in read.tensors:
            phase = one.phase or site.phase
            yield TensorRecord(
                rank=self._rank, step=read.step, site=replace(site, phase=phase), role=one.role,
                index=indices[one.role] if one.index is None else one.index, name=one.name,
                sequence=self._moment(one.moment), occurrence=0, content=self._content(one.value),
                argument=one.argument,
            )  # fmt: skip
            indices[one.role] += 1

    def _content(self, value: Array | LaterTensor) -> Content:
        if isinstance(value, LaterTensor):
            return self._later(value)
        # Not `ascontiguousarray`, which makes an axis where there is none.
        value = np.asarray(value, order="C")
        value = value.astype(value.dtype.newbyteorder("="), copy=False)
        if not can_store(str(value.dtype)):
            raise ValueError(f"a tensor of dtype {value.dtype}, which no framework has")
        dtype, digest = str(value.dtype), digest_of_bytes(value.reshape(-1).view(np.uint8))
        number, known = self._number((dtype, value.shape, digest))
        if known:
            return Content(number, dtype, value.shape, "cpu", digest, None)
        sketch = partial(sketch_of, value) if value.dtype.kind in "fc" else None
        numbers, load = statistics_of(value), partial(np.asarray, value)
        return Content(number, dtype, value.shape, "cpu", digest, numbers, sketch, loader=load)

    def _later(self, value: LaterTensor) -> Content:
        number, known = next(self._count), False
        if (known_by := value.known_by) is not None:
            number, known = self._number((value.dtype, value.shape, known_by), number)
        loader = None if value.load is None or known else ReadLater(value)
        return Content(
            number, value.dtype, value.shape, "", value.digest, value.statistics, note=value.note, loader=loader
        )  # fmt: skip

    def _number(
        self, key: tuple[str, tuple[int, ...], str], free: int | None = None
    ) -> tuple[int, bool]:
        """The number of a content, and whether it was given before."""
        known = self._numbers.get(key)
        if known is not None:
            return known, True
        self._numbers[key] = next(self._count) if free is None else free
        return self._numbers[key], False


def digested(tensor: LaterTensor) -> LaterTensor:
    """Return a tensor with its numbers, and the digest that a recording of the same bytes has; it is read for that.

    Raises
    ------
    CorruptError
        If its file is damaged, or its dtype is one that no framework has.
    """
    if not can_store(tensor.dtype):
        raise CorruptError(tensor.place, f"holds a tensor of dtype {tensor.dtype}, which none has")
    assert tensor.load is not None
    data = tensor.load()
    numbers = statistics_of(ReadLater(replace(tensor, load=lambda: data))())
    return replace(tensor, statistics=numbers, digest=digest_of_bytes(data))


class RankOnDisk:
    """Writes one rank's calls, one after the other, into a folder that is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._writer = RankWriter(folder)
        self._stacks: dict[tuple[Frame, ...], int] = {}
        self._modules: dict[str, str] = {}
        self._steps: Counter[int] = Counter()
        self._known: set[int] = set()

    def add(self, call: Call) -> None:
        """Add the next call."""
        for record in call.records:
            if record.content.id not in self._known:
                self._known.add(record.content.id)
                self._add_content(record.content)
            self._writer.add_record(
                (
                    call.id, record.site.phase.value, record.role.value, record.index, record.name,
                    record.sequence, record.occurrence, record.content.id, record.argument, "", record.edge,
                )
            )  # fmt: skip
        self._writer.add_call(_call_row(call, self._stack(call.stack)))
        self._steps[call.step] += 1
        if call.module_class and call.site.module not in self._modules:
            self._modules[call.site.module] = call.module_class
            self._writer.add_module((call.site.module, call.module_class, 0, True, "{}"))

    def _add_content(self, content: Content) -> None:
        loader = content.loader
        if isinstance(loader, ReadLater):
            self._leave(content, loader.tensor)
        else:
            data = None if loader is None else content.load()
            _add_content(self._writer, content, data)

    def _leave(self, content: Content, tensor: LaterTensor) -> None:
        """A tensor stays where it lies."""
        later_tensors.keep(self._folder, content.id, tensor)
        _add_content(self._writer, content, None)

    def _stack(self, frames: tuple[Frame, ...]) -> int:
        """The number of a stack; -1 for none."""
        if not frames:
            return -1
        if frames not in self._stacks:
            self._stacks[frames] = len(self._stacks)
            self._writer.add_stack(self._stacks[frames], frames)
        return self._stacks[frames]

    def finish(self, manifest: RankManifest) -> None:
        """Write the manifest, with the steps that there were, and wait for all of it.

        Raises
        ------
        OutputExistsError
            If it cannot be written.
        """
        steps = sorted(self._steps.items())
        manifest.steps = [StepSummary(step, complete=True, calls=count) for step, count in steps]
        manifest.trained = len(steps)
        frames = (frame for frames in self._stacks for frame in frames)
        manifest.sources = sorted({frame.file for frame in frames if not frame.library})
        self._writer.end(lambda: dataclasses.asdict(manifest))
        self._writer.wait()
        if self._writer.failure:
            raise OutputExistsError(f"{self._writer.directory}: {self._writer.failure}")


class WholeRankOnDisk(RankOnDisk):
    """The same, with every tensor of a different tool's files copied into it."""

    def _leave(self, content: Content, tensor: LaterTensor) -> None:
        whole = tensor.load is not None and can_store(tensor.dtype)
        _add_content(self._writer, content, tensor.load() if whole and tensor.load else None)


def closed_manifest(rank: int, world_size: int, command: list[str]) -> RankManifest:
    """The manifest of a rank whose recording has come to its end."""
    return RankManifest(
        schema.SCHEMA_VERSION, f"rank{rank}", world_size, 1, command, platform.python_version(),
        state="complete", devices=["cpu"],
    )  # fmt: skip


def _call_row(call: Call, stack: int) -> tuple[object, ...]:
    return (
        call.id, call.step, call.kind.value, call.site.phase.value, call.site.module,
        call.module_class, call.site.op, call.site.call, call.parent, call.sequence, stack,
        json.dumps(call.arguments), call.recomputed, "", schema.NO_CONTENT,
    )  # fmt: skip


def _add_content(writer: RankWriter, content: Content, values: Array | None) -> None:
    place = None
    if values is not None:
        data = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
        shard = writer.add_tensor(RawTensor(content.id, content.dtype, content.shape, data))
        place = Stored(shard, content.id)
    sketch = None if content.sketch is None else content.sketch.astype("<f8").tobytes()
    kept = content.digest, content.statistics, sketch, place
    writer.add_content(
        content_row(
            content.id, content.dtype, content.shape, content.device, *kept, content.note or None
        )
    )
