"""The parts of two trainings that were not compared or not judged, as data, with the sentences for them."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from lockstep.core.text import listed
from lockstep.core.told_facts import Facts, Told, register, some, verb


class WhyNot(str, Enum):
    """Why something was not compared."""

    NOTHING_RECORDED = "nothing recorded"
    NO_RANK = "no rank in both"
    NO_STEP = "no step in both"
    STEP_NOT_RECORDED = "step that neither has"
    OTHER_MODEL = "another model"
    CRASHED = "crashed"
    NO_END = "no end"
    ENDED = "ended as asked"
    RANK_ALONE = "rank of one run alone"
    SEVERAL_TRAININGS = "several trainings in one process"
    ALIKE_PROCESSES = "processes that nothing tells apart"
    MOVED_APART = "trained apart by definition"
    STEPS_ALONE = "steps of one run alone"
    STEP_INCOMPLETE = "incomplete step of one run alone"
    STEP_CUT = "step cut short"
    RECORDING_CUT = "recording cut short"
    LESS_RECORDED = "less was to be recorded"
    NOT_ALIGNED = "no call aligned"
    CONTRADICTION = "file that contradicts its name"
    FILE_MISSING = "file missing"
    NO_PARTNER = "no partner"
    OTHER_NAME = "under a different name"
    CALLS_ALONE = "calls of one run alone"
    CALLS_NOT_JUDGED = "calls of one run alone, not judged"
    NUMBERS_ALONE = "known by statistics alone"
    NOT_JUDGED = "not judged"
    TRAINED_NOT_JUDGED = "loss, gradient or parameter not judged"
    TRAINED_ALONE = "loss, gradient or parameter of one run alone"
    UNSEEN_INSIDE = "inside compiled code"
    COMPILED_UNBOUNDED = "compiled code that nothing bounds"
    NOT_RECORDED = "not recorded"
    NOT_PUT_TOGETHER = "parts not put together"
    HELD = "differs beside the training"
    HELD_ALONE = "held by one run alone"
    PARTS_LATER = "may part later"
    WINDOW_NOT_SET = "window that does not begin with one state"
    OWN_INPUT_UNSEEN = "own input that no recorded call gave"


class NotCompared(Told):
    """One thing that was not compared.

    Examples
    --------
    >>> one = NotCompared(WhyNot.STEP_INCOMPLETE, rank="rank0", side="candidate", step=3)
    >>> print(one, one.facts.step)
    rank0: step 3 is only in the candidate, and incomplete 3
    """

    __slots__ = ()


def _step_cut(facts: Facts) -> str:
    where = f"the {facts.side}'s recording ends" if facts.side else "both recordings end"
    why = f" ({facts.reason})" if facts.reason else ""
    return (
        f"{facts.rank}: step {facts.step} was compared up to where {where} in it,"
        f" {facts.count} of {facts.of} calls{why}"
    )


def _steps_alone(facts: Facts) -> str:
    other = "reference" if facts.side == "candidate" else "candidate"
    which = (
        f"step {facts.names[0]} is" if facts.count == 1 else f"steps {', '.join(facts.names)} are"
    )
    why = f"; the {other}'s recording ends before: {facts.reason}" if facts.reason else ""
    return f"{facts.rank}: {which} complete only in the {facts.side}{why}"


def _recording_cut(facts: Facts) -> str:
    after = "before its first step ended" if facts.step is None else f"after step {facts.step}"
    return f"{facts.rank}: the {facts.side}'s recording ends {after}: {facts.reason}"


def _crashed(facts: Facts) -> str:
    if facts.of is None:
        return (
            f"the {facts.side}'s command ended with exit code {facts.count}{facts.reason}{facts.at}"
        )
    some = f"{listed(facts.names)} of " if len(facts.names) < facts.of else ""
    return f"{some}the {facts.side} was {facts.reason}{facts.at}"


def _less_recorded(facts: Facts) -> str:
    return (
        f"{' and '.join(facts.names)} were left out of the other recording: the reference was recorded with"
        f" {facts.reference}, the candidate with {facts.candidate}"
    )


def _quantity(facts: Facts) -> str:
    """Which losses, gradients, parameters or states of the optimizer it is about."""
    if facts.at == "loss":
        return "the loss"
    of = "of " if facts.at == "gradient" else ""
    if len(facts.names) == 1:
        return f"the {facts.at} {of}{facts.names[0]}"
    nouns = {"state": "states of the optimizer:", "gradient": "gradients of"}
    return f"{len(facts.names)} {nouns.get(facts.at, 'parameters:')} {listed(facts.names)}"


def _trained_alone(facts: Facts) -> str:
    occurs = "occur" if len(facts.names) > 1 and facts.at != "loss" else "occurs"
    return f"{_quantity(facts)} {occurs} only in the {facts.side}, first at step {facts.step}"


_WORDS: dict[WhyNot, Callable[[Facts], str]] = {
    WhyNot.NOTHING_RECORDED: lambda one: f"{one.names[0]}: {one.reason}",
    WhyNot.NO_RANK: lambda one: (
        one.reason
        or f"no rank occurs in both: the reference has {one.reference}, the candidate {one.candidate}"
    ),
    WhyNot.NO_STEP: lambda one: (
        f"no step occurs in both: the reference has {one.reference}, the candidate {one.candidate}; record both with"
        " the same --steps"
    ),
    WhyNot.STEP_NOT_RECORDED: lambda one: (
        f"both recordings have {one.reason}, and not --steps {','.join(one.names)}; ask for steps that they have, or"
        f" record both with --steps {','.join(one.names)}"
    ),
    WhyNot.OTHER_MODEL: lambda one: (
        f"the two runs train different models: of {one.reference} module paths in the reference and"
        f" {one.candidate} in the candidate, {one.count} occur in both; give --mapping if parts have other names"
    ),
    WhyNot.CRASHED: _crashed,
    WhyNot.ENDED: _crashed,
    WhyNot.NO_END: lambda one: (
        f"the {one.side} has no end: its recorder was killed, or still records"
    ),
    WhyNot.RANK_ALONE: lambda one: f"{one.rank} occurs only in the {one.side}",
    WhyNot.SEVERAL_TRAININGS: lambda one: (
        f"the {one.side}'s {one.rank} holds one training of several threads: {one.reason}"
    ),
    WhyNot.ALIKE_PROCESSES: lambda one: (
        f"{one.reference} in the reference and {one.candidate} in the candidate were started alike and hold nothing"
        " equal, so nothing tells which belongs to which; give each process words of its own on its command line, or a"
        " RANK"
    ),
    WhyNot.MOVED_APART: lambda one: (
        f"{'step' if len(one.names) == 1 else 'steps'} {', '.join(one.names)} cannot be compared: all of"
        f" {one.reason} learn, so in step {one.step} their sum moves further than the parameter that is one; let only"
        f" one of them learn, or compare --steps {one.step}"
    ),
    WhyNot.STEPS_ALONE: _steps_alone,
    WhyNot.STEP_INCOMPLETE: lambda one: (
        f"{one.rank}: step {one.step} is only in the {one.side}, and incomplete"
    ),
    WhyNot.STEP_CUT: _step_cut,
    WhyNot.RECORDING_CUT: _recording_cut,
    WhyNot.LESS_RECORDED: _less_recorded,
    WhyNot.NOT_ALIGNED: lambda _: (
        "no call has a partner in the other run: check that both recordings are of one training, of the same samples"
    ),
    WhyNot.CONTRADICTION: lambda one: f"in the {one.side}, {one.reason}",
    WhyNot.FILE_MISSING: lambda one: (
        f"{some(one.count, 'file that a dump names is', 'files that a dump names are')} missing: {listed(one.names)}"
    ),
    WhyNot.NO_PARTNER: lambda one: (
        f"{some(one.count, 'tensor has', 'tensors have')} no partner, first {one.at}, missing in the {one.side}"
    ),
    WhyNot.OTHER_NAME: lambda one: (
        f"{some(one.count, 'result stands', 'results stand')} under a different name, first {one.at}"
    ),
    WhyNot.CALLS_ALONE: lambda one: (
        f"{some(one.count, 'call has', 'calls have')} no partner, and nothing else shows what they return, first"
        f" {one.at}"
    ),
    WhyNot.CALLS_NOT_JUDGED: lambda one: (
        f"{some(one.count, 'call has', 'calls have')} no partner, and thresholds alone do not tell whether that"
        f" changes the training: first {one.at}, in the {one.side} alone; compare with --judge error-model"
    ),
    WhyNot.NUMBERS_ALONE: lambda one: (
        f"of {one.count} tensors only smallest and largest value, mean and norm are known, and agree: different tensors"
        " can have the same"
    ),
    WhyNot.NOT_JUDGED: lambda one: (
        f"{one.count} tensors could not be judged, first {one.at}: {one.reason}"
    ),
    WhyNot.TRAINED_NOT_JUDGED: lambda one: (
        f"{_quantity(one)} could not be judged, first at step {one.step}: {one.reason}"
    ),
    WhyNot.TRAINED_ALONE: _trained_alone,
    WhyNot.UNSEEN_INSIDE: lambda one: (
        f"{listed(one.names)} inside of compiled code: a {one.reference} in the reference and a {one.candidate}"
        " in the candidate, which record --compile-eager shows"
    ),
    WhyNot.COMPILED_UNBOUNDED: lambda one: (
        f"{some(one.count, 'result', 'results')} of compiled code could not be judged, first {one.at} at step"
        f" {one.step}: they differ by up to rel {one.numbers['furthest']:.2g}, and noise floors of up to"
        f" {one.numbers['floor']:.2g} times their norm say nothing of the operators inside, which record"
        " --compile-eager shows"
    ),
    WhyNot.NOT_RECORDED: lambda one: f"{one.names[0]}: {one.reason}",
    WhyNot.NOT_PUT_TOGETHER: lambda one: f"{one.names[0]}: {one.reason}",
    WhyNot.HELD: lambda one: (
        f"{one.rank}: {listed(one.names)} after step {one.step} {verb(one, 'differs', 'differ')} by rel {one.reason},"
        " which may be rounding"
    ),
    WhyNot.HELD_ALONE: lambda one: (
        f"{one.rank}: {listed(one.names)} {verb(one, 'changes', 'change')} beside the training in the"
        f" {one.side} alone"
    ),
    WhyNot.WINDOW_NOT_SET: lambda one: (
        f"{one.rank}{': ' if one.rank else ''}{'step' if len(one.names) == 1 else 'steps'} {one.at}"
        f" {verb(one, 'does', 'do')} not begin with one state in both runs: {one.reason}"
    ),
    WhyNot.OWN_INPUT_UNSEEN: lambda one: (
        f"{one.rank}: step {one.step}: {one.at} of {one.names[0]} was replaced by the reference's, and no recorded call"
        " gave it: what changed it before is not seen"
    ),
    WhyNot.PARTS_LATER: lambda one: f"the runs part later: {one.reason}",
}
register(_WORDS)
