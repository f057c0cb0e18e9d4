"""Judge the tensors that a step begins with: initial parameters and the batch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Outcome, Pair
from lockstep.core.site import CallKind, Role
from lockstep.judge.protocol import AGREES, NOTHING_BETWEEN, Judge
from lockstep.judge.stray_elements import with_stray_elements
from lockstep.judge.tolerances import TRAINED_ALIKE
from lockstep.locate.flow.arrivals import follows_from_the_run
from lockstep.locate.flow.counts import count_words
from lockstep.locate.flow.ledger import Ledger, State, agreeing, key_of, settle
from lockstep.locate.flow.origins import Origins, place_of
from lockstep.locate.flow.wrong_together import Wrong, report_together
from lockstep.measure.measured_pair import pooled


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
