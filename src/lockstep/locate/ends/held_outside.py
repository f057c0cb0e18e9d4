"""Compare the tensors and settings that variables of two scripts lead to at the end.

Things are paired by their paths. A script that was written anew may call things otherwise or keep others, so what one
run alone has by its own name is noted; what both have by one name, and one of them as nothing or without an element,
differs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from lockstep.align.settings import differing_settings
from lockstep.core.dtypes import is_floating, unit_roundoff
from lockstep.core.records import Content
from lockstep.core.site import Role
from lockstep.core.states import Standing, StateRecord
from lockstep.core.text import listed
from lockstep.judge.tolerances import END_ROUNDINGS, FOLLOWING_NOISE
from lockstep.locate.ends.training_sides import SIDES, Side, further_apart, is_equal, relative


@dataclass(frozen=True, slots=True)
class HeldOutside:
    """The differences found in variables of the scripts.

    Attributes
    ----------
    words
        What differs, "" where nothing does.
    certain
        Whether that is more than rounding can make of it.
    unseen
        What was not looked at, "" where all was.
    notes
        What else is to be known, a sentence each.
    rounded
        Whether anything differs by no more than rounding.
    """

    words: str = ""
    certain: bool = False
    unseen: str = ""
    notes: tuple[str, ...] = ()
    rounded: bool = False


def held_outside(reference: Side, candidate: Side) -> HeldOutside:
    """Compare the state of the scripts, if all recorded steps and the ends are equal bit by bit."""
    unseen = _unseen(reference, candidate)
    if reference.settings is None or candidate.settings is None:
        return HeldOutside(unseen=unseen)
    settings = _other_settings(reference, candidate)
    found = _others(reference, candidate)
    others = [name for name in found if not _is_one_number(name, reference, candidate)]
    lost = [*_lost(reference, candidate)]
    words = [*settings.certain, *lost]
    roundings = END_ROUNDINGS + math.sqrt(reference.steps or 0)
    beyond = [
        name for name in others if _is_beyond(reference.held[name], candidate.held[name], roundings)
    ]
    untold = [
        name for name in others if name not in beyond and _is_untold(name, reference, candidate)
    ]
    if beyond or untold:  # the ones that tell most come first
        names = _named_once([*beyond, *untold], reference, candidate)
        words.insert(0, f"{listed(names)} {'differ' if len(names) > 1 else 'differs'} at the end")
    rounded = [name for name in others if name not in (*beyond, *untold)]
    notes = (
        *settings.notes,
        *_rounded(_named_once(rounded, reference, candidate)),
        *_logged([name for name in found if name not in others]),
        *_alone(reference, candidate),
        *_unread(reference, candidate),
    )
    return HeldOutside(
        "; ".join(words[:_SHOWN]),
        bool(beyond or settings.certain or lost),
        unseen,
        notes,
        bool(rounded),
    )


_SHOWN = 3


def held_beyond_noise(reference: Side, candidate: Side) -> tuple[str, ...]:
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
    notes = [
        f"{listed(far)} {'are' if len(far) > 1 else 'is'} further apart at the end than noise explains"
    ]
    return (*(notes if far else ()), *_other_settings(reference, candidate).certain)


# --- tensors ------------------------------------------------------------------------------------


def _others(*sides: Side) -> list[str]:
    """Paths to tensors that differ."""
    return [
        name
        for name, state in sides[0].held.items()
        if (other := sides[1].held.get(name)) is not None
        and None not in (state.content.digest, other.content.digest)
        and not is_equal(state, other)
    ]


def _is_one_number(name: str, *sides: Side) -> bool:
    """Whether a tensor is a single number, as a loss that is summed for a log: it may differ and train nothing."""
    return all(side.held[name].content.numel <= 1 for side in sides)


def _logged(names: Sequence[str]) -> Iterator[str]:
    if names:
        verb = "differ" if len(names) > 1 else "differs"
        yield f"{listed(names)} {verb} at the end: single numbers, which may be logged alone, are not judged"


def _rounded(names: Sequence[str]) -> Iterator[str]:
    if names:
        verb = "differ" if len(names) > 1 else "differs"
        yield f"{listed(names)} {verb} at the end by no more than rounding"


def _is_untold(name: str, *sides: Side) -> bool:
    """Whether nothing tells how far apart two tensors are."""
    return math.isnan(relative(*(side.held[name].content for side in sides)))


def _named_once(names: Iterable[str], *sides: Side) -> list[str]:
    """Paths without longer ones to the same, as of a function that another one has called."""
    found: dict[tuple[str | None, ...], str] = {}
    for name in names:
        key = tuple(side.held[name].content.digest for side in sides if name in side.held)
        found[key] = min(name, found.get(key, name), key=_steps_of)  # the outer one comes last
    return list(found.values())


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


def _lost(*sides: Side) -> Iterator[str]:
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
            and not _is_one_number(name, side)
            and (
                _containers([name]) & filled
                or (
                    side.held[name].content.shape in shapes
                    and any(above in nothing for above in _above(name))
                )
            )
        ]
        if names:
            names = _named_once(names, side)
            verb = "are" if len(names) > 1 else "is"
            yield f"{listed(names)} {verb} there at the end of the {SIDES[index]} alone"


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


def _alone(*sides: Side) -> Iterator[str]:
    """What one run alone has by its names, so that it was not compared: the variables that lead there."""
    for index, side in enumerate(sides):
        other = sides[1 - index].held
        names = dict.fromkeys(
            _variable(name)
            for name, state in side.held.items()
            if name not in other and state.standing is Standing.OUTSIDE
        )
        if names:
            verb = "lead" if len(names) > 1 else "leads"
            yield (
                f"{listed([*names])} {verb} to tensors at the end of the {SIDES[index]} alone;"
                " these were not compared"
            )


def _variable(name: str) -> str:
    """The variable that a path begins at, with the function that it is of."""
    return re.split(r"[\[{]", name, maxsplit=1)[0]


def _unread(*sides: Side) -> Iterator[str]:
    names = [
        name
        for name, state in sides[0].held.items()
        if (other := sides[1].held.get(name)) is not None
        and None in (state.content.digest, other.content.digest)
    ]
    if names:
        yield f"{listed(names)} could not be read at the end: {sides[0].held[names[0]].content.note}"


# --- settings -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Settings:
    certain: list[str]
    notes: list[str]


def _other_settings(*sides: Side) -> _Settings:
    """Settings with another value, in words; numbers that move in both runs are noted: counts and times may do so."""
    left, right = (side.settings or {} for side in sides)
    both = [
        {path: one.value for path, one in side.items() if one.value is not None}
        for side in (left, right)
    ]
    certain, notes = list[str](), list[str]()
    for one in differing_settings(*both):
        moves = left[one.name].moves and right[one.name].moves
        shown = one.shown
        words = (
            f"{one.name} is {shown[0]} in the reference and {shown[1]} in the candidate at the end"
        )
        (notes if moves else certain).append(words)
    certain.extend(_trainable(*sides))
    return _Settings(_shortened(certain), _shortened(notes))


def _trainable(*sides: Side) -> Iterator[str]:
    """Parameters that require a gradient at the end of one run alone."""
    for index, side in enumerate(sides):
        names = [
            key[1]
            for key, state in side.end.items()
            if key[0] is Role.PARAM
            and state.trainable
            and key in sides[1 - index].end
            and not sides[1 - index].end[key].trainable
        ]
        if names:
            verb = "require" if len(names) > 1 else "requires"
            yield f"{listed(names)} {verb} a gradient at the end of the {SIDES[index]} alone"


def _shortened(words: Iterable[str]) -> list[str]:
    every = list(words)
    return (
        every
        if len(every) <= _SHOWN
        else [*every[:_SHOWN], f"{len(every) - _SHOWN} more settings differ"]
    )


def _unseen(*sides: Side) -> str:
    for name, side in zip(SIDES, sides, strict=True):
        if side.settings is None:
            return f"other variables of the {name}'s script were not recorded"
    found = [
        f"{side.held_cut} in the {name}"
        for name, side in zip(SIDES, sides, strict=True)
        if side.held_cut
    ]
    return f"not looked at: {found[0]}" if found else ""
