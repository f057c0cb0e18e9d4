"""What the process holds beside the recorded steps, behind the first and the last of them: equal in both runs or not.

A mean of weights, a target network, a network whose optimizer has not stepped, a parameter without gradient: no call
of a recorded step need show them. What may be of no use at all is noted where it differs, and parts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.finding import Evidence, Finding, Kind, Metrics, Origin, Outcome, Pair
from lockstep.core.records import TensorRecord
from lockstep.core.site import Phase, Role, Site
from lockstep.core.states import Moment, Standing, StateRecord
from lockstep.core.text import listed
from lockstep.judge.tolerances import END_ROUNDINGS, FOLLOWING_NOISE
from lockstep.locate.training_sides import (
    SIDES,
    Beside,
    Side,
    States,
    beside,
    is_equal,
    relative,
    root_of,
)

_PHASES = {Moment.FIRST: Phase.INIT, Moment.LAST: Phase.OPTIMIZER}


@dataclass(frozen=True, slots=True)
class HeldStates:
    """What was found of the states of one rank.

    Attributes
    ----------
    origins
        The first differences that are more than rounding, those of one moment and root as one.
    unclear
        Differences that rounding may make, in words.
    notes
        What else is to be known, in words.
    """

    origins: tuple[Origin, ...] = ()
    unclear: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def held_states(rank: str, reference: Side, candidate: Side, *, equal: bool) -> HeldStates:
    """Hold the states of one rank behind the first and the last recorded step against each other.

    Parameters
    ----------
    rank
        What it is called.
    reference, candidate
        Its two runs, by the reference's names.
    equal
        Whether all that was recorded is equal bit by bit; else only what is held beside is looked at, and what noise
        may have made of it is no difference.
    """
    found = beside(reference, candidate)
    origins, unclear, known = list[Origin](), list[str](), set[str]()
    for moment, left, right in _moments(reference, candidate):
        noise = None if equal else _noise(left, right)
        for root, keys in _differing(left, right, equal=equal).items():
            if root in known or found.is_idle(left[keys[0]]):
                continue
            known.add(root)
            keys.sort(key=lambda one: one[0] is not Role.PARAM)
            key = max(keys, key=lambda one: _rank_of(left[one], right[one]))
            far = _far(left[key], right[key])
            tolerance = _tolerance(left[key], noise)
            names = [name for _, name in keys]
            if far > tolerance:
                origins.append(
                    _origin(rank, moment, (left[key], right[key]), names, far, tolerance)
                )
            elif equal:
                unclear.append(
                    f"{rank}: {listed(names)} behind step {left[key].step - 1}, by rel {far:.2g}"
                )
    unclear.extend(_moving_alone(rank, reference, candidate))
    notes = [
        f"{root} is held beside the training and differs; nothing recorded tells whether it is used"
        for root in _idle_that_differ(reference, candidate, found)
    ]
    return HeldStates(tuple(origins), tuple(unclear), tuple(notes))


def _moments(reference: Side, candidate: Side) -> Iterator[tuple[Moment, States, States]]:
    yield Moment.FIRST, reference.first, candidate.first
    yield Moment.LAST, reference.last, candidate.last


def _moving_alone(rank: str, *sides: Side) -> Iterator[str]:
    """What one run alone holds beside its training, and changes."""
    roots = [beside(side) for side in sides]
    for name, one, other in zip(SIDES, roots, reversed(roots), strict=True):
        if alone := sorted(one.moving - other.every):
            yield f"{rank}: {listed(alone)} changes beside the training in the {name} alone"


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


def _far(left: StateRecord, right: StateRecord) -> float:
    far = relative(left.content, right.content)
    return math.inf if math.isnan(far) else far


def _rank_of(left: StateRecord, right: StateRecord) -> tuple[bool, float]:
    """What makes one of several that differ together stand for them: numbers that round, furthest apart."""
    far = _far(left, right)
    return math.isfinite(far), far


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


def _origin(
    rank: str,
    moment: Moment,
    both: tuple[StateRecord, StateRecord],
    names: list[str],
    far: float,
    tolerance: float,
) -> Origin:
    state, step, phase = both[0], both[0].step - 1, _PHASES[moment]
    left, right = (_record(rank, one, step, phase) for one in both)
    held = " held beside the training" if state.standing is Standing.BESIDE else ""
    verb = "differ" if len(names) > 1 else "differs"
    distance = "" if math.isinf(far) else f" (rel {far:.2g})"
    when = (
        ""
        if moment is Moment.FIRST
        else ", equal behind the first recorded step and changed by no recorded call"
    )
    reason = f"{listed(names)}{',' + held + ',' if held else ''} {verb} behind step {step}{distance}{when}"
    kind = Kind.SETUP if moment is Moment.FIRST else Kind.FAULT
    metrics = Metrics(Evidence.SKETCH, rel_l2=far)
    finding = Finding(Pair(left, right), Outcome.DIFFER, metrics, far, tolerance, reason, kind=kind)
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


def _record(rank: str, state: StateRecord, step: int, phase: Phase) -> TensorRecord:
    site = Site(state.module, "", 0, phase)
    return TensorRecord(rank, step, site, state.role, 0, state.name, 0, 0, state.content)
