"""Whether two recordings can be compared at all: ranks, steps and a model that both have."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from lockstep.align.names import NameMap
from lockstep.align.ranks import RankPairs
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
) -> str | None:
    """Why nothing can be compared, in a sentence; None where something can."""
    for recording in (reference, candidate):
        if not recording.ranks:
            return f"{recording.path}: {recording.missing[0]}"
    if not ranks.both:
        if set(reference.ranks) & set(candidate.ranks):
            return "; ".join(ranks.alone)
        return (
            f"no rank occurs in both: the reference has {_listed(reference.ranks)},"
            f" the candidate {_listed(candidate.ranks)}"
        )
    first, (left, right) = next(iter(ranks.both.items()))
    if not any(shared_steps(*both, steps) for both in ranks.both.values()):
        wanted = "" if steps is None else f"; asked for {_listed(sorted(steps))}"
        return (
            f"no step occurs in both: the reference has {_listed(left.steps)},"
            f" the candidate {_listed(right.steps)}{wanted}"
        )
    return _why_other_model(left, right, names[first])


def _why_other_model(
    reference: RankRecording, candidate: RankRecording, names: NameMap
) -> str | None:
    left, right = _model_names(reference), {names.module(name) for name in _model_names(candidate)}
    shared = len(left & right)
    if not left or not right or shared >= _MODEL_OVERLAP * min(len(left), len(right)):
        return None
    return (
        f"the two runs train different models: of {len(left)} module paths in the reference and"
        f" {len(right)} in the candidate, {shared} occur in both"
    )


def _model_names(rank: RankRecording) -> set[str]:
    table = rank.module_table
    names = (
        set(table["module"].to_list()) if table.height else set(rank.call_table["module"].to_list())
    )
    return {name for name in names if name}


def _listed(items: Collection[object]) -> str:
    return ", ".join(str(item) for item in items) or "none"
