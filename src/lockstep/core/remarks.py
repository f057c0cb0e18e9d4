"""Remarks on a comparison and on how two trainings went on, as data, with the sentences for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum

from lockstep.core.text import listed
from lockstep.core.told_facts import Facts, Told, register, some, verb


class On(str, Enum):
    """The subject of a remark."""

    MISSING = "part of a recording missing"
    HELD_IDLE = "held beside the training, of unknown use"
    OVERRULED = "a re-run overrules the error model"
    SAME_PROGRAM = "both programs give the same"
    ROUNDED_IN_STEP = "rounding takes both runs apart"
    BY_PAIRS = "steps judged by pairs of calls alone"
    BESIDE = "differs, and nothing trained depends on it"
    UNUSED_GRADIENTS = "gradients of one run alone that nothing takes"
    NO_PLACES = "places of NaN and infinite elements not recorded"
    RANKS_PAIRED = "processes paired"
    SAVED_LESS = "less saved of each tensor"
    MODULE_RENAMED = "module under a different name"
    TENSOR_RENAMED = "tensor under a different name"
    CRASHED = "re-run crashed"
    TOO_LARGE = "too large to be run again"
    NOTHING_AFTER = "steps after these were left out"
    OTHER_LAST_STEP = "other last recorded step"
    NO_ENDS = "ends not recorded"
    NO_END = "end of one run not recorded"
    OTHER_STEPS = "ends of different steps"
    LENGTHS = "trained for different lengths"
    OTHER_PASSES = "other number of backward passes"
    LOSS = "first other loss"
    COPIES = "copies of ranks differ"
    THERE_ALONE = "there in one run alone"
    STILL_ALONE = "stays as it is in one run alone"
    DIFFERS = "differs at the end"
    UNREAD = "could not be read at the end"
    UNJOINED = "could not be put together of ranks"
    WINDOWS_ELSEWHERE = "windows that are in another recording"
    GIVEN_INPUTS = "modules were given the inputs of a reference"
    NOT_GIVEN = "why modules were not given inputs"
    BEYOND_NOISE = "further apart than noise explains"
    SINGLE_NUMBERS = "single numbers differ at the end"
    ROUNDED = "differs by rounding at the end"
    LEADS_ALONE = "variable that leads to tensors in one run alone"
    SETTING = "setting differs at the end"
    SETTING_IDLE = "setting that changed no number of these steps"
    CALLS_IDLE = "calls of one run alone that changed no number of these steps"
    TRAINABLE_IDLE = "frozen in one run alone, which changed no number of these steps"
    MORE_SETTINGS = "more settings differ"
    TRAINABLE_ALONE = "requires a gradient in one run alone"
    VARIABLES_UNRECORDED = "variables not recorded"
    VARIABLES_UNSEEN = "variables not looked at"


class Remark(Told):
    """One thing to know of a comparison beside its verdict.

    Examples
    --------
    >>> one = Remark(On.SETTING, names=("best",), reference="1.0", candidate="0.5")
    >>> print(one)
    best is 1.0 in the reference and 0.5 in the candidate at the end
    """

    __slots__ = ()


def _overruled(facts: Facts) -> str:
    return (
        f"{some(facts.count, 'tensor differs', 'tensors differ')} by more than the error model allows, and a re-run"
        " overrules it. Lockstep ran these calls again in double precision on each run's own inputs: every result is"
        f" one that a sound kernel may give. First: {facts.at}, rel {facts.numbers['difference']:.2g}"
    )


def _same_program(facts: Facts) -> str:
    first = f" Without that, the first difference would be {facts.at}." if facts.at else ""
    tensors = some(facts.count, "pair of tensors differs", "pairs of tensors differ")
    return (
        f"{tensors} as two spellings of one function do. Lockstep ran every recorded step of both runs again in double"
        " precision: on the same numbers both give the same losses, gradients and updates, and each run recorded what"
        f" its own calls give, up to rounding.{first}"
    )


def _rounded_in_step(facts: Facts) -> str:
    tensors = some(facts.count, "pair of tensors lies", "pairs of tensors lie")
    return (
        f"{tensors} outside of what was allowed for that pair alone, the {facts.at} first. Lockstep ran every recorded"
        " step of both runs again in double precision: each run recorded what its own calls give, up to rounding, and"
        " each parameter is bit by bit what its last update left"
    )


def _beside(facts: Facts) -> str:
    differ = some(facts.count, "tensor differs", "tensors differ")
    which = "it" if facts.count == 1 else "them"
    return f"{differ}, and nothing trained depends on {which} in the recorded steps. First: {facts.at}: {facts.reason}"


def _too_large(facts: Facts) -> str:
    needed, allowed = (facts.numbers[name] / 1e9 for name in ("needed_bytes", "allowed_bytes"))
    return (
        f"{facts.names[0]}: {some(facts.count, 'tensor', 'tensors')} judged without a re-run, which takes"
        f" {needed:.1f} GB of memory; --memory allows {allowed:.1f} GB"
    )


_MOST_PAIRED = 8
"""Pairs of processes that one remark lists."""


def _paired(facts: Facts) -> str:
    more = len(facts.names) - _MOST_PAIRED
    told = "; ".join(facts.names[:_MOST_PAIRED]) + (f"; and {more} more" if more > 0 else "")
    return f"paired {facts.reason}: {told}"


def _still_alone(facts: Facts) -> str:
    do, other = verb(facts, "does", "do"), _other(facts.side)
    return (
        f"{listed(facts.names)} {do} not change after the recorded steps in the {facts.side},"
        f" and {do} in the {other}"
    )


def _other(side: str) -> str:
    return "reference" if side == "candidate" else "candidate"


_WORDS: dict[On, Callable[[Facts], str]] = {
    On.MISSING: lambda one: f"{one.names[0]}: {one.reason}",
    On.HELD_IDLE: lambda one: (
        f"{one.names[0]} is held beside the training and differs; nothing recorded tells whether it is used"
    ),
    On.OVERRULED: _overruled,
    On.SAME_PROGRAM: _same_program,
    On.ROUNDED_IN_STEP: _rounded_in_step,
    On.BY_PAIRS: lambda one: (
        f"the steps were judged by pairs of calls. Lockstep did not run them again as a whole: {one.reason}"
    ),
    On.BESIDE: _beside,
    On.UNUSED_GRADIENTS: lambda one: (
        f"the {one.side} alone computes gradients of {listed(one.names)}; no update and no other call takes them in the"
        " recorded steps"
    ),
    On.NO_PLACES: lambda one: (
        f"{one.count} tensors hold NaN or infinite elements, and where they stand was not recorded: they were compared"
        " by their number alone"
    ),
    On.RANKS_PAIRED: _paired,
    On.SAVED_LESS: lambda one: (
        f"the reference was recorded with --save {one.reference}, the candidate with --save {one.candidate}: only what"
        " both kept of a tensor was compared"
    ),
    On.MODULE_RENAMED: lambda one: (
        f"renamed module {one.reference} -> {one.candidate}, by {one.reason}"
    ),
    On.TENSOR_RENAMED: lambda one: f"renamed tensor {one.reference} -> {one.candidate}",
    On.CRASHED: lambda one: f"{one.names[0]}: judged without a re-run: {one.reason}",
    On.TOO_LARGE: _too_large,
    On.NOTHING_AFTER: lambda one: f"nothing after step {one.step} was compared",
    On.OTHER_LAST_STEP: lambda _: (
        "the last recorded step is not the same, so what follows was not compared"
    ),
    On.NO_ENDS: lambda _: "the ends were not recorded",
    On.NO_END: lambda one: f"the end was not recorded in the {one.side}, which {one.reason}",
    On.OTHER_STEPS: lambda one: (
        f"the ends are of different steps: the {one.side} was ended by {one.reason}"
    ),
    On.LENGTHS: lambda one: (
        f"the reference trained {one.reference} {one.at} and the candidate {one.candidate}"
    ),
    On.OTHER_PASSES: lambda one: (
        f"after step {one.step} the runs make different numbers of backward passes a step"
    ),
    On.LOSS: lambda one: (
        f"the loss of step {one.step} is the first that differs: {one.reference} / {one.candidate}"
    ),
    On.COPIES: lambda one: (
        f"{listed(one.names)} {verb(one, 'differs', 'differ')} at the end between the ranks of the {one.side}"
    ),
    On.THERE_ALONE: lambda one: (
        f"{listed(one.names)} {verb(one, 'is', 'are')} there at the end of the {one.side} alone"
    ),
    On.STILL_ALONE: _still_alone,
    On.DIFFERS: lambda one: (
        f"{listed(one.names)} {verb(one, 'differs', 'differ')} at the end{', ' if one.at else ''}{one.at}"
    ),
    On.UNREAD: lambda one: f"{listed(one.names)} could not be read at the end: {one.reason}",
    On.UNJOINED: lambda one: one.reason,
    On.WINDOWS_ELSEWHERE: lambda one: (
        f"the candidate trained on its own course: its other windows are in {one.names[0]}, for compare"
    ),
    On.GIVEN_INPUTS: lambda one: (
        f"modules were given {one.count} inputs that {one.names[0]} recorded, so each is judged by itself"
    ),
    On.NOT_GIVEN: lambda one: f"inputs that were not given to modules: {one.reason}",
    On.BEYOND_NOISE: lambda one: (
        f"{listed(one.names)} {verb(one, 'is', 'are')} further apart at the end than noise explains"
    ),
    On.SINGLE_NUMBERS: lambda one: (
        f"{listed(one.names)} {verb(one, 'differs', 'differ')} at the end: single numbers, which may be logged alone,"
        " are not judged"
    ),
    On.ROUNDED: lambda one: (
        f"{listed(one.names)} {verb(one, 'differs', 'differ')} at the end by no more than rounding"
    ),
    On.LEADS_ALONE: lambda one: (
        f"{listed(one.names)} {verb(one, 'leads', 'lead')} to tensors at the end of the {one.side} alone; these were"
        " not compared"
    ),
    On.SETTING: lambda one: (
        f"{one.names[0]} is {one.reference} in the reference and {one.candidate} in the candidate at the end"
    ),
    On.SETTING_IDLE: lambda one: (
        f"{one.names[0]} is {one.reference} in the reference and {one.candidate} in the candidate, a setting that"
        " changed no number of these steps"
    ),
    On.CALLS_IDLE: lambda one: f"{one.reason}; a setting that changed no number of these steps",
    On.TRAINABLE_IDLE: lambda one: (
        f"{listed(one.names)} {verb(one, 'requires', 'require')} a gradient in the {one.side} alone, a setting that"
        " changed no number of these steps"
    ),
    On.MORE_SETTINGS: lambda one: f"{one.count} more settings differ",
    On.TRAINABLE_ALONE: lambda one: (
        f"{listed(one.names)} {verb(one, 'requires', 'require')} a gradient at the end of the {one.side} alone"
    ),
    On.VARIABLES_UNRECORDED: lambda one: (
        f"other variables of the {one.side}'s script were not recorded"
    ),
    On.VARIABLES_UNSEEN: lambda one: f"not looked at: {one.reason} in the {one.side}",
}
register(_WORDS)


def beyond_noise(notes: Iterable[Told]) -> Told | None:
    """Return the note on what is further apart at the end than noise explains, None without one."""
    return next((one for one in notes if one.facts.why is On.BEYOND_NOISE), None)
