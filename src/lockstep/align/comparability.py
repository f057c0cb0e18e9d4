"""Whether two recordings can be compared at all: ranks, steps and a model that both have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lockstep.align.names import NameMap
from lockstep.align.ranks import RankPairs
from lockstep.core.not_compared import NotCompared, WhyNot
from lockstep.store.reader import RankRecording, Recording

_MODEL_OVERLAP = 0.5
"""Share of module and parameter names that both runs must have; renamed parts leave more, other
models less."""


def shared_steps(
    reference: RankRecording, candidate: RankRecording, steps: Collection[int] | None
) -> list[int]:
    """The steps that two ranks both hold, of those that are asked for; None asks for all."""
    both = sorted(set(reference.steps) & set(candidate.steps))
    return [step for step in both if steps is None or step in steps]


def why_incomparable(
    reference: Recording,
    candidate: Recording,
    ranks: RankPairs,
    steps: Collection[int] | None,
    names: Mapping[str, NameMap],
) -> NotCompared | None:
    """Why nothing can be compared; None where something can."""
    for recording in (reference, candidate):
        if not recording.ranks:
            which = (str(recording.path),)
            return NotCompared(WhyNot.NOTHING_RECORDED, names=which, reason=recording.missing[0])
    if not ranks.both:
        if set(reference.ranks) & set(candidate.ranks):
            return NotCompared(WhyNot.NO_RANK, reason="; ".join(ranks.alone))
        both = _listed(reference.ranks), _listed(candidate.ranks)
        return NotCompared(WhyNot.NO_RANK, reference=both[0], candidate=both[1])
    first, (left, right) = next(iter(ranks.both.items()))
    if not any(shared_steps(*both, steps) for both in ranks.both.values()):
        shared = {step for both in ranks.both.values() for step in shared_steps(*both, None)}
        if steps is not None and shared:
            asked, has_both = (
                tuple(map(str, sorted(steps))),
                f"step{'s' * (len(shared) > 1)} {_listed(sorted(shared))}",
            )
            return NotCompared(WhyNot.STEP_NOT_RECORDED, names=asked, reason=has_both)
        has = _listed(left.steps), _listed(right.steps)
        return NotCompared(WhyNot.NO_STEP, reference=has[0], candidate=has[1])
    return _why_other_model(left, right, names[first])


def _why_other_model(
    reference: RankRecording, candidate: RankRecording, names: NameMap
) -> NotCompared | None:
    left, right = _model_names(reference), {names.module(name) for name in _model_names(candidate)}
    shared = len(left & right)
    if not left or not right or shared >= _MODEL_OVERLAP * min(len(left), len(right)):
        return None
    counts = str(len(left)), str(len(right))
    return NotCompared(WhyNot.OTHER_MODEL, reference=counts[0], candidate=counts[1], count=shared)


def _model_names(rank: RankRecording) -> set[str]:
    table = rank.module_table
    names = (
        set(table["module"].to_list()) if table.height else set(rank.call_table["module"].to_list())
    )
    return {name for name in names if name}


def _listed(items: Collection[object]) -> str:
    return ", ".join(str(item) for item in items) or "none"
