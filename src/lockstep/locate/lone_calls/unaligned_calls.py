"""Calls that one run makes and the other does not, each named once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Evidence, Finding, OtherClass, UnalignedCalls
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.records import Call
from lockstep.core.site import CallKind
from lockstep.core.text import listed
from lockstep.locate.lone_calls.lone_effects import Effect, LoneEffect
from lockstep.locate.lone_calls.stretches import is_inside_lone, regions_of

CalledFrom = tuple[str, str]
"""An operator and the `file:line` that calls it."""

_Key = tuple[object, ...]


@dataclass(slots=True)
class Unaligned:
    """Gathers the calls without partner of one rank over its steps, and modules of other classes.

    One operator called from one line of one module is listed once, with how many such calls there are and the step and
    place of the first.
    """

    _calls: dict[_Key, UnalignedCalls] = field(default_factory=dict)
    _classes: dict[str, OtherClass] = field(default_factory=dict)
    _regions: int = 0

    @property
    def calls(self) -> tuple[UnalignedCalls, ...]:
        """The unaligned calls, in order of time."""
        return tuple(self._calls.values())

    @property
    def classes(self) -> tuple[OtherClass, ...]:
        """Return module paths with a different class in the candidate, in order of time."""
        return tuple(self._classes.values())

    def class_around(self, path: str) -> OtherClass | None:
        """Return the innermost module at or above a path that has a different class in the candidate."""
        while path and path not in self._classes:
            path = path.rpartition(".")[0]
        return self._classes.get(path)

    def gather(self, step: AlignedStep, effects: Sequence[LoneEffect]) -> None:
        """Take in one more step, and the effects of its calls without partner."""
        known = {(one.is_candidate, one.call.id): one for one in effects}
        for region, pair in regions_of(step, self._regions):
            self._regions = max(self._regions, region + 1)
            left, right = pair.reference, pair.candidate
            if left is not None:
                returns_as = right.site.op if right is not None else ""
                effect = known.get((False, left.id))
                self._add(step, region, left, effect, is_candidate=False, returns_as=returns_as)
            if right is not None:
                returns_as = left.site.op if left is not None else ""
                effect = known.get((True, right.id))
                self._add(step, region, right, effect, is_candidate=True, returns_as=returns_as)
        for item in step.of_kind(CallKind.MODULE):
            site, other = item.reference.site, item.candidate.site
            if are_other_classes(site.op, other.op):
                self._classes.setdefault(site.module, OtherClass(site.module, site.op, other.op))

    def _add(
        self,
        step: AlignedStep,
        region: int,
        call: Call,
        effect: LoneEffect | None,
        *,
        is_candidate: bool,
        returns_as: str,
    ) -> None:
        side = "candidate" if is_candidate else "reference"
        path = step.path_of(call, is_candidate=is_candidate)
        phase = call.site.phase
        idiom = effect.idiom.value if effect is not None and effect.idiom is not None else ""
        beside = effect is not None and effect.effect is Effect.BESIDE
        around = effect is not None and effect.effect is Effect.AROUND
        key = (side, call.recomputed, phase, path, call.site.op, call.source, call.library)
        known = self._calls.get(key)
        if known is not None:
            self._calls[key] = replace(
                known,
                count=known.count + 1,
                idiom=known.idiom or idiom,
                beside=known.beside and beside,
                around=known.around and around,
            )
            return
        self._calls[key] = UnalignedCalls(
            side=side,
            rank=call.rank,
            step=call.step,
            phase=phase,
            module=path,
            op=call.site.op,
            source=call.source,
            library=call.library,
            count=1,
            region=region,
            inside=is_inside_lone(step, call, is_candidate=is_candidate),
            recomputed=call.recomputed,
            returns_as=returns_as,
            idiom=idiom,
            beside=beside,
            around=around,
        )


# --- in words ---------------------------------------------------------------------------------------------------------

_SHOWN = 3


def words_for(
    reference: Sequence[CalledFrom],
    candidate: Sequence[CalledFrom],
    *,
    elsewhere: Collection[str] = (),
) -> str:
    """Return words for a call that one run makes and the other does not, or for each in place of the other's.

    `elsewhere` are operators that the other run calls at another place. Of calls that both make from the same line
    those are told that one run alone makes, or how many each makes.

    >>> words_for([("torch.Tensor.div", "train.py:113")], [])
    'the reference calls torch.Tensor.div at train.py:113; the candidate does not'
    """
    left, right = (
        [one for one in own if one not in other]
        for own, other in ((reference, candidate), (candidate, reference))
    )
    if reference and candidate and not (left or right):
        return _counted_words(reference, candidate)
    if reference and candidate:
        reference, candidate = left, right
    if reference and candidate:
        return f"the reference calls {called_words(reference)}, where the candidate calls {called_words(candidate)}"
    side, other, calls = (
        ("reference", "candidate", reference)
        if reference
        else ("candidate", "reference", candidate)
    )
    there = " at this place" if any(op in elsewhere for op, _ in calls) else ""
    return f"the {side} calls {called_words(calls)}; the {other} does not{there}"


def _counted_words(reference: Sequence[CalledFrom], candidate: Sequence[CalledFrom]) -> str:
    """Words for calls that both runs make from the same lines: how many each, where that differs."""
    called = called_words(reference)
    if len(reference) == len(candidate):
        return f"both call {called}, and these calls could not be paired"
    return f"both call {called}, {len(reference)} times in the reference and {len(candidate)} in the candidate"


def called_words(calls: Sequence[CalledFrom]) -> str:
    """Operators and the lines that call them, the first few of each."""
    operators = list(dict.fromkeys(op for op, _ in calls))
    lines = list(dict.fromkeys(line for _, line in calls if line))
    shown = listed(operators, _SHOWN)
    return f"{shown} at {_spanned(lines)}" if lines else shown


def _spanned(lines: Sequence[str]) -> str:
    """Lines of one file as a span; of several the first of each.

    >>> _spanned(["net.py:20", "net.py:24", "net.py:22"])
    'net.py:20 to 24'
    """
    files: dict[str, list[int]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        files.setdefault(file, []).append(int(number) if number.isdigit() else 0)
    spans = [
        f"{file}:{min(numbers)}" + (f" to {max(numbers)}" if len(set(numbers)) > 1 else "")
        for file, numbers in files.items()
    ]
    return ", ".join(spans[:_SHOWN])


def are_other_classes(reference: str, candidate: str) -> bool:
    """Return whether two class names mean different classes, not one that moved to a different module.

    >>> are_other_classes("gpt.Block", "model.Block"), are_other_classes("gpt.Gelu", "gpt.NewGelu")
    (False, True)
    """
    if not (reference and candidate):  # another tool does not tell it
        return False
    own = [name.startswith(_TORCH) for name in (reference, candidate)]
    return reference.rpartition(".")[2] != candidate.rpartition(".")[2] or own[0] != own[1]


_TORCH = "torch."


def unjudged_calls(
    calls: Sequence[UnalignedCalls], findings: Iterable[Finding]
) -> Iterator[NotCompared]:
    """Say which calls without partner may change the training, for a rule that judges no calls."""
    alone = [
        one for one in calls if not (one.beside or one.around or one.recomputed or one.returns_as)
    ]
    if not alone or all(one.metrics.evidence is Evidence.DIGEST for one in findings):
        return
    count, first = sum(one.count for one in alone), alone[0]
    at = f"{first.op} at {first.source}" if first.source else first.op
    yield NotCompared(WhyNot.CALLS_NOT_JUDGED, count=count, at=at, side=first.side)
