"""How often a run clips its gradients in a step, and where: known from the data flow of that run alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from lockstep.align.dataflow import Flow
from lockstep.core.finding import Pair
from lockstep.core.operators import Trait, operator_of, writes_in_place
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.text import listed
from lockstep.locate.lone_calls.lone_effects import first_tensors


@dataclass(slots=True)
class Clip:
    """Calls from one line that clip gradients, each gradient once.

    `after` is the moment after which they begin, `bites` tells whether a gradient changed, `left` what became of them,
    `ops` which operators did it: a limit from below and one from above are one clipping.
    """

    source: str
    after: int
    bites: bool = False
    left: set[int] = field(default_factory=set)
    ops: set[str] = field(default_factory=set)

    @property
    def kind(self) -> str:
        """The kind of clipping: by the norm of the gradients, or by the value of each element."""
        clamps = any(Trait.CLAMPS in operator_of(op).traits for op in self.ops)
        return "value" if clamps else "norm"

    def is_gone_on_by(self, call: Call, given: Collection[int]) -> bool:
        """Whether a call that clips these gradients belongs to it: other gradients, or these by the other limit."""
        again = bool(self.left & set(given))
        return self.source == call.source and not (again and call.site.op in self.ops)

    def comes_before(self, pair: Pair, *, in_candidate: bool) -> bool:
        """Whether a tensor of the same run may follow from it."""
        record = pair.candidate if in_candidate else pair.reference
        return record is not None and record.sequence > self.after


def clips_of(flow: Flow) -> list[Clip]:
    """Return the clippings of one run in one step, in order of time: by a norm, or element by element."""
    gradients: set[int] = set()
    found: list[Clip] = []
    open_clip: Clip | None = None
    last = -1
    for call in sorted(flow.calls.values(), key=lambda one: one.sequence):
        if call.kind is CallKind.GRADIENT:
            gradients.update(one.content.id for one in call.with_role(Role.PARAM_GRAD))
            open_clip, last = None, call.records[-1].sequence if call.records else call.sequence
        elif call.kind is CallKind.OPERATOR and _clips(call, gradients, flow):
            given = [one.content.id for one in first_tensors(call)]
            if open_clip is None or not open_clip.is_gone_on_by(call, given):
                open_clip = Clip(call.source, last)
                found.append(open_clip)
            left = [one.content.id for one in call.with_role(Role.OUTPUT)]
            open_clip.bites |= left != given
            open_clip.left.update(left)
            open_clip.ops.add(call.site.op)
            gradients.update(left)
            last = max(one.sequence for one in call.records)
    return found


def more_clips(reference: Sequence[Clip], candidate: Sequence[Clip]) -> tuple[str, Clip] | None:
    """Return in words which run clips more often, with the first clipping that it has more; None where unknown.

    Where both do as often, which of them clips by another measure, with that of the candidate.
    """
    if len(reference) == len(candidate):
        return _other_clip(reference, candidate)
    side, more, other, less = "candidate", candidate, "reference", reference
    if len(reference) > len(candidate):
        side, more, other, less = other, less, side, more
    lines, fewer = Counter(one.source for one in more), Counter(one.source for one in less)
    extra = list((lines - fewer).elements())
    if fewer - lines or len(extra) != len(more) - len(
        less
    ):  # other lines: which is the one more is not known
        extra = list(lines)
    first = next((one for one in more if one.source in extra), None)
    if first is None or not all(one.bites for one in more if one.source in extra):
        return None
    if len(extra) == len(more) - len(less):
        often = "once" if len(extra) == 1 else f"{len(extra)} times"
        return (
            f"the {side} clips {often} more in this step, at {listed(list(dict.fromkeys(extra)))}",
            first,
        )
    return (
        f"the {side} clips {len(more)} times in this step, at {listed(list(lines))}, the {other} {len(less)} times, at"
        f" {listed(list(fewer))}"
    ), first


def _other_clip(reference: Sequence[Clip], candidate: Sequence[Clip]) -> tuple[str, Clip] | None:
    for left, right in zip(reference, candidate, strict=True):
        if left.kind != right.kind and (left.bites or right.bites):
            words = (
                f"the reference clips by {left.kind} at {left.source}, the candidate by {right.kind} at"
                f" {right.source}"
            )
            return words, right
    return None


def _clips(call: Call, gradients: set[int], flow: Flow) -> bool:
    """Whether a call writes to gradients, by a limit or by a factor that was made of gradients."""
    if not writes_in_place(call.site.op):
        return False
    given = first_tensors(call)
    if not any(one.content.id in gradients and one.content.numel for one in given):
        return False
    traits = operator_of(call.site.op).traits
    factors = [one for one in call.with_role(Role.INPUT) if one not in given]
    return Trait.CLAMPS in traits or (
        Trait.SCALES in traits and any(_is_made_of(one, gradients, flow) for one in factors)
    )


def _is_made_of(record: TensorRecord, gradients: set[int], flow: Flow) -> bool:
    """Whether a tensor was computed from gradients after backward had made them."""
    waiting, seen = [record], set[int]()
    while waiting:
        one = waiting.pop()
        maker = flow.producer(one.content.id, one.sequence)
        if maker is None or maker.id in seen or maker.kind is not CallKind.OPERATOR:
            continue
        seen.add(maker.id)
        inputs = maker.with_role(Role.INPUT)
        if any(own.content.id in gradients for own in inputs):
            return True
        waiting.extend(inputs)
    return False
