"""Judge the tensors that a step begins with, and those that enter it later: initial parameters, batches, rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Outcome, Pair
from lockstep.core.records import ARRIVED_IN, COMPUTED_OUT_OF_SIGHT
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.protocol import AGREES, NOTHING_BETWEEN, Judge, Judgement, Region, as_open
from lockstep.judge.stray_elements import with_stray_elements
from lockstep.judge.tolerances import DEEP_MODEL, LINEAR_REGIME, TRAINED_ALIKE
from lockstep.locate.flow.ledger import (
    Ledger,
    State,
    Wrong,
    agreeing,
    key_of,
    report_together,
    settle,
)
from lockstep.locate.flow.origins import Origins, Place, place_of
from lockstep.locate.flow.words import count_words
from lockstep.measure.measured_pair import Measured, pooled


class SetupWalk:
    """Judges initial parameters and the batch: nothing enters them, a difference is an origin."""

    def __init__(self, step: AlignedStep, ledger: Ledger, origins: Origins, judge: Judge) -> None:
        self._step, self._ledger, self._origins, self._judge = step, ledger, origins, judge

    def run(self) -> None:
        """Judge both kinds, each as one cause."""
        for kind in (CallKind.INIT, CallKind.DATA):
            pairs = [
                (item, pair)
                for item in self._step.of_kind(kind)
                if not follows_from_the_run(item)
                for pair in item.complete(*Role)
            ]
            if kind is CallKind.INIT and self._trained_alike(pairs):
                for _, pair in pairs:
                    if not count_words(pair):
                        settle(self._ledger, agreeing(self._ledger.measure(pair)))
                # What counts has no noise.
                pairs = [(item, pair) for item, pair in pairs if count_words(pair)]
            wrong = [one for item, pair in pairs for one in self._judged(item, pair)]
            report_together(wrong, self._ledger, self._origins)

    def _trained_alike(self, pairs: Sequence[tuple[Aligned, Pair]]) -> bool:
        """Whether parameters differ by no more than sound steps before the recording may have left.

        Where the first recorded step is not the training's first, noise has been through some
        updates, which Adam turns into full steps where a true gradient is zero: single parameters
        say nothing, all of them together do.
        """
        if not pairs or pairs[0][0].reference.step == 0:
            return False
        together = pooled(
            measured
            for measured in (self._ledger.measure(pair) for _, pair in pairs)
            if measured.floating and not measured.shape_differs
        )
        return together is None or together.relative <= TRAINED_ALIKE

    def _judged(self, item: Aligned, pair: Pair) -> Iterator[Wrong]:
        measured = self._ledger.measure(pair)
        known = self._ledger.state(pair)
        if known is not None:  # what an earlier step has left: a loss that is summed up, say
            settle(self._ledger, known.at(measured))
            return
        judgement = AGREES
        if not measured.equal:
            judgement = self._judge.passage([], measured, region=NOTHING_BETWEEN)
            if self._judge.looks_at_set_up:
                judgement = with_stray_elements(judgement, measured)
        if not judgement.unexplained:
            settle(self._ledger, replace(agreeing(measured), judgement=judgement))
            return
        if count_words(pair):
            judgement = replace(judgement, tolerance=math.nan)  # a count has none
        state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
        self._ledger.remember(state)
        place = place_of(item, pair, self._step.module_classes)
        if item.reference.kind is CallKind.DATA:
            place = replace(place, module="", module_class="")
        kept = self._ledger.aside.get(key_of(pair))
        if kept is not None:  # a step before made it
            place = replace(kept, step=place.step, sequence=place.sequence)
        yield Wrong(place, state, [])


# Judge tensors that enter a step from outside and are no batch, because no recorded operator made them.
#
# Python may take numbers of the step and give others back (NumPy inside of a forward). A model may be at work where
# no step is open: rollouts, a teacher before its student, a target network. A batch is equal on both sides or it is
# wrong; these are judged against what they may follow from.

_UNSEEN = Region(unseen=8)
"""Calls assumed between what they follow from and what arrives."""


_HALF = frozenset({"float16", "bfloat16"})


def follows_from_the_run(item: Aligned) -> bool:
    """Return whether a tensor that enters a step may follow from the run, in either recording."""
    sides = (item.reference, item.candidate)
    return item.reference.kind is CallKind.DATA and any(
        COMPUTED_OUT_OF_SIGHT in call.arguments or call.with_role(Role.INPUT) for call in sides
    )


class Arrivals:
    """Judges them in one aligned step."""

    def __init__(self, step: AlignedStep, ledger: Ledger, judge: Judge) -> None:
        self._step, self._ledger, self._judge = step, ledger, judge

    def judged(self, item: Aligned, measured: Measured) -> tuple[list[Measured], Judgement]:
        """Return the tensors that it may follow from, and the judgement.

        Python computes equal numbers from equal ones. A model that works unseen rounds, with how many operators and in
        which dtypes is not known: what is beyond the tolerance of a few is then not judged, unless it is far off. So is
        what Python has from numbers that differ.
        """
        entering = [self._ledger.measure(pair) for pair in item.complete(Role.INPUT)]
        computed = _arguments(item).get(COMPUTED_OUT_OF_SIGHT)
        if computed is not None:
            entering.extend(self._parameters())
        equal = all(one.equal for one in entering)
        if computed is None and equal:
            return entering, self._judge.passage([], measured, region=NOTHING_BETWEEN)
        judgement = self._judge.passage(entering, measured, region=_UNSEEN)
        if equal and not computed:
            return entering, judgement
        rounded = measured.difference <= DEEP_MODEL * judgement.tolerance
        if self._has_half_precision:
            rounded |= measured.relative <= LINEAR_REGIME
        return entering, as_open(judgement) if rounded else judgement

    @cached_property
    def _has_half_precision(self) -> bool:
        calls = self._step.reference.calls.values()
        return any(record.dtype in _HALF for call in calls for record in call.records)

    def _parameters(self) -> Iterator[Measured]:
        """How far the parameters were apart, as one: after the last update, or at first."""
        last = [after for _, after in self._ledger.last_updates.values()]
        if not last:
            initial = (pair for one in self._step.of_kind(CallKind.INIT) for pair in one.whole)
            last = [self._ledger.measure(pair) for pair in initial]
        together = pooled(one for one in last if one.floating and not one.shape_differs)
        if together is not None:
            yield together

    def place_of(self, item: Aligned, pair: Pair) -> Place:
        """Where it arrives: within a module, or before the step."""
        classes = self._step.module_classes
        place = place_of(item, pair, classes)
        path = _arguments(item).get(ARRIVED_IN)
        if path is None:
            return replace(place, module="", module_class="")
        kind = classes.get(path, "")
        return replace(place, phase=Phase.FORWARD, module=path, module_class=kind, op=kind, call=0)

    def words(self, item: Aligned, pair: Pair) -> str:
        """Return its name in words."""
        name, arguments = pair.present.name, _arguments(item)
        if arguments.get(COMPUTED_OUT_OF_SIGHT):
            return f"{name}, which was computed where nothing is recorded,"
        return (
            f"{name}, which Python computed," if ARRIVED_IN in arguments else f"the batch ({name})"
        )


def _arguments(item: Aligned) -> dict[str, Any]:
    return {**item.reference.arguments, **item.candidate.arguments}
