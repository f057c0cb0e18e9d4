"""Compare other state of the process (means of weights, target networks) after the first and last recorded step.

A mean of weights, a target network, a network whose optimizer has not stepped, a parameter without gradient: no call
of a recorded step need show them. What may be of no use at all is noted where it differs, and parts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Evidence, Finding, Kind, Metrics, Origin, Outcome, Pair
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.core.reason import Reason
from lockstep.core.records import Content, TensorRecord
from lockstep.core.remarks import On, Remark
from lockstep.core.site import Phase, Role, Site
from lockstep.core.states import Moment, Standing, StateRecord
from lockstep.core.text import listed
from lockstep.judge.tolerances import END_ROUNDINGS, FOLLOWING_NOISE, LEAST_SHARE
from lockstep.locate.ends.training_sides import (
    SIDES,
    Beside,
    Side,
    States,
    beside,
    is_equal,
    relative,
    root_of,
)
from lockstep.locate.flow.words import count_words

_PHASES = {Moment.FIRST: Phase.INIT, Moment.LAST: Phase.OPTIMIZER}


@dataclass(frozen=True, slots=True)
class HeldStates:
    """The differences found in the states of one rank.

    origins: The first differences that are more than rounding, those of one moment and root as one.
    unclear: Differences that rounding may make.
    notes: What else is to be known.
    """

    origins: tuple[Origin, ...] = ()
    unclear: tuple[NotCompared, ...] = ()
    notes: tuple[Remark, ...] = ()


def held_states(rank: str, reference: Side, candidate: Side, *, equal: bool) -> HeldStates:
    """Compare the states of one rank after the first and the last recorded step.

    rank: What it is called.
    reference, candidate: Its two runs, by the reference's names.
    equal: Whether all that was recorded is equal bit by bit; else only what is held beside is looked at, and what noise
        may have made of it is no difference.
    """
    found = beside(reference, candidate)
    origins, unclear, known = list[Origin](), list[NotCompared](), set[str]()
    notes = list[Remark]()
    for moment, left, right in _moments(reference, candidate):
        noise = None if equal else _noise(left, right)
        for root, keys in _differing(left, right, equal=equal).items():
            if root in known or found.is_idle(left[keys[0]]):
                continue
            known.add(root)
            apart = [_Apart(left[key], right[key], noise) for key in keys]
            apart.sort(key=_Apart.order, reverse=True)
            first = apart[0]
            if first.is_beyond:
                origins.append(_origin(rank, moment, apart))
            elif equal and moment is Moment.LAST and _is_small(keys, reference, candidate):
                notes.append(Remark(On.ROUNDED, names=tuple(one.name for one in apart)))
            elif equal:
                names = tuple(one.name for one in apart)
                unclear.append(
                    NotCompared(
                        WhyNot.HELD,
                        rank=rank,
                        names=names,
                        step=first.step,
                        reason=f"{first.far:.2g}",
                    )
                )
    unclear.extend(_moving_alone(rank, reference, candidate))
    notes.extend(
        Remark(On.HELD_IDLE, rank=rank, names=(root,))
        for root in _idle_that_differ(reference, candidate, found)
    )
    return HeldStates(tuple(origins), tuple(unclear), tuple(notes))


def _is_small(keys: Sequence[tuple[Role, str]], reference: Side, candidate: Side) -> bool:
    """Whether states are next to nothing apart, beside how far each has gone since the first recorded step.

    A mean of weights that moves little per step is within roundings whatever its decay; of one that moves much more
    than it is apart, no share of the way can be wrong.
    """
    return all(
        key in reference.first
        and key in candidate.first
        and relative(reference.last[key].content, candidate.last[key].content)
        <= LEAST_SHARE * relative(side.first[key].content, side.last[key].content)
        for key in keys
        for side in (reference, candidate)
    )


def _moments(reference: Side, candidate: Side) -> Iterator[tuple[Moment, States, States]]:
    yield Moment.FIRST, reference.first, candidate.first
    yield Moment.LAST, reference.last, candidate.last


def _moving_alone(rank: str, *sides: Side) -> Iterator[NotCompared]:
    """What one run alone holds beside its training, and changes."""
    roots = [beside(side) for side in sides]
    lone = [
        sorted(one.moving - other.every) for one, other in zip(roots, reversed(roots), strict=True)
    ]
    for one, two in product(*lone):
        if (
            one in lone[0]
            and two in lone[1]
            and _are_alike(_of_root(one, sides[0]), _of_root(two, sides[1]))
        ):
            lone[0].remove(one)
            lone[1].remove(two)
    for name, alone in zip(SIDES, lone, strict=True):
        if alone:
            yield NotCompared(WhyNot.HELD_ALONE, rank=rank, names=tuple(alone), side=name)


def _of_root(root: str, side: Side) -> list[list[Content]]:
    """The tensors of one root at each moment, in their order; single numbers, which count, are not among them."""
    return [
        [one.content for one in states.values() if root_of(one) == root and one.content.numel > 1]
        for states in side.moments
    ]


def _are_alike(left: list[list[Content]], right: list[list[Content]]) -> bool:
    """Whether what two runs hold by other names is the same at each moment: equal from the first recorded step on, and
    next to nothing apart beside how far it has gone since.

    So is a mean of weights that one run keeps in a class of its own.
    """
    forms = [[_form(one) for one in moment] for moment in (*left, *right) if moment]
    seen = [list(map(bool, side)) for side in (left, right)]
    if not left[0] or seen[0] != seen[1] or any(one != forms[0] for one in forms):
        return False
    begun = all(map(_is_same, left[0], right[0]))
    gone = [
        _is_same(one, two)
        or relative(one, two) <= LEAST_SHARE * min(relative(start, one), relative(other, two))
        for ours, theirs in zip(left[1:], right[1:], strict=True)
        if ours
        for one, two, start, other in zip(ours, theirs, left[0], right[0], strict=True)
    ]
    return begun and all(gone)


def _form(content: Content) -> tuple[str, tuple[int, ...]]:
    return content.dtype, content.shape


def _is_same(one: Content, two: Content) -> bool:
    return one.digest is not None and one.digest == two.digest


def _idle_that_differ(reference: Side, candidate: Side, found: Beside) -> list[str]:
    """Roots that differ and that nothing tells to be of use."""
    roots = dict.fromkeys(
        root_of(state)
        for left, right in zip(reference.moments, candidate.moments, strict=True)
        for key, state in left.items()
        if found.is_idle(state) and key in right and not is_equal(state, right[key])
    )
    return list(roots)


def _differing(left: States, right: States, *, equal: bool) -> dict[str, list[tuple[Role, str]]]:
    """Keys that differ, by root; without what recorded steps show where these differ themselves."""
    found: dict[str, list[tuple[Role, str]]] = {}
    for key, state in left.items():
        other = right.get(key)
        if other is None or None in (state.content.digest, other.content.digest):
            continue
        if state.step != other.step:
            continue  # the last recorded step of one run is not that of the other
        if (equal or state.standing is Standing.BESIDE) and not is_equal(state, other):
            found.setdefault(root_of(state), []).append(key)
    return found


@dataclass(frozen=True, slots=True)
class _Apart:
    """A state that differs between the two runs, where what is trained is `noise` apart; None where it is equal."""

    left: StateRecord
    right: StateRecord
    noise: float | None

    @property
    def name(self) -> str:
        return self.left.name

    @property
    def step(self) -> int:
        return self.left.step - 1

    @property
    def far(self) -> float:
        far = relative(self.left.content, self.right.content)
        return math.inf if math.isnan(far) else far

    @property
    def tolerance(self) -> float:
        return _tolerance(self.left, self.noise)

    @property
    def is_beyond(self) -> bool:
        return self.far > self.tolerance

    @property
    def counts(self) -> str:
        """Return both values of a count in words."""
        return count_words(_pair("", self, Phase.INIT))

    def order(self) -> tuple[bool, bool, float]:
        """The order of states that differ: numbers that round come first, by their excess."""
        finite = math.isfinite(self.far) and self.tolerance > 0
        ratio = self.far / self.tolerance if finite else 0.0
        return finite and self.is_beyond, bool(self.counts), ratio


def _noise(left: States, right: States) -> float:
    """How far apart the trained parameters are at a moment, at most: what follows them may be so too."""
    return max(
        (
            relative(state.content, right[key].content)
            for key, state in left.items()
            if key in right and key[0] is Role.PARAM and state.standing is not Standing.BESIDE
        ),
        key=lambda far: -1.0 if math.isnan(far) else far,
        default=0.0,
    )


def _tolerance(state: StateRecord, noise: float | None) -> float:
    """How far something may be off, given how far what is trained is; None where all of that is equal bit by bit."""
    roundoff = unit_roundoff(state.content.dtype)
    if noise is not None:
        return math.sqrt(roundoff) + FOLLOWING_NOISE * noise
    return (END_ROUNDINGS + math.sqrt(max(0, state.step))) * roundoff


# --- origins ------------------------------------------------------------------------------------


def _origin(rank: str, moment: Moment, apart: Sequence[_Apart]) -> Origin:
    """The origin at the first of several states that differ together."""
    first = apart[0]
    state, step, phase = first.left, first.step, _PHASES[moment]
    reason = Reason(_sentence(moment, apart))
    far, tolerance = first.far, first.tolerance
    kind = Kind.SETUP if moment is Moment.FIRST else Kind.FAULT
    metrics = Metrics(Evidence.SKETCH, rel_l2=far)
    pair = _pair(rank, first, phase)
    finding = Finding(pair, Outcome.DIFFER, metrics, far, tolerance, reason, kind=kind)
    return Origin(
        rank=rank,
        step=step,
        phase=phase,
        module=state.module,
        module_class="",
        op="",
        call=0,
        role=state.role,
        index=0,
        tensor=state.name,
        source="",
        finding=finding,
        reason=reason,
        kind=kind,
    )


def _sentence(moment: Moment, apart: Sequence[_Apart]) -> str:
    """What differs, what left first ahead of what follows it: `ema.mean, held beside the training, differs ...`."""
    first = apart[0]
    own = [one.name for one in apart if one.is_beyond]
    held = ", held beside the training," if first.left.standing is Standing.BESIDE else ""
    if first.counts and len(own) == 1:
        verb = first.counts
    else:
        distance = "" if math.isinf(first.far) else f" (rel {first.far:.2g})"
        verb = f"{'differ' if len(own) > 1 else 'differs'} after step {first.step}{distance}"
    if moment is Moment.LAST:
        verb += ", equal after the first recorded step and changed by no recorded call"
    more = len(apart) - len(own)
    follow = f"; {more} more differ by no more than what they follow does" if more else ""
    return f"{listed(own)}{held} {verb}{follow}"


def _pair(rank: str, apart: _Apart, phase: Phase) -> Pair:
    left, right = (_record(rank, one, apart.step, phase) for one in (apart.left, apart.right))
    return Pair(left, right)


def _record(rank: str, state: StateRecord, step: int, phase: Phase) -> TensorRecord:
    site = Site(state.module, "", 0, phase)
    return TensorRecord(rank, step, site, state.role, 0, state.name, 0, 0, state.content)
