"""Compare all gradients of one step: a factor that they share, an earlier step's gradients, how often they are clipped.

Sketches are linear, so the sketch of twice a gradient is twice its sketch, and that of a sum the sum of sketches.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

import numpy as np

from lockstep.align.dataflow import Flow
from lockstep.align.step import AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.operators import Trait, operator_of, writes_in_place
from lockstep.core.records import Call, Content, Sketch, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.core.text import listed
from lockstep.judge.tolerances import (
    FACTOR_SHARE,
    FACTORS_ALIKE,
    LEFT_OVER,
    QUIET_GRADIENT,
    STRAIGHT,
)
from lockstep.locate.lone_effects import first_tensors


@dataclass(frozen=True, slots=True)
class StepGradients:
    """Gradients of one step, by parameter: as each backward left them and as the optimizer got them."""

    step: AlignedStep

    def after_backward(self, *, last: bool) -> dict[str, Pair]:
        """As the first backward of the step left them, or the last one."""
        found: dict[str, Pair] = {}
        for pair in self._of(CallKind.GRADIENT):
            if last or pair.present.name not in found:
                found[pair.present.name] = pair
        return found

    def by_backward(self) -> list[dict[str, Pair]]:
        """As each backward of the step left them, in order."""
        passes: list[dict[str, Pair]] = []
        met: dict[str, int] = {}
        for pair in self._of(CallKind.GRADIENT):
            number = met[pair.present.name] = met.get(pair.present.name, -1) + 1
            if number == len(passes):
                passes.append({})
            passes[number][pair.present.name] = pair
        return passes

    def at_optimizer(self) -> dict[str, Pair]:
        """As the optimizer got them."""
        return {pair.present.name: pair for pair in self._of(CallKind.OPTIMIZER)}

    def _of(self, kind: CallKind) -> Iterator[Pair]:
        items = sorted(self.step.of_kind(kind), key=lambda item: item.reference.sequence)
        return (pair for item in items for pair in item.complete(Role.PARAM_GRAD))


def factor_between(pairs: Iterable[Pair]) -> float | None:
    """How many times the reference's the candidate's tensors are, None where they do not share a factor."""
    sides = ((pair.reference, pair.candidate) for pair in pairs)
    return shared_factor(
        (left.content, right.content)
        for left, right in sides
        if left is not None and right is not None
    )


def shared_factor(pairs: Iterable[tuple[Content, Content]]) -> float | None:
    """The factor from the first to the second of each pair, None where they do not share one."""
    known = [(_norm(left), one) for left, right in pairs if (one := _factor(left, right))]
    loudest = max((norm for norm, _ in known), default=0.0)
    factors = [one for norm, one in known if norm > QUIET_GRADIENT * loudest]
    if not factors:
        return None
    middle = median(one.times for one in factors)
    sharing = sum(
        one.straight and abs(one.times - middle) <= FACTORS_ALIKE * abs(middle) for one in factors
    )
    return middle if sharing >= FACTOR_SHARE * len(factors) else None


def is_alike(left: Content, right: Content) -> bool:
    """Whether two tensors have the same direction and size but for a hundredth; two zeros have."""
    if _norm(left) == 0.0 and _norm(right) == 0.0:
        return left.numel == right.numel
    factor = _factor(left, right)
    return factor is not None and factor.straight and abs(factor.times - 1) <= FACTORS_ALIKE


@dataclass(frozen=True, slots=True)
class _Factor:
    times: float
    straight: bool


def _factor(left: Content, right: Content) -> _Factor | None:
    if left is right:
        return _Factor(1.0, True)
    norms = _norm(left), _norm(right)
    if not (min(norms) > 0 and all(map(math.isfinite, norms))) or left.numel != right.numel:
        return None
    sketches = left.sketch, right.sketch
    if sketches[0] is None or sketches[1] is None:
        return _Factor(norms[1] / norms[0], True)
    return _between_sketches(sketches[0], sketches[1])


def _between_sketches(left: Sketch, right: Sketch) -> _Factor | None:
    sizes = float(np.linalg.norm(left)), float(np.linalg.norm(right))
    if not min(sizes) > 0:
        return None
    cosine = float(left @ right) / (sizes[0] * sizes[1])
    return _Factor(math.copysign(sizes[1] / sizes[0], cosine), abs(cosine) > STRAIGHT)


def _norm(content: Content) -> float:
    return content.statistics.norm if content.statistics is not None else 0.0


def left_over(
    gradients: Mapping[str, Pair], before: Mapping[str, tuple[Content, Content]], side: int
) -> list[str]:
    """Return parameters whose gradient, in one run, is the other run's plus the gradient before it.

    gradients: As the first backward of a step left them.
    before: As the optimizer got them in the step before: the reference's and the candidate's.
    side: 0 to ask it of the reference, 1 of the candidate.
    """
    found = []
    for name, pair in gradients.items():
        records = pair.reference, pair.candidate
        sketches = [_sketch(record) for record in records]
        own, other = sketches[side], sketches[1 - side]
        earlier = before[name][side].sketch if name in before else None
        if own is None or other is None or earlier is None:
            continue
        size = float(np.linalg.norm(earlier))
        if size > 0 and float(np.linalg.norm(own - other - earlier)) <= LEFT_OVER * size:
            found.append(name)
    return found


def _sketch(record: TensorRecord | None) -> Sketch | None:
    return None if record is None else record.content.sketch


def scaled_by(
    after: Mapping[str, Pair], at_optimizer: Mapping[str, Pair]
) -> tuple[float | None, float | None]:
    """Return the one factor that each run applies to its gradients between backward and optimizer, if it is one."""
    shared = [name for name in after if name in at_optimizer]
    sides: Sequence[str] = ("reference", "candidate")
    factors = []
    for side in sides:
        pairs = [(getattr(after[name], side), getattr(at_optimizer[name], side)) for name in shared]
        factors.append(shared_factor((first.content, last.content) for first, last in pairs))
    return factors[0], factors[1]


def scaling_words(
    reference: float | None, candidate: float | None, *, clips: bool, both: bool
) -> str:
    """Return each run's factor on its gradients after backward in words, if the two differ.

    `both` tells that both runs make the calls in question, be it by 1.
    """
    if (
        reference is None
        or candidate is None
        or abs(reference - candidate) <= FACTORS_ALIKE * abs(reference)
    ):
        return ""
    words = "clipping differs" if clips else "gradients are scaled differently"
    scales = [abs(one - 1) > FACTORS_ALIKE for one in (reference, candidate)]
    if both or all(scales):
        return (
            f"{words}: the reference multiplies all by {reference:.3g} between backward and optimizer, the"
            f" candidate by {candidate:.3g}"
        )
    side, factor = ("reference", reference) if scales[0] else ("candidate", candidate)
    return f"{words}: only the {side} scales its gradients between backward and optimizer, all by {factor:.3g}"


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
