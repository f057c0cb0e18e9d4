"""Writing a recording of calls that were not recorded here: read from what another tool wrote, or made up."""

from __future__ import annotations

import dataclasses
import itertools
import json
import platform
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.core.errors import OutputExistsError
from lockstep.core.manifest import RankManifest, StepSummary
from lockstep.core.records import Call, Content, Statistics, TensorRecord
from lockstep.core.site import CallKind, Phase, Role, Site
from lockstep.core.sketch import sketch_of
from lockstep.kernels.digest import digest_of_bytes
from lockstep.store import schema
from lockstep.store.small_tensors import columns_of
from lockstep.store.tensors import RawTensor, can_store
from lockstep.store.writer import RankWriter

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class ReadTensor:
    """One tensor of a call that another tool saw.

    Parameters
    ----------
    role
        What it is to the call.
    name
        What the code calls it ("args.0", "result"), or the full name of a parameter.
    value
        Its elements, of a dtype that NumPy has, in the framework's own shape.
    argument
        Which argument a parameter was ("args.1"), where `name` does not say it: such a call can be run again.
    """

    role: Role
    name: str
    value: Array
    argument: str = ""


@dataclass(frozen=True, slots=True)
class ReadCall:
    """One call that another tool saw, in order of time within its rank.

    Parameters
    ----------
    step, rank
        Numbers from 0.
    module, op
        Path of the module, and the operator as torch's API spells it, or the class of a module.
    tensors
        What went in and came out.
    kind, phase
        What was called, and when.
    arguments
        Plain arguments, `args.1` or `kwargs.dim`.
    """

    step: int
    module: str
    op: str
    tensors: Sequence[ReadTensor]
    rank: int = 0
    kind: CallKind = CallKind.OPERATOR
    phase: Phase = Phase.FORWARD
    arguments: Mapping[str, Any] = field(default_factory=dict)


class CallsOfRank:
    """Makes the calls of one rank, as a recording holds them, of those that were read."""

    def __init__(self, rank: int) -> None:
        self._rank = f"rank{rank}"
        self._numbers: dict[tuple[str, tuple[int, ...], str], int] = {}
        self._moments = itertools.count(1)
        self._calls = itertools.count()
        self._places: Counter[tuple[int, Phase, str, str]] = Counter()

    def made_of(self, read: ReadCall) -> Call:
        """The next call; equal bytes are one content, with its numbers and its elements the first time alone."""
        place = read.step, read.phase, read.module, read.op
        site = Site(read.module, read.op, self._places[place], read.phase)
        self._places[place] += 1
        return Call(
            id=next(self._calls), rank=self._rank, step=read.step, kind=read.kind, site=site,
            module_class=read.op if read.kind is CallKind.MODULE else "", parent=-1, sequence=next(self._moments),
            stack=(), arguments=dict(read.arguments), recomputed=False, records=tuple(self._records(read, site)),
        )  # fmt: skip

    def _records(self, read: ReadCall, site: Site) -> Iterator[TensorRecord]:
        indices: Counter[Role] = Counter()
        for one in read.tensors:
            yield TensorRecord(
                rank=self._rank, step=read.step, site=site, role=one.role, index=indices[one.role], name=one.name,
                sequence=next(self._moments), occurrence=0, content=self._content(one.value),
                argument=one.argument,
            )  # fmt: skip
            indices[one.role] += 1

    def _content(self, value: Array) -> Content:
        # Not `ascontiguousarray`, which makes an axis where there is none.
        value = np.asarray(value, order="C")
        value = value.astype(value.dtype.newbyteorder("="), copy=False)
        if not can_store(str(value.dtype)):
            raise ValueError(f"a tensor of dtype {value.dtype}, which no framework has")
        dtype, digest = str(value.dtype), digest_of_bytes(value.reshape(-1).view(np.uint8))
        known = (dtype, value.shape, digest) in self._numbers
        number = self._numbers.setdefault((dtype, value.shape, digest), len(self._numbers))
        if known:
            return Content(number, dtype, value.shape, "cpu", digest, None)
        sketch = partial(sketch_of, value) if value.dtype.kind in "fc" else None
        numbers, load = statistics_of(value), partial(np.asarray, value)
        return Content(number, dtype, value.shape, "cpu", digest, numbers, sketch, loader=load)


def statistics_of(value: Array) -> Statistics:
    """Statistics as the recorder takes them."""
    flat = np.abs(value).ravel() if value.dtype.kind == "c" else value.astype(np.float64).ravel()
    finite = flat[np.isfinite(flat)]
    empty = finite.size == 0
    return Statistics(
        minimum=float("nan") if empty else float(finite.min()),
        maximum=float("nan") if empty else float(finite.max()),
        mean=float("nan") if empty else float(finite.mean()),
        norm=float(np.linalg.norm(finite)),
        nan_count=int(np.isnan(flat).sum()),
        inf_count=int(np.isinf(flat).sum()),
        zero_count=int((flat == 0).sum()),
    )


class RankOnDisk:
    """Writes one rank's calls, one after the other, into a folder that is made."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._writer = RankWriter(folder)
        self._modules: dict[str, str] = {}
        self._steps: Counter[int] = Counter()
        self._known: set[int] = set()

    def add(self, call: Call) -> None:
        """Add the next call."""
        for record in call.records:
            if record.content.id not in self._known:
                self._known.add(record.content.id)
                _add_content(self._writer, record.content)
            self._writer.add_record(
                (
                    call.id, record.site.phase.value, record.role.value, record.index, record.name,
                    record.sequence, record.occurrence, record.content.id, record.argument, "",
                )
            )  # fmt: skip
        self._writer.add_call(_call_row(call))
        self._steps[call.step] += 1
        if call.module_class and call.site.module not in self._modules:
            self._modules[call.site.module] = call.module_class
            self._writer.add_module((call.site.module, call.module_class, 0, True, "{}"))

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
        self._writer.end(lambda: dataclasses.asdict(manifest))
        self._writer.wait()
        if self._writer.failure:
            raise OutputExistsError(f"{self._writer.directory}: {self._writer.failure}")


def closed_manifest(rank: int, world_size: int, command: list[str]) -> RankManifest:
    """The manifest of a rank whose recording has come to its end."""
    return RankManifest(
        schema.SCHEMA_VERSION, f"rank{rank}", world_size, 1, command, platform.python_version(),
        state="complete", devices=["cpu"],
    )  # fmt: skip


def _call_row(call: Call) -> tuple[object, ...]:
    return (
        call.id, call.step, call.kind.value, call.site.phase.value, call.site.module,
        call.module_class, call.site.op, call.site.call, call.parent, call.sequence, -1,
        json.dumps(call.arguments), call.recomputed, "", schema.NO_CONTENT,
    )  # fmt: skip


def _add_content(writer: RankWriter, content: Content) -> None:
    stored = shard = None
    if content.loader is not None:
        data = np.ascontiguousarray(content.load()).reshape(-1).view(np.uint8)
        stored = content.id
        shard = writer.add_tensor(RawTensor(stored, content.dtype, content.shape, data))
    sketch = None if content.sketch is None else content.sketch.astype("<f8").tobytes()
    assert content.statistics is not None
    writer.add_content(
        (
            content.id, content.dtype, list(content.shape), content.device, content.digest,
            *columns_of(content.statistics), sketch, stored, shard, None,
        )
    )  # fmt: skip
