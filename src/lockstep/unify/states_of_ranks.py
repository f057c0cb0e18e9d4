"""Put the ranks' states at the first and last recorded step and at the end together, as one rank would have them.

Recordings keep no tensor of these whole: copies are told by their digests and sketches. A part of a tensor is put
together only where the recorded steps hold the same bits of it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lockstep.core.content_notes import Note, NoteKind
from lockstep.core.dims import Dims, Mesh
from lockstep.core.dtypes import is_floating
from lockstep.core.manifest import APART, NotSeen, RankManifest
from lockstep.core.read_calls import LaterTensor
from lockstep.core.records import Content
from lockstep.core.site import Role
from lockstep.core.sketch import distance, sketch_of
from lockstep.core.states import LaterLoss, Moment, Standing, StateRecord
from lockstep.core.text import listed
from lockstep.store.later_tensors import ReadLater
from lockstep.store.reader import RankRecording
from lockstep.store.written_calls import digested
from lockstep.unify.dtensor_placements import placed_by
from lockstep.unify.joined_parts import UnlikeDimsError
from lockstep.unify.rank_layouts import Form, Spread, together
from lockstep.unify.whole_tensor import Parts, elements_of, encoded

Ranks = Mapping[int, RankRecording]
DimsOf = Callable[[StateRecord], Form | tuple[Dims, Mesh] | None]
_Key = tuple[Moment, Role, str]


def give_ends(made: RankRecording, ranks: Ranks, dims_of: DimsOf, *, summed_losses: bool) -> None:
    """Give a recording that was put together the states of its ranks, their later losses, and how long they trained.

    made: The recording of one rank.
    ranks: Those that it was put together of, by number.
    dims_of: Tells what the axes of a state mean that torch.distributed has not placed; None where nothing does.
    summed_losses: Whether the loss of one rank is the sum of the ranks' losses, rather than their mean.

    Raises CorruptError if a table of a rank is damaged.
    """
    states, said = joined_states(ranks, dims_of)
    made.states = tuple(states)
    losses, why = _losses(list(ranks.values()), summed=summed_losses)
    made.losses, made.held, made.held_settings = losses, (), None
    gaps = [NotSeen(APART, text) for text in (*said, *([why] if why else []))]
    made.manifest = replace(
        made.manifest,
        trained=_trained(one.manifest for one in ranks.values()),
        ended_by=next((one.manifest.ended_by for one in ranks.values() if one.manifest.ended_by), ""),
        not_seen=[*made.manifest.not_seen, *gaps],
    )  # fmt: skip


def joined_states(ranks: Ranks, dims_of: DimsOf) -> tuple[list[StateRecord], list[str]]:
    """Return the states of some ranks as one rank would hold them, and sentences about those not put together.

    Raises CorruptError if a table of a rank is damaged.
    """
    joined = _JoinedStates(ranks, dims_of)
    return [*joined.states()], [*joined.said()]


def _trained(manifests: Iterator[RankManifest]) -> int | None:
    """How many steps all ranks trained; None where a rank does not tell."""
    counts = [one.trained for one in manifests]
    known = [count for count in counts if count is not None]
    return min(known) if len(known) == len(counts) else None


def _losses(ranks: Sequence[RankRecording], *, summed: bool) -> tuple[tuple[LaterLoss, ...], str]:
    """The losses of all ranks as those of one, in order of time; and why there are none, or ""."""
    steps = [[loss.step for loss in rank.losses] for rank in ranks]
    if any(one != steps[0] for one in steps):
        counts = listed([str(len(one)) for one in steps], len(steps))
        return (), f"its ranks took {counts} backward passes after the recorded steps"
    ways = 1 if summed else len(ranks)
    return tuple(
        LaterLoss(
            same[0].step,
            same[0].value
            if len({loss.value for loss in same}) == 1 and not summed
            else math.fsum(loss.value for loss in same) / ways,
            same[0].dtype,
        )
        for same in zip(*(rank.losses for rank in ranks), strict=True)
    ), ""


@dataclass
class _JoinedStates:
    """Puts states together, one after the other."""

    ranks: Ranks
    dims_of: DimsOf
    apart: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    _stored: dict[int, dict[_Bits, Content]] = field(default_factory=dict)

    def states(self) -> Iterator[StateRecord]:
        """Those that could be put together."""
        by_key: dict[_Key, dict[int, StateRecord]] = defaultdict(dict)
        for number, rank in self.ranks.items():
            for state in rank.states:
                by_key[(state.moment, *state.key)][number] = state
        for every in by_key.values():
            same = _of_those_who_update(every)
            first = next(iter(same.values()))
            try:
                yield replace(first, content=self._content(first, same, held_by=every))
            except UnlikeDimsError as error:
                if first.moment is Moment.END and (
                    first.standing in _TRAINING or _moves(by_key, first)
                ):
                    self.apart[str(error)].append(first.name)

    def _content(
        self,
        first: StateRecord,
        same: Mapping[int, StateRecord],
        *,
        held_by: Mapping[int, StateRecord],
    ) -> Content:
        contents = {number: state.content for number, state in same.items()}
        told = placed_by(first.content) or self.dims_of(first)
        if isinstance(told, Form) and told.spread is Spread.BATCH and first.content.shape:
            return self._whole(first.content, contents, told)
        if isinstance(told, tuple) and told[0].over:
            return self._whole(first.content, contents, told)
        are_equal = len({_bits(one) for one in contents.values()}) == 1
        if told is None and (first.content.told.kind is NoteKind.PART or not are_equal):
            raise UnlikeDimsError("nothing says how their parts belong together")
        absent = sorted(set(self.ranks) - set(held_by))
        if absent and first.role is Role.PARAM and first.standing is not Standing.BESIDE:
            raise UnlikeDimsError(f"rank{absent[0]} does not hold them")
        return _of_copies(first, contents)

    def _whole(
        self, first: Content, contents: Mapping[int, Content], told: Form | tuple[Dims, Mesh]
    ) -> Content:
        """The tensor of parts whose elements the recorded steps hold, as they are of the same bits."""
        found = {
            number: self._kept(number).get(_bits(content)) for number, content in contents.items()
        }
        kept = {number: one for number, one in found.items() if one is not None}
        if len(kept) < len(self.ranks):
            raise UnlikeDimsError(
                "they are parts, whose elements are kept for recorded steps alone"
            )
        note = ""
        if isinstance(told, Form):
            array = together(
                [elements_of(kept[number]) for number in sorted(kept)], told, first.dtype
            )
            data = encoded(array, first.dtype)
            later = digested(LaterTensor(first.dtype, array.shape, load=lambda: data))
        else:
            later, joined = Parts(kept, *told).whole()
            if joined is not None and joined.copies > 1:
                note = _apart_by(math.inf)
        elements = ReadLater(later)
        sketched = is_floating(first.dtype)
        return Content(
            first.id, later.dtype, later.shape, first.device, later.digest, later.statistics,
            (lambda: sketch_of(elements())) if sketched else None, note,
        )  # fmt: skip

    def _kept(self, number: int) -> Mapping[_Bits, Content]:
        """Contents of a rank's first and last recorded step that were kept whole, by their bits."""
        if number not in self._stored:
            rank = self.ranks[number]
            self._stored[number] = {
                _bits(record.content): record.content
                for step in dict.fromkeys((*rank.steps[:1], *rank.steps[-1:]))
                for call in rank.calls(step)
                for record in call.records
                if record.content.loader is not None
            }
        return self._stored[number]

    def said(self) -> Iterator[str]:
        """Return words about parts of the end that were not put together."""
        for why, names in self.apart.items():
            shown = [name.replace("|", "'s ") for name in names]
            yield f"the end of {listed(shown)} was not compared: {why}"


