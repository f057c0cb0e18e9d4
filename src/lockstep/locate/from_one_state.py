"""Windows in which two trainings began with one state: which they are, and one verdict of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from lockstep.core.finding import Comparison, JudgedWindow, UniformChange, Verdict, verdict_of
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.text import spans
from lockstep.core.windows import MeanRate, StateDifference, WindowStart, windows_in
from lockstep.reading.paired_steps import Pairing
from lockstep.store.reader import RankRecording


def judged_by_windows(
    pairing: Pairing,
    steps: Collection[int] | None,
    judged: Callable[[Collection[int]], Comparison],
) -> Comparison | None:
    """Return one comparison of all windows, each judged by itself; None where neither run was set to a state."""
    shared = _shared_windows(pairing, steps)
    if shared is None:
        return None
    each = [judged(window.steps) for window in shared.windows]
    return _together(shared, each, None if each else judged(()))


@dataclass(frozen=True, slots=True)
class _SharedWindow:
    """A window that both trainings began with one state.

    `differed`, `left` and `not_set` are of all ranks; `distance` is the largest of them.
    """

    steps: tuple[int, ...]
    differed: tuple[StateDifference, ...] = ()
    not_set: tuple[str, ...] = ()
    distance: float | None = None
    left: tuple[StateDifference, ...] = ()


@dataclass(slots=True)
class _SharedWindows:
    """The windows of two recordings, and why others are not compared."""

    windows: list[_SharedWindow] = field(default_factory=list)
    left_out: list[NotCompared] = field(default_factory=list)


def _shared_windows(pairing: Pairing, steps: Collection[int] | None) -> _SharedWindows | None:
    """Return the windows; None of two recordings of which neither was set to a state.

    pairing: The two recordings.
    steps: Steps that are to be compared; None for all.
    """
    both = {
        name: (_starts(left.manifest.windows), _starts(right.manifest.windows))
        for name, (left, right) in pairing.ranks.both.items()
    }
    every = [start for sides in both.values() for side in sides for start in side.values()]
    if not any(start.source for start in every):
        return None
    found = _SharedWindows()
    shared = list(pairing.shared_steps(steps))
    chosen = {one.step for one in every if steps is None or one.step in steps}
    for window in windows_in({one.step for one in every} & set(shared), shared):
        pairs = {name: _pair(sides, window[0]) for name, sides in both.items()}
        why_not = {name: _why_not(*pair) for name, pair in pairs.items()}
        # The first step of all is each training's own start: what differs there is a difference.
        if any(why_not.values()) and window[0]:
            found.left_out += _not_set(window, why_not)
        else:
            left = [
                each
                for name, pair in pairs.items()
                if not _skips(pairing.ranks.both[name], window[0])
                for each in _means_apart(*pair)
            ]
            found.windows.append(
                _shared(window, [one for pair in pairs.values() for one in pair], left)
            )
        chosen.discard(window[0])
    for step in sorted(chosen):
        found.left_out += _not_set((step,), {"": "the step was not recorded in both runs"})
    inside = {step for one in found.windows for step in one.steps}
    told = {step for one in found.left_out for step in _steps_of(one)}
    if alone := sorted(set(shared) - inside - told):
        found.left_out += _not_set(tuple(alone), {"": "no window begins there"})
    return found


def _together(
    shared: _SharedWindows, judged: Sequence[Comparison], without: Comparison | None = None
) -> Comparison:
    """Return one comparison of all windows; it is that of the first window that does not agree, with all findings.

    shared: The windows.
    judged: The comparison of each.
    without: Of no step, where there is no window.
    """
    late = _in_some_windows(judged)
    told = tuple(
        JudgedWindow(
            window.steps,
            _verdict(window, one),
            one.origins[0] if one.origins else None,
            window.differed,
            window.not_set,
            window.distance,
            window.left,
            "; ".join(change.name for change in one.uniform if change.name in late),
        )
        for window, one in zip(shared.windows, judged, strict=True)
    )
    order = {Verdict.DIVERGED: 0, Verdict.INCOMPARABLE: 1, Verdict.AGREE: 2}
    first = min(judged, key=lambda one: order[one.verdict]) if judged else without
    assert first is not None
    not_compared = (
        *dict.fromkeys(text for one in judged for text in one.not_compared),
        *shared.left_out,
    )
    differs = any(one.verdict is Verdict.DIVERGED for one in told)
    return replace(
        first,
        verdict=verdict_of(differs=differs, not_compared=not_compared),
        origins=tuple(origin for one in judged for origin in one.origins),
        findings=tuple(finding for one in judged for finding in one.findings),
        inherited=sum(one.inherited for one in judged),
        compared=sum(one.compared for one in judged),
        missing=sum(one.missing for one in judged),
        unaligned_reference=sum(one.unaligned_reference for one in judged),
        unaligned_candidate=sum(one.unaligned_candidate for one in judged),
        unaligned_calls=tuple(calls for one in judged for calls in one.unaligned_calls),
        steps=tuple(sorted(step for one in judged for step in one.steps)),
        not_compared=not_compared,
        notes=tuple(dict.fromkeys(note for one in judged for note in one.notes)),
        uniform=_uniform(judged),
        windows=told,
    )


def _verdict(window: _SharedWindow, judged: Comparison) -> Verdict:
    return Verdict.DIVERGED if window.differed or window.left else judged.verdict


def _in_some_windows(judged: Sequence[Comparison]) -> frozenset[str]:
    """Changes of precision that recorded dtypes show in some windows and not in others: a setting changed between."""
    names = [{change.name for change in one.uniform if change.is_of_dtypes} for one in judged]
    compared = [one for one, judgement in zip(names, judged, strict=True) if judgement.compared]
    if all(compared):
        return frozenset()
    return frozenset[str]().union(*compared)


def _uniform(judged: Sequence[Comparison]) -> tuple[UniformChange, ...]:
    """Changes of precision throughout, each by its name once: as the first window has it."""
    changes: dict[str, UniformChange] = {}
    for one in judged:
        for change in one.uniform:
            changes.setdefault(change.name, change)
    return tuple(changes.values())


Starts = dict[int, WindowStart]


def _starts(windows: Sequence[WindowStart]) -> Starts:
    return {one.step: one for one in windows}


def _pair(sides: tuple[Starts, Starts], step: int) -> tuple[WindowStart | None, WindowStart | None]:
    return sides[0].get(step), sides[1].get(step)


def _why_not(left: WindowStart | None, right: WindowStart | None) -> str:
    """Why a rank of both runs did not begin a window with one state, "" where it did."""
    for one in (left, right):
        if one is None:
            return "one of the runs neither kept nor set a state there"
        if one.source and not one.is_set:
            return one.not_set[-1] if one.not_set else "it could not be set"
    if left is not None and right is not None and left.digest != right.digest:
        return "the state that was set is not that of the other recording"
    return ""


def _not_set(window: Sequence[int], why_not: dict[str, str]) -> list[NotCompared]:
    name, why = next((name, why) for name, why in why_not.items() if why)
    numbers = tuple(map(str, window))
    return [
        NotCompared(WhyNot.WINDOW_NOT_SET, rank=name, names=numbers, at=spans(window), reason=why)
    ]


def _steps_of(one: NotCompared) -> list[int]:
    return [int(step) for step in one.facts.names]


def _skips(ranks: tuple[RankRecording, RankRecording], step: int) -> bool:
    """Whether either run left the update out, with which a script may leave out that of its means."""
    return any(one.skipped for rank in ranks for one in rank.manifest.steps if one.index == step)


NO_MEAN = 16.0
"""What no rate explains, in sizes of rounding, from which on the candidate's tensors are no mean of its weights."""
_OF_THE_RATE = 1e-3
"""Part of a rate that a script may compute in any precision."""


