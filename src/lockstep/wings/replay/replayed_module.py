"""A module that is run again with its context: which, call by call alone, and all of them as a chain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lockstep.commands.record_again import command_for_tensors
from lockstep.core.errors import UsageError
from lockstep.core.progress import Progress
from lockstep.core.records import Call
from lockstep.core.site import CallKind, Role
from lockstep.reading.chosen_calls import ChosenRanks, ChosenSteps, calls_matching, check_choice
from lockstep.replay.answers import Chained, Link, ModuleCall, inside_of
from lockstep.replay.calls.held_results import RECORDED
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.store.reader import Recording
from lockstep.wings.replay.chosen_calls import Chosen
from lockstep.wings.replay.replayed_call import ReplayedCall, call_json, replayed, result_json
from lockstep.wings.replay.replays import Replays

_FORWARD = (Role.INPUT, Role.OUTPUT, Role.BUFFER)
_MOST_NAMED = 6


@dataclass(frozen=True, slots=True)
class ReplayedModule:
    """A module's forward and what running it again gave.

    run: Which recording it is of: "reference" or "candidate", or "" where there is but one.
    module: The call with what was called in it.
    alone: Each of its calls on its own recorded inputs.
    chained: All of them, each on what those before it gave again; None where that cannot be done.
    refused: Why, or "".
    """

    run: str
    module: ModuleCall
    alone: tuple[ReplayedCall, ...]
    chained: Chained | None
    refused: str

    @property
    def like_its_own(self) -> bool:
        """Whether what the chain is off in its own dtypes is noise: only where no kernel of this machine is wrong."""
        return _sound_here(self.alone)

    @property
    def off_alone(self) -> list[ReplayedCall]:
        """Its calls that are beyond what is allowed by themselves."""
        return [one for one in self.alone if one.worst > 1.0]

    @property
    def worst(self) -> float:
        """How many times more than allowed the module's worst result is."""
        results = () if self.chained is None else self.chained.results
        return max((held.excess for result in results for held in result.held), default=0.0)

    @property
    def looked(self) -> bool:
        """Whether a result of the module was held."""
        return self.chained is not None and any(result.held for result in self.chained.results)

    @property
    def recorded_off(self) -> bool:
        """Whether what was recorded of the module is beyond what is allowed."""
        results = () if self.chained is None else self.chained.results
        return any(
            held.maker == RECORDED and not held.sound for result in results for held in result.held
        )

    def links(self) -> Iterator[tuple[Link, ReplayedCall]]:
        """Each call in the chain, and alone."""
        alone = {one.call.id: one for one in self.alone}
        for link in self.chained.links if self.chained is not None else ():
            if link.call_id in alone:
                yield link, alone[link.call_id]


def module_call(
    recording: Recording, pattern: str, *, step: ChosenSteps, rank: ChosenRanks
) -> ModuleCall:
    """The forward call of a module that a pattern names, in the first step that has one.

    Raises UsageError if there is none, the pattern names several, nothing was recorded in it, or not with whole
    tensors.
    """
    recording.check_can_run_again()
    check_choice(recording, step=step, rank=rank)
    found = [
        call
        for call in calls_matching(recording, pattern, step=step, rank=rank)
        if call.kind is CallKind.MODULE and not call.recomputed
    ]
    if not found:
        raise UsageError(
            f"{recording.path}: {pattern!r} names no call of a module; see lockstep show"
        )
    first = found[0]
    same = [call for call in found if (call.rank, call.step) == (first.rank, first.step)]
    outer = _outermost(same)
    if len(outer) > 1:
        shown = "; ".join(str(call.site) for call in outer[:_MOST_NAMED])
        more = f" and {len(outer) - _MOST_NAMED} more" if len(outer) > _MOST_NAMED else ""
        raise UsageError(
            f"{recording.path}: {pattern!r} names {len(outer)} calls of modules; give one of them: {shown}{more}"
        )
    module = inside_of(outer[0], recording.ranks[first.rank].calls(first.step))
    _check(recording, module)
    return module


def _outermost(calls: Sequence[Call]) -> list[Call]:
    """Calls that are not within another one of them, by their paths and by who called them."""
    numbers = {call.id for call in calls}
    paths = {call.site.module for call in calls}
    return [
        call
        for call in calls
        if call.parent not in numbers
        and not any(call.site.module.startswith(f"{path}.") for path in paths if path)
    ]


def _check(recording: Recording, module: ModuleCall) -> None:
    if not module.inside:
        raise UsageError(
            f"{recording.path}: no operator was recorded in {module.call.site}; record with --level api"
        )
    records = [record for call in module.inside for record in call.with_role(*_FORWARD)]
    missing = sum(
        one.content.loader is None and one.content.numel > 0 and not one.content.note
        for one in records
    )
    if missing:
        raise UsageError(
            f"{recording.path}: {missing} of {len(records)} tensors in {module.call.site} were not saved whole;"
            " record it with",
            command=command_for_tensors(recording, [module.call]),
        )


def replayed_module(
    module: ModuleCall, run: str, emulation: str, replays: Replays, progress: Progress
) -> ReplayedModule:
    """Run a module's calls again, each alone and then as a chain.

    module: With whole tensors.
    run: Which recording it is of.
    emulation: The emulated device that it was recorded on, or "".
    replays: Where it is run again.
    progress: Is told how far it has come.
    """
    alone = []
    for number, call in enumerate(module.inside):
        progress(str(call.site), number, len(module.inside) + 1)
        alone.append(_alone(call, run, emulation, replays))
    try:
        chained = replays.module(module, like_its_own=_sound_here(alone))
    except (CannotReplay, MemoryError) as error:
        why = str(error) or "it takes too much memory"
        return ReplayedModule(run, module, tuple(alone), None, why)
    return ReplayedModule(run, module, tuple(alone), chained, "")


def _sound_here(alone: Sequence[ReplayedCall]) -> bool:
    return not any(held.maker != RECORDED and not held.sound for one in alone for held in one.held)


def _alone(call: Call, run: str, emulation: str, replays: Replays) -> ReplayedCall:
    """One call's forward on its own recorded inputs."""
    forward = replace(call, records=call.with_role(*_FORWARD))
    return replayed(Chosen(run, forward), emulation, replays)


def module_json(one: ReplayedModule) -> dict[str, Any]:
    """A module and its calls, as values of JSON."""
    call, chained = one.module.call, one.chained
    links = {} if chained is None else {link.call_id: link for link in chained.links}
    return {
        "run": one.run or None,
        "rank": call.rank,
        "step": call.step,
        "module": call.site.module,
        "op": call.site.op,
        "call": call.site.call,
        "refused": one.refused or None,
        "results": [result_json(result) for result in chained.results] if chained else [],
        "calls": [
            call_json(alone) | _link_json(links.get(alone.call.id)) for alone in one.alone
        ],
    }  # fmt: skip


def _link_json(link: Link | None) -> dict[str, Any]:
    if link is None:
        return {"chained": False}
    return {
        "chained": not link.refused,
        "not_chained_because": link.refused or None,
        "off_in_the_chain": link.error if link.error == link.error else None,
        "inputs_that_no_call_gave": list(link.unmade),
    }