def _of_those_who_update(same: Mapping[int, StateRecord]) -> Mapping[int, StateRecord]:
    """Those of the ranks that update a parameter, right after an update: it is on its way to the others then.

    At the end all count, of which one that is updated comes first.
    """
    updated = {number: one for number, one in same.items() if one.standing is Standing.TRAINED}
    if not updated:
        return same
    if any(one.moment is Moment.END for one in updated.values()):
        return {**updated, **same}
    return updated


_TRAINING = frozenset({Standing.TRAINED, Standing.MET})


def _moves(by_key: Mapping[_Key, Mapping[int, StateRecord]], state: StateRecord) -> bool:
    """Whether what is held beside the training is not the same at all moments, on any rank."""
    seen: dict[int, set[str | None]] = defaultdict(set)
    for moment in Moment:
        for number, one in by_key.get((moment, *state.key), {}).items():
            seen[number].add(one.content.digest)
    return any(len(digests) > 1 for digests in seen.values())


_Bits = tuple[str | None, str, tuple[int, ...]]


def _bits(content: Content) -> _Bits:
    return content.digest, content.dtype, content.shape


def _of_copies(first: StateRecord, contents: Mapping[int, Content]) -> Content:
    """The first of several copies; where others have other bits, with a note on how far they are apart."""
    if len({_bits(one) for one in contents.values()}) == 1:
        return first.content
    if first.role is Role.BUFFER or first.standing is Standing.BESIDE:
        raise UnlikeDimsError("every rank holds its own")
    far = max(_relative(first.content, one) for one in contents.values())
    return replace(first.content, note=_apart_by(far))


def _apart_by(relative: float) -> str:
    return str(Note(NoteKind.COPIES_APART, f"{relative:.3e}"))


def _relative(left: Content, right: Content) -> float:
    """`|c - r| / max(|c|, |r|)` by sketches; 0 for equal bits, `inf` where it is not known."""
    if _bits(left) == _bits(right):
        return 0.0
    sketches = left.sketch, right.sketch
    if left.shape != right.shape or sketches[0] is None or sketches[1] is None:
        return math.inf
    norms = [one.statistics.norm for one in (left, right) if one.statistics is not None]
    apart, size = distance(sketches[0], sketches[1]), max(norms, default=0.0)
    return apart / size if size > 0 else math.inf


__all__ = ["give_ends", "joined_states"]
