"""One story of an origin: what comparing named, and what running it again says of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.report.paragraphs import counted
from lockstep.wings.replay.chosen_calls import AtOrigin
from lockstep.wings.replay.replayed_call import Conclusion, ReplayedCall


@dataclass(frozen=True, slots=True)
class Story:
    """The words about the re-runs of an origin.

    words: In a sentence.
    explained: Whether that is why the runs part, with every operator sound.
    tested: The call that a test is written of; None where there is none.
    cannot_show: Why a test of it passes though the runs part, or "".
    """

    words: str
    explained: bool
    tested: ReplayedCall | None
    cannot_show: str = ""


def story_of(origin: AtOrigin, calls: Sequence[ReplayedCall]) -> Story:
    """Return the conclusion from an origin's calls, as they were run again."""
    reference, candidate, crossed = _parts(calls)
    if origin.of_class:
        members = [one for one in calls if one.chosen.crossed and one.held]
        return _of_a_class(origin, members, candidate or reference)
    off = next(
        (one for one in (candidate, reference) if one is not None and one.recorded_off), None
    )
    if off is not None:
        took = off is candidate and origin.of_another_input
        return _one_is_off(off, origin.instead if took else "")
    if origin.between_steps:
        return _between_steps(origin.between_steps, candidate or reference)
    if crossed is not None and crossed.recorded_off:
        return _called_otherwise(reference, candidate, crossed)
    if reference is not None and candidate is not None:
        refused = "" if crossed is None else crossed.refused
        more = _inputs(reference.call) != _inputs(candidate.call)
        if (refused or more) and _is_called_otherwise(reference, candidate):
            return _sound_but_called_otherwise(reference, candidate, refused)
    tested = next((one for one in (crossed, candidate, reference) if one and one.held), None)
    if any(one.conclusion is Conclusion.MACHINE_OFF for one in calls):
        return Story("what was recorded is sound in both runs; this machine is off", False, tested)
    return _outside(origin, calls, tested)


def _outside(origin: AtOrigin, calls: Sequence[ReplayedCall], tested: ReplayedCall | None) -> Story:
    """No call is wrong by itself: what comparing proved lies between the calls, or is too small for one alone."""
    refused = next((one.refused for one in calls if one.refused), "")
    if tested is None and refused:
        words = f"what comparing named stands; alone, it cannot be run again: {refused}"
        return Story(f"{words}{_told(origin)}", False, None, refused)
    because = (
        "what was recorded of this call is within what a sound kernel may be off, in both runs: what parts them was"
        " done to its result outside of it, or is smaller than a single operator may be off"
    )
    if origin.because or origin.instead:
        words = (
            f"each run's call is sound by itself, and what comparing named stands{_told(origin)}"
        )
        return Story(words, False, tested, because)
    return Story(
        f"what comparing named stands, outside of this call: {because}", False, tested, because
    )


def _told(origin: AtOrigin) -> str:
    """What comparing gave as the reason; without one, what it found that the candidate computes."""
    instead = f"the candidate has something else there, {origin.instead}" if origin.instead else ""
    told = origin.because or instead
    return f": {told}" if told else ""


def _parts(
    calls: Sequence[ReplayedCall],
) -> tuple[ReplayedCall | None, ReplayedCall | None, ReplayedCall | None]:
    own = {one.chosen.run: one for one in calls if not one.chosen.crossed}
    crossed = next((one for one in calls if one.chosen.crossed), None)
    return own.get("reference"), own.get("candidate"), crossed


def _one_is_off(one: ReplayedCall, instead: str) -> Story:
    """One run's call is off; `instead` is the result of another input that it recorded, where that was found."""
    if instead and one.conclusion is Conclusion.TRANSIENT:
        words = f"the {one.chosen.run}'s call recorded {instead}; {_SOUND_AGAIN}"
        return Story(words, False, one, _SOUND_AGAIN)
    run = f"the {one.chosen.run}'s call is at fault" if one.chosen.run else "it is at fault"
    because = _BECAUSE.get(one.conclusion, "")
    again = (
        ", not reproduced: another result the second time"
        if one.conclusion is Conclusion.TRANSIENT
        else ""
    )
    return Story(f"{run}: {one.conclusion.value}{again}", False, one, because)


_ELSEWHERE = "it was run again here, where the operator is sound; run it on the device that made the recording"
_SOUND_AGAIN = "from the same inputs the operator gives the sound result: the training did this, not the kernel"
_TRANSIENT = (
    "from the same inputs the operator gives the sound result each time: what was recorded came from a flipped bit, an"
    " earlier result that was left in its place, threads that met in a library's first call, or something that"
    " the training did to it"
)


