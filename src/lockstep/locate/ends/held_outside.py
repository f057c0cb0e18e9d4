"""Compare the tensors and settings that variables of two scripts lead to at the end.

Things are paired by their paths. A script that was written anew may call things otherwise or keep others, so what one
run alone has by its own name is noted; what both have by one name, and one of them as nothing or without an element,
differs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.align.settings import differing_settings
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.records import Content
from lockstep.core.remarks import On, Remark
from lockstep.core.site import Role
from lockstep.core.states import Standing, StateRecord
from lockstep.judge.tolerances import END_ROUNDINGS, FOLLOWING_NOISE
from lockstep.locate.ends.training_sides import SIDES, Side, further_apart, is_equal, relative


@dataclass(frozen=True, slots=True)
class HeldOutside:
    """The differences found in variables of the scripts.

    differs: What differs.
    certain: Whether that is more than rounding can make of it.
    unseen: What was not looked at.
    notes: What else is to be known.
    rounded: Whether anything differs by no more than rounding.
    """

    differs: tuple[Remark, ...] = ()
    certain: bool = False
    unseen: tuple[Remark, ...] = ()
    notes: tuple[Remark, ...] = ()
    rounded: bool = False


def held_outside(reference: Side, candidate: Side) -> HeldOutside:
    """Compare the state of the scripts, if all recorded steps and the ends are equal bit by bit."""
    unseen = tuple(_unseen(reference, candidate))[:1]
    if reference.settings is None or candidate.settings is None:
        return HeldOutside(unseen=unseen)
    settings = _other_settings(reference, candidate, equal=True)
    found = _others(reference, candidate)
    others = [name for name in found if not _is_one_number(name, reference, candidate)]
    lost = [*_lost(reference, candidate)]
    differs = [*settings.certain, *lost]
    roundings = END_ROUNDINGS + math.sqrt(reference.steps or 0)
    beyond = [
        name for name in others if _is_beyond(reference.held[name], candidate.held[name], roundings)
    ]
    untold = [
        name for name in others if name not in beyond and _is_untold(name, reference, candidate)
    ]
    if beyond or untold:  # the ones that tell most come first
        names = _named_once([*beyond, *untold], reference, candidate)
        differs.insert(0, Remark(On.DIFFERS, names=names))
    rounded = [name for name in others if name not in (*beyond, *untold)]
    notes = (
        *settings.notes,
        *_of(On.ROUNDED, _named_once(rounded, reference, candidate)),
        *_of(On.SINGLE_NUMBERS, [name for name in found if name not in others]),
        *_alone(reference, candidate),
        *_unread(reference, candidate),
    )
    return HeldOutside(
        tuple(differs[:_SHOWN]),
        bool(beyond or settings.certain or lost),
        unseen,
        notes,
        bool(rounded),
    )


_SHOWN = 3


def held_beyond_noise(reference: Side, candidate: Side) -> tuple[Remark, ...]:
    """Return notes on things that differ by more than noise, where the recorded steps differ by noise."""
    if reference.settings is None or candidate.settings is None:
        return ()
    noise = max(
        (
            relative(state.content, candidate.end[key].content)
            for key, state in reference.end.items()
            if key[0] is Role.PARAM and key in candidate.end
        ),
        key=lambda far: -1.0 if math.isnan(far) else far,
        default=0.0,
    )
    far = [
        name
        for name in _others(reference, candidate)
        if _is_beyond_noise(reference.held[name].content, candidate.held[name].content, noise)
    ]
    return (*_of(On.BEYOND_NOISE, far), *_other_settings(reference, candidate, equal=False).certain)


def _of(subject: On, names: Sequence[str], side: str = "") -> Iterator[Remark]:
    """A remark on some names, where there are any."""
    if names:
        yield Remark(subject, names=tuple(names), side=side)


# --- tensors ------------------------------------------------------------------------------------


def _others(*sides: Side) -> list[str]:
    """Paths to tensors that differ. What is trained is compared by its own name, whatever list leads to it."""
    return [
        name
        for name, state in sides[0].held.items()
        if (other := sides[1].held.get(name)) is not None
        and None not in (state.content.digest, other.content.digest)
        and not (state.standing is other.standing is Standing.TRAINED)
        and not is_equal(state, other)
    ]


def _is_one_number(name: str, *sides: Side) -> bool:
    """Whether a tensor is a single number, as a loss that is summed for a log: it may differ and train nothing."""
    return all(side.held[name].content.numel <= 1 for side in sides)


def _is_untold(name: str, *sides: Side) -> bool:
    """Whether nothing tells how far apart two tensors are."""
    return math.isnan(relative(*(side.held[name].content for side in sides)))


def _named_once(names: Iterable[str], *sides: Side) -> tuple[str, ...]:
    """Paths without longer ones to the same, as of a function that another one has called."""
    found: dict[tuple[str | None, ...], str] = {}
    for name in names:
        key = tuple(side.held[name].content.digest for side in sides if name in side.held)
        found[key] = min(name, found.get(key, name), key=_steps_of)  # the outer one comes last
    return tuple(found.values())


def _steps_of(name: str) -> int:
    return sum(1 for _ in _above(name))


def _is_beyond(left: StateRecord, right: StateRecord, roundings: float) -> bool:
    one, two = left.content, right.content
    if (one.dtype, one.shape) != (two.dtype, two.shape) or not is_floating(one.dtype):
        return True
    return further_apart(one, two) > roundings * unit_roundoff(one.dtype)


def _is_beyond_noise(left: Content, right: Content, noise: float) -> bool:
    if left.dtype != right.dtype or not is_floating(left.dtype):
        return False
    return relative(left, right) > math.sqrt(unit_roundoff(left.dtype)) + FOLLOWING_NOISE * noise


def _lost(*sides: Side) -> Iterator[Remark]:
    """What is there in one run, and in the other one nothing, or a container without that element, by the same name.

    Where the other one has nothing at all, only what has the shape of something trained counts, as a copy or a mean of
    it has: options may be left out too.
    """
    shapes = {state.content.shape for side in sides for state in side.end.values()}
    for index, side in enumerate(sides):
        other = sides[1 - index]
        nothing = {path for path, value in (other.settings or {}).items() if value.value is None}
        filled = _containers(other.held)
        names = [
            name
            for name in side.held
            if name not in other.held
            and side.held[name].standing is not Standing.TRAINED
            and not _is_one_number(name, side)
            and (
                _containers([name]) & filled
                or (
                    side.held[name].content.shape in shapes
                    and any(above in nothing for above in _above(name))
                )
            )
        ]
        yield from _of(On.THERE_ALONE, _named_once(names, side), SIDES[index])


_ELEMENT = re.compile(r"\[[^\]]*\]$|\{[^}]*\}$")
_STEP = re.compile(r"\.[^.\[{]+$|\[[^\]]*\]$|\{[^}]*\}$")


def _above(name: str) -> Iterator[str]:
    """The path itself, and those to what it leads through."""
    while name:
        yield name
        shorter = _STEP.sub("", name)
        if shorter == name:
            return
        name = shorter


def _containers(names: Iterable[str]) -> set[str]:
    """Paths to dictionaries and lists that hold one of these as an element."""
    return {name[: -len(found[0])] for name in names if (found := _ELEMENT.search(name))}


def _alone(*sides: Side) -> Iterator[Remark]:
    """What one run alone has by its names, so that it was not compared: the variables that lead there."""
    for index, side in enumerate(sides):
        other = sides[1 - index].held
        names = dict.fromkeys(
            _variable(name)
            for name, state in side.held.items()
            if name not in other and state.standing is Standing.OUTSIDE
        )
        yield from _of(On.LEADS_ALONE, [*names], SIDES[index])


def _variable(name: str) -> str:
    """The variable that a path begins at, with the function that it is of."""
    return re.split(r"[\[{]", name, maxsplit=1)[0]


def _unread(*sides: Side) -> Iterator[Remark]:
    names = [
        name
        for name, state in sides[0].held.items()
        if (other := sides[1].held.get(name)) is not None
        and None in (state.content.digest, other.content.digest)
    ]
    if names:
        why = sides[0].held[names[0]].content.note
        yield Remark(On.UNREAD, names=tuple(names), reason=why)


# --- settings -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Settings:
    certain: list[Remark]
    notes: list[Remark]


def _other_settings(*sides: Side, equal: bool) -> _Settings:
    """Settings with another value; numbers that move in both runs are noted: counts and times may do so.

    `equal` tells that what was trained is equal at the end.
    """
    left, right = (side.settings or {} for side in sides)
    both = [
        {path: one.value for path, one in side.items() if one.value is not None}
        for side in (left, right)
    ]
    certain, notes, idle = list[Remark](), list[Remark](), list[Remark]()
    for one in differing_settings(*both):
        if _is_of_moved_group(one.name, *both):
            continue
        moves = left[one.name].moves and right[one.name].moves
        moves = moves or _is_set_elsewhere(one.name, *sides, equal=equal)
        is_idle = _changed_nothing(one.name, *sides)
        reference, candidate = one.shown
        subject = On.SETTING_IDLE if is_idle else On.SETTING
        differs = Remark(subject, names=(one.name,), reference=reference, candidate=candidate)
        (idle if is_idle else notes if moves else certain).append(differs)
    since, later = _trainable(*sides)
    certain.extend(later)
    return _Settings(_shortened(certain), [*idle, *since, *_shortened(notes)])


def _is_of_moved_group(name: str, *both: Mapping[str, Any]) -> bool:
    """Whether it is an option of an optimizer whose groups are the other run's in another order.

    Which parameters have which option is told by their updates.
    """
    found = _OPTION.fullmatch(name)
    if found is None:
        return False
    optimizer = found["group"].rpartition("[")[0]
    groups = [_groups(settings, optimizer) for settings in both]
    return sorted(map(repr, groups[0])) == sorted(map(repr, groups[1]))


def _groups(settings: Mapping[str, Any], optimizer: str) -> list[list[tuple[str, Any]]]:
    """The options of each group of an optimizer."""
    groups: dict[str, list[tuple[str, Any]]] = {}
    for path, value in settings.items():
        found = _OPTION.fullmatch(path)
        if found is not None and found["group"].rpartition("[")[0] == optimizer:
            groups.setdefault(found["group"], []).append((found["name"], value))
    return [sorted(options, key=lambda one: one[0]) for options in groups.values()]


_OPTION = re.compile(r"(?P<group>.*\.param_groups\[\d+\])\['(?P<name>[^']+)'\]")


def _is_set_elsewhere(name: str, *sides: Side, equal: bool) -> bool:
    """Whether an option of an optimizer differs at the end by when or where the scripts set it.

    A rate that changes from step to step is set before an update or, by a scheduler, behind it: at the end one run has
    that of the last update and the other one the next. Where both have a next one, these are two schedules, unless the
    runs have trained by them until they ended equal. And where the two have their parameters in other groups, one path
    leads to other parameters.
    """
    if (option := _OPTION.fullmatch(name)) is None:
        return False
    groups = [
        {found["group"] for path in side.settings or {} if (found := _OPTION.fullmatch(path))}
        for side in sides
    ]
    if groups[0] != groups[1]:
        return True
    key = option["name"]
    if any(key not in side.scheduled for side in sides):
        return False
    stands = [(side.settings or {})[name].value in side.scheduled[key] for side in sides]
    return stands[0] != stands[1] or (equal and all(side.went_on for side in sides))


def _changed_nothing(name: str, *sides: Side) -> bool:
    """Whether a setting is an attribute of a module, and had its value when the recorded steps called that.

    Or it is an option of an optimizer, and the updates of these steps had it.

    It is part of what these steps computed, and they are equal. Up to the end nothing that was trained differs by more
    than they do, or that is told for itself. A mode is what the next step goes by, and what moves is no choice.
    """
    if name.endswith(".training"):
        return False
    for side in sides:
        held = (side.settings or {}).get(name)
        if held is None or held.value is None or held.moves:
            return False
        if not any(
            type(one) is type(held.value) and one == held.value for one in _then(name, side)
        ):
            return False
    return True


def _then(name: str, side: Side) -> Sequence[Any]:
    """What a setting was in the recorded steps; an option of an optimizer may be one of several groups'.

    A number enters each update. What switches something on (`amsgrad`, a mode) may show in later ones alone.
    """
    if (option := _OPTION.fullmatch(name)) is not None:
        return [one for one in side.chosen.get(option["name"], ()) if not isinstance(one, bool)]
    return (side.attribute_then(name),)


def _trainable(*sides: Side) -> tuple[list[Remark], list[Remark]]:
    """Parameters that require a gradient at the end of one run alone: since the recorded steps, and otherwise.

    All of these steps are equal. What one run froze before them, and the other left out of its graph, changed none of
    their numbers.
    """
    since, later = list[Remark](), list[Remark]()
    for index, side in enumerate(sides):
        keys = [
            key
            for key, state in side.end.items()
            if key[0] is Role.PARAM
            and state.trainable
            and key in sides[1 - index].end
            and not sides[1 - index].end[key].trainable
        ]
        stood = [key for key in keys if all(_stood(key, one) for one in sides)]
        moved = [key for key in keys if key not in stood]
        since.extend(_of(On.TRAINABLE_IDLE, [name for _, name in stood], SIDES[index]))
        later.extend(_of(On.TRAINABLE_ALONE, [name for _, name in moved], SIDES[index]))
    return since, later


def _stood(key: tuple[Role, str], side: Side) -> bool:
    """Whether a parameter has been frozen, or not, from the first recorded step to the end, and was never updated."""
    states = [moment.get(key) for moment in side.moments]
    kept = {(one.trainable, one.content.digest) for one in states if one is not None}
    return None not in states and len(kept) == 1


def _shortened(every: list[Remark]) -> list[Remark]:
    more = len(every) - _SHOWN
    return [*every[:_SHOWN], Remark(On.MORE_SETTINGS, count=more)] if more > 0 else every


def _unseen(*sides: Side) -> Iterator[Remark]:
    for name, side in zip(SIDES, sides, strict=True):
        if side.settings is None:
            yield Remark(On.VARIABLES_UNRECORDED, side=name)
    for name, side in zip(SIDES, sides, strict=True):
        if side.held_cut:
            yield Remark(On.VARIABLES_UNSEEN, side=name, reason=side.held_cut)
