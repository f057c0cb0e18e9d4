"""Hypotheses about what an operator computes: another formula, a term left out of its backward, a similar operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from lockstep.core.finding import Instead
from lockstep.replay.calls.rebuild import Rebuilt
from lockstep.replay.explanation.hypothesis import Prediction
from lockstep.replay.explanation.mismatch import Mismatch
from lockstep.replay.explanation.written_out import WITHOUT_TERM, norms, others_like


def formulas(mismatch: Mismatch) -> Iterator[Prediction]:
    """A normalisation of another form: variance unbiased, epsilon outside of the root, no mean."""
    built = mismatch.rebuilt
    if built is None:
        return
    for words, function in norms(_bare(built), backward=False):
        yield from _otherwise(mismatch, built, Instead.SETTING, words, function)


def without_term(mismatch: Mismatch) -> Iterator[Prediction]:
    """A backward that leaves out a term: of the mean, of the softmax's sum, of the norm."""
    built = mismatch.rebuilt
    if built is None or not mismatch.backward:
        return
    name = _bare(built)
    for words, function in norms(name, backward=True):
        yield from _otherwise(mismatch, built, Instead.TERM, words, function)
    if name in WITHOUT_TERM:
        words, function = WITHOUT_TERM[name]
        yield from _otherwise(mismatch, built, Instead.TERM, words, function)


def like_operators(mismatch: Mismatch) -> Iterator[Prediction]:
    """An operator that is taken for this one."""
    built = mismatch.rebuilt
    if built is None:
        return
    for name, function in others_like(_bare(built)):
        changed = replace(built, op=f"{built.op}, changed", function=function)
        yield from mismatch.predicted(
            Instead.OPERATOR, f"{name} in place of {_bare(built)}", rebuilt=changed
        )


def _otherwise(
    mismatch: Mismatch, built: Rebuilt, kind: Instead, words: str, function: Callable[..., Any]
) -> Iterator[Prediction]:
    changed = replace(built, op=f"{built.op}, changed", function=function)
    yield from mismatch.predicted(kind, f"the same operator {words}", rebuilt=changed)


def _bare(built: Rebuilt) -> str:
    return built.op.rpartition(".")[2]
