"""Gradients that differ at a tensor and nowhere before it: what made the tensor takes the difference out.

Shares of a softmax sum to one, a normalised vector has one length. Two formulas that are equal for all such tensors
have other derivatives for the rest, which none of them ever is: `2 - 2 x.y` beside `|x - y|**2`, an entropy by
logarithms of shares beside one by the library. The backward of the softmax, or of the normalisation, takes out what
differs. So the gradients of all that the tensor was computed from are the same, and the training is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from lockstep.align.dataflow import Flow
from lockstep.align.step import AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import CallKind, Role
from lockstep.judge.protocol import Judgement
from lockstep.judge.tolerances import PROJECTED_ROUNDINGS, PROJECTED_SHARE
from lockstep.locate.flow.cut_graph import forward_pair
from lockstep.locate.flow.ledger import Key, Ledger, State, key_of
from lockstep.locate.flow.outweighed import Outweighing
from lockstep.measure.measured_pair import Measured

TAKEN_OUT = Judgement(
    0.0,
    0.0,
    beyond_floor=False,
    unexplained=False,
    words="what made the tensor takes the difference out: the gradients of all that it was made from agree",
)
"""What such a gradient is judged."""

_MOST_TENSORS = 50
"""Tensors on the way back after which a difference is not taken out any more."""


class Projections:
    """Tells which gradients of one aligned step differ where only what made their tensors can see it.

    Parameters
    ----------
    step, ledger, outweighing
        As the walk through the step has them.
    """

    def __init__(self, step: AlignedStep, ledger: Ledger, outweighing: Outweighing) -> None:
        self._step, self._ledger, self._outweighing = step, ledger, outweighing

    def take_out(self, gradient: Measured, forward: Pair) -> bool:
        """Whether every way back from a tensor comes to one whose gradients are the same in both runs.

        The same to some roundings, and by far less apart than the gradient at the tensor itself: a fault in a term
        that counts little is small beside the whole gradient, too.
        """
        if not self._outweighing.whole_step_follows:
            return False
        waiting, seen, found = [forward], set[Key](), False
        while waiting:
            pair = waiting.pop()
            if key_of(pair) in seen:
                continue
            seen.add(key_of(pair))
            if len(seen) > _MOST_TENSORS:
                return False
            for source in self._made_from(pair):
                if source.present.name in self._ledger.parameter_names or self._is_given(source):
                    continue  # gradients of parameters are known to follow; a batch has none
                if self._is_same_at(source, gradient):
                    found = True
                else:
                    waiting.append(source)
        return found

    def _made_from(self, pair: Pair) -> Iterator[Pair]:
        """Tensors of both runs that one was computed from, whatever calls of either run lie in between."""
        for record, flow, partner in self._sides(pair):
            waiting, seen = [record], set[int]()
            while waiting:
                one = waiting.pop()
                maker = flow.producer(one.content.id, one.sequence + (one.role is Role.OUTPUT))
                if maker is None or maker.id in seen:
                    continue
                seen.add(maker.id)
                for taken in maker.with_role(Role.INPUT):
                    state = partner(taken.content.id)
                    if state is None:
                        waiting.append(taken)
                    else:
                        yield state.measured.pair

    def _sides(
        self, pair: Pair
    ) -> Iterator[tuple[TensorRecord, Flow, Callable[[int], State | None]]]:
        step, ledger = self._step, self._ledger
        if pair.reference is not None and pair.candidate is not None:
            yield pair.reference, step.reference, ledger.partner_of_reference
            yield pair.candidate, step.candidate, ledger.partner_of_candidate

    def _is_given(self, pair: Pair) -> bool:
        maker = self._maker(pair)
        return maker is None or maker.kind is CallKind.DATA

    def _maker(self, pair: Pair) -> Call | None:
        record = pair.reference
        if record is None:
            return None
        after = record.sequence + (record.role is Role.OUTPUT)
        return self._step.reference.producer(record.content.id, after)

    def _is_same_at(self, pair: Pair, gradient: Measured) -> bool:
        """Whether both runs send the same gradient to a tensor."""
        maker = self._maker(pair)
        item = None if maker is None else self._step.of_reference(maker)
        if item is None:
            return False
        for one in item.complete(Role.GRAD_OUTPUT):
            made = forward_pair(item, one, Role.OUTPUT)
            if made is not None and key_of(made) == key_of(pair):
                sent = self._ledger.measure(one)
                return sent.equal or (
                    sent.relative <= PROJECTED_ROUNDINGS * sent.unit
                    and sent.distance <= PROJECTED_SHARE * gradient.distance
                )
        return False