_BECAUSE = {
    Conclusion.RECORDED_OFF: _ELSEWHERE,
    Conclusion.TRANSIENT: _TRANSIENT,
    Conclusion.PERSISTENT: (
        "run it on another rank's device of the same kind too: if that gives the sound result, this device is at fault,"
        " and if not, the operator is, as this kind of device computes it"
    ),
}


def _of_a_class(
    origin: AtOrigin, members: Sequence[ReplayedCall], own: ReplayedCall | None
) -> Story:
    """Some members of a class of sites stand for all of them; the test is of the one that is furthest off."""
    name, off = origin.of_class, [one for one in members if one.recorded_off]
    if off:
        here = "here as at its other sites" if len(off) == len(members) else "at some of its sites"
        ran = f"{len(members)} of its {counted(origin.members, 'site')} run again, {len(off)} off"
        words = f"{name}, {here}: what the candidate recorded is off by that ({ran})"
        return Story(words, True, max(off, key=lambda one: one.worst))
    because = "what each run recorded is sound in the precision that it computed in"
    one = next(iter(members), own)
    return Story(f"{name}: {because}", True, one if one and one.held else None, because)


def _between_steps(parameter: str, one: ReplayedCall | None) -> Story:
    because = (
        f"{parameter} becomes another one behind its update, before the next step uses it: no recorded call does that,"
        " so the script writes to it"
    )
    return Story(f"the update is sound in both runs; {because}", False, one, because)


def _called_otherwise(
    reference: ReplayedCall | None, candidate: ReplayedCall | None, crossed: ReplayedCall
) -> Story:
    """Each call gives what was recorded of it, or that cannot be said: what is called differs."""
    both = [one for one in (reference, candidate) if one is not None]
    explained = len(both) == 2 and all(one.conclusion is Conclusion.SOUND for one in both)
    left = reference.call if reference is not None else crossed.call
    otherwise = _otherwise(left, None if candidate is None else candidate.call)
    if explained:
        words = (
            f"{otherwise}. Each gives what was recorded of it, and is sound by itself: the reference's call gives the"
            " reference's result, the candidate's the candidate's"
        )
    else:
        why = next((one.refused for one in both if one.refused), "")
        alone = f" (what it calls cannot be run again: {why})" if why else ""
        words = f"{otherwise}{alone}, and what it recorded is not what the reference's call gives"
    return Story(words, explained, crossed)


def _is_called_otherwise(reference: ReplayedCall, candidate: ReplayedCall) -> bool:
    """Whether two calls of one operator are sound, and differ in what they are given."""
    both = reference, candidate
    return (
        reference.call.site.op == candidate.call.site.op
        and all(one.conclusion is Conclusion.SOUND for one in both)
        and bool(differences(reference.call, candidate.call))
    )


def _sound_but_called_otherwise(
    reference: ReplayedCall, candidate: ReplayedCall, refused: str
) -> Story:
    why = refused or "the two runs pass other numbers of tensors"
    because = f"the reference's call cannot be made with the candidate's tensors: {why}"
    words = (
        f"{_otherwise(reference.call, candidate.call)}. Each gives what was recorded of it, and is sound by itself;"
        f" {because}"
    )
    return Story(words, True, candidate, because)


def _inputs(call: Call) -> int:
    return len(call.with_role(Role.INPUT))


def _otherwise(left: Call, right: Call | None) -> str:
    if right is None or right.site.op != left.site.op:
        calls = "calls nothing there" if right is None else f"calls {right.site.op}"
        return f"the candidate {calls} where the reference calls {left.site.op}"
    return f"it is called otherwise: {'; '.join(differences(left, right))}"


def differences(left: Call, right: Call) -> list[str]:
    """The arguments that two calls of one operator do not share, in words; of tensors, whether one is given."""
    missing = "none"
    one, other = (
        {**{record.name: "a tensor" for record in call.with_role(Role.INPUT)}, **call.arguments}
        if _inputs(left) != _inputs(right)
        else call.arguments  # as many tensors, given by place or by name
        for call in (left, right)
    )
    return [
        f"{key.removeprefix('kwargs.')} {one.get(key, missing)} in the reference,"
        f" {other.get(key, missing)} in the candidate"
        for key in dict.fromkeys([*one, *other])
        if one.get(key, missing) != other.get(key, missing)
    ]