def _means_apart(left: WindowStart | None, right: WindowStart | None) -> list[StateDifference]:
    """Means of the weights that the reference keeps by the law, and the candidate by another rate or by none."""
    if left is None or right is None:
        return []
    theirs = {one.name: one for one in right.means}
    both = [(one, theirs[one.name]) for one in left.means if one.name in theirs]
    return [
        StateDifference(f"what {one.name} takes of the new weights", _share(one), _share(other))
        for one, other in both
        if one.residual <= 1.0 and (other.residual > NO_MEAN or _is_other_rate(one, other))
    ]


def _is_other_rate(left: MeanRate, right: MeanRate) -> bool:
    may_be = 2 * (left.bound + right.bound) + _OF_THE_RATE * abs(left.rate)
    return right.residual <= 1.0 and abs(left.rate - right.rate) > may_be


def _share(mean: MeanRate) -> str:
    if mean.residual > 1.0:
        return "no one share of each"
    return f"{mean.rate:.4g}" if abs(mean.rate) > mean.bound else "nothing"


def _shared(
    steps: tuple[int, ...], starts: Sequence[WindowStart | None], left: Sequence[StateDifference]
) -> _SharedWindow:
    found = [one for one in starts if one is not None]
    distances = [one.distance for one in found if one.distance is not None]
    return _SharedWindow(
        steps,
        tuple(dict.fromkeys(each for one in found for each in one.differed)),
        tuple(dict.fromkeys(each for one in found for each in one.not_set)),
        max(distances, default=None),
        tuple(dict.fromkeys(left)),
    )
