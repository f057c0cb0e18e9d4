"""A recording of several ranks as that of one, by dims: each call once, with the tensors that ranks hold parts of.

Calls of the first rank stand for those of the others at the same site. Parts are put together when a tensor is asked
for, and once before, for its numbers and its digest; no whole is written anywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from lockstep.core.dims import Dims, Mesh
from lockstep.core.errors import UsageError
from lockstep.core.manifest import APART, NotSeen
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.records import Call, TensorRecord
from lockstep.core.states import StateRecord
from lockstep.store.reader import RankRecording, Recording
from lockstep.unify.dims_file import DimsFile
from lockstep.unify.dtensor_placements import placed_by
from lockstep.unify.joined_parts import UnlikeDimsError
from lockstep.unify.one_recording import (
    Numbered,
    Told,
    calls_by_key,
    made_of,
    place_of,
    read_call,
    record_key,
)
from lockstep.unify.whole_tensor import Parts

_RANK = re.compile(r"rank(\d+)")


def as_one_rank(recording: Recording, files: Sequence[DimsFile] = ()) -> Recording:
    """The recording of one rank that its ranks make together.

    files: What axes mean; of what several say of a tensor the first counts, and all of them before a tensor's
        placement.

    Raises UsageError if nothing says which mesh the ranks make, or another one than there are ranks. Raises
    RecordingError if it cannot be read.
    """
    ranks = {
        int(found[1]): rank
        for name, rank in recording.ranks.items()
        if (found := _RANK.fullmatch(name))
    }
    odd = [name for name in recording.ranks if not _RANK.fullmatch(name)]
    if odd:
        raise UsageError(
            f"{recording.path}: {odd[0]} is a second process of its rank, which no mesh has a place for"
        )
    joiner = _Joiner(recording.path, ranks, files, _mesh_of(recording, ranks, files))
    return made_of(recording, ranks, "its dims", joiner.calls, joiner.of_state, lambda: False)


def _mesh_of(
    recording: Recording, ranks: dict[int, RankRecording], files: Sequence[DimsFile]
) -> Mesh:
    size = max(*(rank.manifest.world_size for rank in ranks.values()), max(ranks) + 1)
    mesh = next((file.mesh for file in files if file.mesh is not None), None)
    over = list(dict.fromkeys(axis for file in files for axis in file.over))
    if mesh is None and len(over) == 1:
        mesh = Mesh({over[0]: size})
    if mesh is None:
        placed = (placed_by(record.content) for record in _first_records(ranks))
        mesh = next((one[1] for one in placed if one is not None and one[1].ranks == size), None)
    if mesh is None:
        raise UsageError(
            f"{recording.path}: nothing says which mesh its {size} ranks make; write for example `mesh: {{tp: {size}}}`"
            " into the file of --dims"
        )
    if mesh.ranks != size:
        sizes = ", ".join(f"{axis}: {number}" for axis, number in mesh.sizes.items())
        raise UsageError(
            f"{recording.path}: mesh {{{sizes}}} is one of {mesh.ranks} ranks, and the training had {size}"
        )
    return mesh


def _first_records(ranks: dict[int, RankRecording]) -> Iterator[TensorRecord]:
    rank = ranks[min(ranks)]
    for step in rank.steps[:1]:
        for call in rank.calls(step):
            yield from call.records


def is_placed(recording: Recording) -> bool:
    """Whether a tensor of a recording says itself how ranks hold it."""
    ranks = dict(enumerate(recording.ranks.values()))
    return bool(ranks) and any(placed_by(one.content) for one in _first_records(ranks))


def has_axes(recording: Recording) -> bool:
    """Return whether a tensor is placed over a mesh of several axes: then some ranks share a batch, and others not."""
    ranks = dict(enumerate(recording.ranks.values()))
    placed = (placed_by(one.content) for one in _first_records(ranks)) if ranks else iter(())
    return any(one is not None and len(one[1].sizes) > 1 for one in placed)


class _Joiner:
    """Puts the calls of several ranks together, step by step."""

    def __init__(
        self, path: Path, ranks: dict[int, RankRecording], files: Sequence[DimsFile], mesh: Mesh
    ) -> None:
        self._path, self._ranks, self._files, self._mesh = path, ranks, files, mesh
        self._told = Told()
        self._apart = self._told.apart
        self._numbers: dict[Numbered, int] = {}

    def calls(self) -> Iterator[ReadCall | NotSeen]:
        """Return every call, and the calls that could not be put together."""
        first, *others = sorted(self._ranks)
        for step in self._told.steps_of(self._ranks, self._path):
            by_rank = {
                number: calls_by_key(rank.calls(step)) for number, rank in self._ranks.items()
            }
            for key, call in by_rank[first].items():
                yield self._call(
                    call,
                    {number: by_rank[number][key] for number in others if key in by_rank[number]},
                )
            for number in others:
                for key, call in by_rank[number].items():
                    if key not in by_rank[first]:
                        self._apart[f"rank{number} alone made them"].append(str(call.site))
        yield from self._said()

    def _said(self) -> Iterator[NotSeen]:
        for number in sorted(set(range(self._mesh.ranks)) - set(self._ranks)):
            yield NotSeen(APART, f"rank{number} is not in the recording")
        yield from self._told.gaps()
        for file in self._files:
            if unused := list(file.unused):
                yield NotSeen(
                    "what all dims are for",
                    f"{unused[0]!r} of {Path(file.where).name} matches nothing here",
                )

    def _call(self, call: Call, others: dict[int, Call]) -> ReadCall:
        found = {
            number: {record_key(one): one for one in other.records}
            for number, other in others.items()
        }
        own = {record_key(one) for one in call.records}
        for number, by_key in found.items():
            for key, one in by_key.items():
                if key not in own:
                    why = f"rank{number} alone recorded them"
                    self._apart[why].append(place_of(one, call))
        tensors = []
        for record in call.records:
            key = record_key(record)
            records = {min(self._ranks): record}
            records.update(
                (number, by_key[key]) for number, by_key in found.items() if key in by_key
            )
            tensor = self._tensor(call, record, records)
            tensors.extend([] if tensor is None else [tensor])
        return read_call(call, tensors, self._numbers)

    def _tensor(
        self, call: Call, record: TensorRecord, records: dict[int, TensorRecord]
    ) -> ReadTensor | None:
        place = place_of(record, call)
        if record.occurrence:
            self._apart["it is of a second backward"].append(place)
            return None
        if absent := sorted(set(self._ranks) - set(records)):
            self._apart[f"rank{absent[0]} did not record it"].append(place)
            return None
        parts = Parts(
            {number: one.content for number, one in records.items()},
            self._dims(call, record),
            self._mesh,
            record.name,
        )
        try:
            later, found = parts.whole()
        except UnlikeDimsError as error:
            self._apart[str(error)].append(place)
            return None
        if found is not None and found.copies > 1:
            self._told.copies.append(place)
        elif found is not None and found.rounding:
            self._told.rounded.append(place)
        return ReadTensor(
            record.role, record.name, later, record.argument, record.site.phase, record.sequence, record.index
        )  # fmt: skip

    def _dims(self, call: Call, record: TensorRecord) -> Dims | None:
        told = next((dims for file in self._files if (dims := file.of(record, call.site))), None)
        if told is not None:
            return told
        placed = placed_by(record.content)
        return placed[0] if placed and placed[1].sizes.items() <= self._mesh.sizes.items() else None

    def of_state(self, state: StateRecord) -> tuple[Dims, Mesh] | None:
        """Return the axes of a state, by the name of its parameter."""
        told = (file.of_parameter(state.name.partition("|")[0]) for file in self._files)
        dims = next((one for one in told if one), None) if state.content.shape else None
        return None if dims is None else (dims, self._mesh)


__all__ = ["as_one_rank", "has_axes", "is_placed"]
