"""Calls that one run makes and the other does not, each named once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import CallPair, OtherClass, UnalignedCalls
from lockstep.core.records import Call
from lockstep.core.site import CallKind

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
        """What was gathered, in order of time."""
        return tuple(self._calls.values())

    @property
    def classes(self) -> tuple[OtherClass, ...]:
        """Modules at one path that are of another class in the candidate, in order of time."""
        return tuple(self._classes.values())

    def class_around(self, path: str) -> OtherClass | None:
        """The innermost module at or above a path that is of another class in the candidate."""
        while path and path not in self._classes:
            path = path.rpartition(".")[0]
        return self._classes.get(path)

    def gather(self, step: AlignedStep) -> None:
        """Take in one more step."""
        for region, pair in _regions_of(step, self._regions):
            self._regions = max(self._regions, region + 1)
            left, right = pair.reference, pair.candidate
            if left is not None:
                returns_as = right.site.op if right is not None else ""
                self._add(step, region, left, is_candidate=False, returns_as=returns_as)
            if right is not None:
                returns_as = left.site.op if left is not None else ""
                self._add(step, region, right, is_candidate=True, returns_as=returns_as)
        for item in step.of_kind(CallKind.MODULE):
            site, other = item.reference.site, item.candidate.site
            if are_other_classes(site.op, other.op):
                self._classes.setdefault(site.module, OtherClass(site.module, site.op, other.op))

    def _add(
        self, step: AlignedStep, region: int, call: Call, *, is_candidate: bool, returns_as: str
    ) -> None:
        side = "candidate" if is_candidate else "reference"
        path = step.path_of(call, is_candidate=is_candidate)
        phase = call.site.phase
        key = (side, call.recomputed, phase, path, call.site.op, call.source, call.library)
        known = self._calls.get(key)
        if known is not None:
            self._calls[key] = replace(known, count=known.count + 1)
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
            inside=_is_inside_lone(step, call, is_candidate=is_candidate),
            recomputed=call.recomputed,
            returns_as=returns_as,
        )


def _regions_of(step: AlignedStep, first: int) -> Iterator[tuple[int, CallPair]]:
    """Calls of modules and operators without partner, numbered by region.

    A region is what stands between two aligned calls of the training's own code, or inside of one aligned module call.
    Two calls that only return the same (a fused operator, and the last of its parts) belong to it.
    """
    inside: dict[int, int] = {}
    region, fresh = first - 1, True
    for pair in step.pairs:
        if pair.present.kind not in (CallKind.MODULE, CallKind.OPERATOR):
            continue
        if is_aligned(pair):
            fresh = fresh or pair.present.parent not in step.reference.calls
            continue
        around = _aligned_around(step, pair)
        if around is None:
            region, fresh = region + fresh, False
            yield region, pair
            continue
        if around not in inside:
            region, fresh = region + 1, True
            inside[around] = region
        yield inside[around], pair


def is_aligned(pair: CallPair) -> bool:
    """Whether two calls were found to be the same one."""
    return not (pair.reference is None or pair.candidate is None or _replaces(pair))


def _replaces(pair: CallPair) -> bool:
    """Whether two calls return the same, by other means."""
    left, right = pair.reference, pair.candidate
    return pair.only_results and left is not None and right is not None and left.site != right.site


def _aligned_around(step: AlignedStep, pair: CallPair) -> int | None:
    """Number of the reference's call of the innermost aligned module around a call without partner."""
    is_candidate = pair.reference is None
    flow, aligned = _side(step, is_candidate=is_candidate)
    parent = flow.calls.get(pair.present.parent)
    while parent is not None:
        item = aligned(parent)
        if item is not None:
            return item.reference.id
        parent = flow.calls.get(parent.parent)
    return None


def _is_inside_lone(step: AlignedStep, call: Call, *, is_candidate: bool) -> bool:
    flow, aligned = _side(step, is_candidate=is_candidate)
    parent = flow.calls.get(call.parent)
    return parent is not None and aligned(parent) is None


def _side(
    step: AlignedStep, *, is_candidate: bool
) -> tuple[Flow, Callable[[Call], Aligned | None]]:
    if is_candidate:
        return step.candidate, step.of_candidate
    return step.reference, step.of_reference


# --- in words ---------------------------------------------------------------------------------------------------------

_SHOWN = 3


def words_for(reference: Sequence[CalledFrom], candidate: Sequence[CalledFrom]) -> str:
    """What one run calls and the other does not, or each instead of the other's.

    >>> words_for([("torch.Tensor.div", "train.py:113")], [])
    'the reference calls torch.Tensor.div at train.py:113; the candidate does not'
    """
    if reference and candidate:
        return f"the reference calls {_called(reference)}, where the candidate calls {_called(candidate)}"
    if reference:
        return f"the reference calls {_called(reference)}; the candidate does not"
    return f"the candidate calls {_called(candidate)}; the reference does not"


def _called(calls: Sequence[CalledFrom]) -> str:
    operators = list(dict.fromkeys(op for op, _ in calls))
    lines = list(dict.fromkeys(line for _, line in calls if line))
    shown = ", ".join(operators[:_SHOWN])
    if len(operators) > _SHOWN:
        shown = f"{shown} and {len(operators) - _SHOWN} more"
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
    """Whether two class names mean other classes, not one that was moved to another module.

    >>> are_other_classes("gpt.Block", "model.Block"), are_other_classes("gpt.Gelu", "gpt.NewGelu")
    (False, True)
    """
    own = [name.startswith(_TORCH) for name in (reference, candidate)]
    return reference.rpartition(".")[2] != candidate.rpartition(".")[2] or own[0] != own[1]


_TORCH = "torch."
