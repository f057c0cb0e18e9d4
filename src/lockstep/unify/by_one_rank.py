"""A recording of several ranks as one of a single rank, by the tensors of a run of one rank.

The run of one rank shows what a whole tensor looks like; `data_parallel` and `tensor_parallel` tell how ranks hold it.
What cannot be put together is listed, and is not compared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from lockstep.core.content_notes import Note, NoteKind
from lockstep.core.dependence import Dependence
from lockstep.core.dims import Dims, Mesh
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.manifest import NotSeen
from lockstep.core.read_calls import Bytes, LaterTensor, ReadCall, ReadTensor
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.states import StateRecord
from lockstep.core.text import listed
from lockstep.store.reader import RankRecording, Recording
from lockstep.store.tensors import can_store
from lockstep.store.written_calls import digested
from lockstep.unify.collective_sums import BETWEEN_RANKS
from lockstep.unify.data_parallel import DataForms
from lockstep.unify.dtensor_placements import placed_by
from lockstep.unify.joined_parts import Array, UnlikeDimsError, copies_apart
from lockstep.unify.one_recording import (
    Calls,
    Key,
    Numbered,
    Told,
    calls_by_key,
    made_of,
    place_of,
    read_call,
)
from lockstep.unify.prefetching import without_fetched
from lockstep.unify.rank_layouts import Form, Spread, apart_words, together
from lockstep.unify.tensor_parallel import TensorForms
from lockstep.unify.tensors_of_ranks import (
    Forms,
    Seen,
    batches_of,
    partner_of,
    together_by_record,
)
from lockstep.unify.whole_tensor import Parts, elements_of, encoded

Group = tuple[Sequence[Mapping[Key, Call]], Mapping[Key, Call]]


def as_global_batch(many: Recording, one: Recording) -> Recording:
    """Return the recording of one rank that the ranks of a training make together.

    many: Of all ranks of a training, `rank0` to the last.
    one: Of the same training on one rank, with the same global batch.

    Raises RecordingError if one of them cannot be read.
    """
    ranks = {number: many.ranks[f"rank{number}"] for number in range(len(many.ranks))}
    (alone,) = one.ranks.values()
    shared = _share_a_batch(list(ranks.values()), alone)
    forms: Forms = TensorForms(len(ranks)) if shared else DataForms(list(ranks.values()))
    joiner = Joiner(many.path, list(ranks.values()), alone, forms)
    return made_of(
        many, ranks, forms.name, joiner.calls, joiner.of_state, lambda: forms.sums_losses
    )


def _share_a_batch(ranks: Sequence[RankRecording], one: RankRecording) -> bool:
    """Whether every rank was given the whole batch of one rank in the first step."""
    steps = set.intersection(*(set(rank.steps) for rank in (*ranks, one)))
    if not steps:
        return False
    by_rank = [calls_by_key(rank.calls(min(steps))) for rank in ranks]
    batches = list(batches_of(by_rank, calls_by_key(one.calls(min(steps)))))
    return bool(batches) and all(
        seen.equal and all(shape == seen.whole_shape for shape in seen.shapes) for seen in batches
    )


class Joiner:
    """Puts the calls of all ranks together, step by step.

    path: Where their recording lies.
    ranks, one: Those, and the one that trains on the whole batch.
    forms: Tells how they hold tensors.
    """

    def __init__(
        self, path: Path, ranks: Sequence[RankRecording], one: RankRecording, forms: Forms
    ) -> None:
        self._path, self.ranks, self._one, self._forms = path, ranks, one, forms
        self._told = Told()
        self._between = self._shared = self._fetched = self._untaken = 0
        self._numbers: dict[Numbered, int] = {}
        self._dependences = {rank.name: Dependence(rank.steps, rank.calls) for rank in ranks}

    # --- calls

    def calls(self) -> Calls:
        """Return every call, and the calls that could not be put together."""
        for step in self._told.steps_of(dict(enumerate(self.ranks)), self._path):
            yield from self._step(step)
        yield from self.said()

    def said(self) -> Iterator[NotSeen]:
        """Return sentences about calls that could not be put together or were left out."""
        yield from self._told.gaps()
        yield from self._forms.notes()
        if self._shared:
            what = "each parameter is updated by one rank alone, whose update is compared"
            yield NotSeen("updates of every rank", what)
        if self._untaken:
            what = f"their rank updates a different parameter; {self._untaken} were left out"
            yield NotSeen("gradients that no update takes", what)
        if self._between:
            what = f"one rank makes none; {self._between} were left out"
            yield NotSeen("calls between ranks", what)

        if self._fetched:
            what = f"they fetch other samples in each run; {self._fetched} were left out"
            yield NotSeen("calls that fetch a later batch", what)

    def of_state(self, state: StateRecord) -> Form:
        """How ranks hold a state."""
        return self._forms.of_state(state.name.partition("|")[0])

    def _step(self, step: int) -> Iterator[ReadCall]:
        for by_rank, whole in self.groups(step):
            self._forms.begin(step, by_rank, whole)
            yield from (call for _, call in self._group(by_rank, whole))

    def groups(self, step: int) -> Iterator[Group]:
        """Return the calls of a step on each rank and on the one, by key; several if batches come in parts."""
        whole = self._one.calls(step) if step in self._one.steps else []
        ranks = [calls_by_key(rank.calls(step)) for rank in self.ranks]
        yield [self.without_fetched(rank) for rank in ranks], calls_by_key(whole)

    def without_fetched(self, part: Mapping[Key, Call]) -> Mapping[Key, Call]:
        """Return the calls of a part without those that fetch a later batch, which are counted."""
        kept = without_fetched(part)
        self._fetched += len(part) - len(kept)
        return kept

    def _group(
        self, by_rank: Sequence[Mapping[Key, Call]], whole: Mapping[Key, Call]
    ) -> Iterator[tuple[Key, ReadCall]]:
        shared = _updates_of_one_rank(by_rank)
        owners = {key[2]: call.rank for key, call in shared.items()}
        self._shared += len(shared)
        for key, call in shared.items():
            yield key, self._call([call], whole.get(key), _after(call, by_rank))
        for key in dict.fromkeys(key for found in by_rank for key in found):
            calls = [found[key] for found in by_rank if key in found]
            if key in shared:
                continue
            if calls[0].site.op.startswith(BETWEEN_RANKS) or self._forms.divides_a_sum(calls[0]):
                self._between += 1
            elif len(calls) == len(by_rank):
                yield key, self._call(calls, whole.get(key))
            else:
                yield from self._of_some(key, calls, whole.get(key), owners)

    def _of_some(
        self, key: Key, calls: Sequence[Call], partner: Call | None, owners: Mapping[object, str]
    ) -> Iterator[tuple[Key, ReadCall]]:
        """A call that not every rank makes: that of the rank which updates a parameter, or nothing."""
        owner = owners.get(key[2])
        own = [call for call in calls if call.rank == owner]
        if own:
            yield key, self._call(own, partner)
        elif owner is not None and calls[0].kind is CallKind.GRADIENT:
            self._untaken += len(calls)
        elif owner is None:
            alone = calls[0].rank != self.ranks[0].name
            why = f"{calls[0].rank} alone made them" if alone else "not every rank made the call"
            self._apart(why, str(calls[0].site), calls)
            if partner is not None and self._are_beside(calls):
                yield key, read_call(calls[0], [], self._numbers, partner.arguments)

    def _apart(self, why: str, place: str, calls: Sequence[Call]) -> None:
        """Note what could not be put together; it is no gap where nothing trained depends on it."""
        found = self._told.beside if self._are_beside(calls) else self._told.apart[why]
        found.append(place)

    def _are_beside(self, calls: Sequence[Call]) -> bool:
        return all(self._dependences[call.rank].beside(call) for call in calls)

    def _call(
        self, calls: Sequence[Call], partner: Call | None, after: Sequence[TensorRecord] = ()
    ) -> ReadCall:
        call = calls[0]
        tensors = []
        for record, records in together_by_record(calls):
            place = place_of(record, call)
            if record.occurrence:
                self._apart("it is of a second backward", place, calls)
            elif len(records) < len(calls):
                self._apart("not every rank recorded it", place, calls)
            else:
                records = [*records, *after] if record.role is Role.PARAM_AFTER else records
                equal = record.digest is not None and len({each.digest for each in records}) == 1
                seen = Seen(call, records, partner_of(partner, record), equal)
                tensor = self._tensor(seen, place, calls)
                tensors.extend([] if tensor is None else [tensor])
        return read_call(call, tensors, self._numbers, self._forms.arguments(calls))

    # --- tensors

    def _tensor(self, seen: Seen, place: str, calls: Sequence[Call]) -> ReadTensor | None:
        record = seen.first
        try:
            later = self._whole(seen, place)
        except UnlikeDimsError as error:
            self._apart(str(error), place, calls)
            return None
        if later is None:
            return None
        return ReadTensor(
            record.role, record.name, later, record.argument, record.site.phase, record.sequence, record.index
        )  # fmt: skip

    def _whole(self, seen: Seen, place: str) -> LaterTensor | None:
        record = seen.first
        if len({each.dtype for each in seen.records}) > 1:
            raise UnlikeDimsError("ranks hold it in several dtypes")
        if record.content.told.kind is NoteKind.UNWRITTEN:
            return _as_on_one(record)
        if any(each.content.loader is None for each in seen.records) or not can_store(record.dtype):
            if seen.equal and seen.is_held:
                return _as_on_one(record)
            raise UnlikeDimsError("its elements were not kept (record with --save tensors)")
        if (placed := placed_by(record.content)) is not None:
            return self._placed(seen, placed, place)
        if record.content.told.kind is NoteKind.PART:
            return _joined(seen, _of_norms(record), 1)
        found = self._forms.form(seen)
        if found is None:
            return None
        if found[0].spread is Spread.COPIES and not seen.equal:
            return self._unlike_copies(seen, place)
        return _joined(seen, *found)

    def _placed(self, seen: Seen, placed: tuple[Dims, Mesh], place: str) -> LaterTensor:
        """What torch.distributed has placed on the ranks says itself how it is put together."""
        contents = {number: one.content for number, one in enumerate(seen.records)}
        dims, mesh = placed
        if mesh.ranks != len(contents):
            raise UnlikeDimsError(f"it lies on a mesh of {mesh.ranks} of the {len(contents)} ranks")
        later, found = Parts(contents, dims, mesh, seen.first.name).whole()
        if found is not None and found.copies > 1:
            self._told.copies.append(place)
        return later

    def _unlike_copies(self, seen: Seen, place: str) -> LaterTensor:
        """What every rank should hold alike, and does not: the first where rounding explains it, else all of them."""
        parts, dtype = seen.parts, seen.first.dtype
        if len({one.shape for one in parts}) > 1:
            raise UnlikeDimsError(f"copies have the shapes {sorted({one.shape for one in parts})}")
        if _far_apart(parts) <= copies_apart(seen.first.name, dtype):
            self._told.rounded.append(place)
            given, note = parts[0], ""
        else:
            self._told.copies.append(place)
            given, note = np.stack(parts), str(_unlike(seen))
        data = encoded(given, dtype)
        return digested(LaterTensor(dtype, given.shape, load=lambda: data, note=note))


def _unlike(seen: Seen) -> Note:
    """Which ranks hold other copies than the one rank does; else than most ranks do, if most are alike."""
    digests = [each.digest for each in seen.records]
    whole, most = seen.whole, max(digests, key=digests.count)
    if whole is not None and whole.shape == seen.first.shape and is_floating(seen.first.dtype):
        far = [
            f"rank{number}'s is {words}"
            for number, part in enumerate(seen.parts)
            if (words := apart_words(part, whole, seen.first.dtype))
        ]
    else:
        is_most = digests.count(most) * 2 > len(digests)
        odd = [number for number, one in enumerate(digests) if one != most] if is_most else []
        far = [f"rank{number}'s is unlike that of most ranks" for number in odd]
    if not far:
        return Note(NoteKind.COPIES_DIFFER, "replicated")
    return Note(NoteKind.RANKS_DIFFER, listed(far, 3))


def _updates_of_one_rank(by_rank: Sequence[Mapping[Key, Call]]) -> dict[Key, Call]:
    """The updates of a step where ranks share out the parameters, as ZeroRedundancyOptimizer does; else none."""
    updates: dict[str, list[tuple[Key, Call]]] = defaultdict(list)
    for found in by_rank if len(by_rank) > 1 else ():
        for key, call in found.items():
            if call.kind is CallKind.OPTIMIZER:
                updates[call.site.op].append((key, call))
    once = (own for own in updates.values() if len(dict(own)) == len(own))
    return {key: call for own in once for key, call in own}


def _after(update: Call, by_rank: Sequence[Mapping[Key, Call]]) -> list[TensorRecord]:
    """What other ranks hold of a parameter once it was updated by one of them, and sent to all."""
    names = {one.name for one in update.with_role(Role.PARAM_AFTER)}
    return [
        record
        for found in by_rank
        for call in found.values()
        if call.kind is CallKind.OPTIMIZER and call.rank != update.rank
        for record in call.with_role(Role.PARAM_AFTER)
        if record.name in names
    ]


def _joined(seen: Seen, form: Form, divided_by: int) -> LaterTensor:
    """The tensor of all ranks, made again whenever it is asked for."""
    dtype, records = seen.first.dtype, seen.records

    def load() -> Bytes:
        return encoded(together(seen.parts, form, dtype, divided_by=divided_by), dtype)

    spread = Spread.BATCH if form.spread is Spread.BATCH else Spread.COPIES
    empty = [np.empty(shape, "b") for shape in seen.shapes]
    shape = together(empty, replace(form, spread=spread, pointing=None), "int8").shape
    note = ""
    if form.spread in (Spread.SUM, Spread.MEAN) and is_floating(dtype):
        ways = divided_by * (len(records) if form.spread is Spread.MEAN else 1)
        note = _added_up(records, ways)
    return digested(LaterTensor(dtype, shape, load=load, note=note))


def _of_norms(record: TensorRecord) -> Form:
    """The form of a tensor that torch.distributed placed as the norms of parts, as for clipping.

    Raises UnlikeDimsError if it is placed otherwise.
    """
    if "_NormPartial(2.0)" not in record.content.told.fields[1]:
        raise UnlikeDimsError(f"nothing tells how to put together a {record.content.note}")
    return Form(Spread.NORM)


def _as_on_one(record: TensorRecord) -> LaterTensor:
    return LaterTensor(
        record.dtype, record.shape, record.statistics, record.digest, None, record.content.note
    )


def _added_up(records: Sequence[TensorRecord], ways: int) -> str:
    """The note that tells how far the roundings of the parts may take their sum, see `judge.rounded_parts`."""
    norms = [float(np.linalg.norm(elements_of(one.content).astype(np.float64))) for one in records]
    reach = unit_roundoff(records[0].dtype) * sum(norms) / ways
    return str(Note(NoteKind.ADDED_UP, len(records), f"{reach:.3e}")) if reach < np.inf else ""


def _far_apart(parts: Sequence[Array]) -> float:
    """The largest difference to the first, of the largest element."""
    wide = np.complex128 if parts[0].dtype.kind == "c" else np.float64
    first = parts[0].astype(wide)
    most = max(
        (float(np.abs(part.astype(wide) - first).max(initial=0.0)) for part in parts[1:]),
        default=0.0,
    )
    if not most < np.inf:
        return np.inf
    return most / max(float(np.abs(first).max(initial=0.0)), np.finfo(np.float64).tiny)


__all__ = ["Joiner", "as_global_batch"]
