"""Branches of the graph that end in one run, and the last function that sends a gradient on."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Outcome, Pair
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import OF_LAST_FUNCTION, Call, Content
from lockstep.core.site import Role
from lockstep.judge.protocol import AGREES
from lockstep.locate.flow.boundary import Places
from lockstep.locate.flow.ledger import Key, Ledger, State, key_of
from lockstep.locate.flow.origins import Origins, without_partner
from lockstep.locate.flow.settling import Settling
from lockstep.locate.flow.words import what_enters
from lockstep.measure.measured_pair import Measured

_UNRELATED = 1.0
"""Relative distance from which two tensors are no nearer to each other than to zero."""


class Cuts:
    """Finds where one run cuts the graph, and settles gradients that lack a part for that reason.

    step: The aligned step.
    ledger, origins, places, settling: As the walk has them.
    sees_every_call: Whether what no call was seen to send was sent by none.
    tells_gradients: Whether each run was recorded with every gradient that a call sends on, as trainings of PyTorch
        are.
    """

    def __init__(
        self,
        step: AlignedStep,
        ledger: Ledger,
        origins: Origins,
        places: Places,
        settling: Settling,
        *,
        sees_every_call: bool,
        tells_gradients: bool,
    ) -> None:
        self._step, self._ledger, self._origins = step, ledger, origins
        self._places, self._settling = places, settling
        self._sees_every_call, self._tells_gradients = sees_every_call, tells_gradients
        self._cut: set[Key] = set()

    def found_in(self, item: Aligned) -> Iterator[tuple[int, Pair]]:
        """Gradients that a call sends to one of its inputs in one run only, and when.

        Both runs must have come back to the call, and the input must be there in both.
        """
        if len(item.whole) == len(item.pairs) or not self._sees_every_call:
            return
        if not (self._tells_gradients or self._step.sees_gradients_sent):
            return
        arrived = [pair.reference for pair in item.complete(Role.GRAD_OUTPUT)]
        if not arrived or item.calls.only_results or self._step.is_container(item):
            return
        for pair in item.pairs:
            record = pair.present
            if pair.reference is not None and pair.candidate is not None:
                continue
            # Later ones belong to another backward, which the other run may not go through.
            first = record.role is Role.GRAD_INPUT and not record.occurrence
            sent = first and _norm(pair) > 0
            if (
                sent
                and forward_pair(item, pair, Role.INPUT)
                and not _is_sent_on(item, pair)
                and not self._leads_nowhere(item, pair)
            ):
                yield max(one.sequence for one in arrived if one is not None), pair

    def _leads_nowhere(self, item: Aligned, pair: Pair) -> bool:
        is_reference = pair.reference is not None
        call = item.reference if is_reference else item.candidate
        return self._step.leads_nowhere(call, pair.present, is_reference=is_reference)

    def begin(self, item: Aligned, pair: Pair) -> None:
        """A branch of the graph ends here in one run: a stray detach, a missing gradient."""
        forward = forward_pair(item, pair, Role.INPUT)
        assert forward is not None
        entering = [self._ledger.measure(one) for one in item.complete(Role.GRAD_OUTPUT)]
        if any(self._ledger.tainted(one) for one in (*entering, self._ledger.measure(forward))):
            return
        given = self._ledger.measure(forward)
        if given.shape_differs or (given.known and given.difference >= _UNRELATED):
            return  # calls in one place that are given different things
        if self._is_made_alone(forward):
            return  # each run makes it by calls of its own: what is sent on to what enters those is judged there
        self._cut.add(key_of(forward))
        side = "reference" if pair.candidate is None else "candidate"
        name = pair.present.name or f"input {pair.present.index}"
        reason = Reason(
            Clause(About.ENTERED, what_enters(entering)),
            Clause(
                About.LEFT,
                f"but only the {side} sends a gradient on to {name} (norm {_norm(pair):.3g})",
                name,
            ),
            "in the other run the graph is cut here",
        )
        self._origins.add(self._places.of(item, pair), without_partner(pair, reason))

    def _is_made_alone(self, pair: Pair) -> bool:
        """Whether in each run a call without partner makes a tensor."""
        left, right = pair.both
        step = self._step
        makers = (
            (step.reference.producer(left.content.id, left.sequence), step.of_reference),
            (step.candidate.producer(right.content.id, right.sequence), step.of_candidate),
        )
        return all(maker is not None and partner(maker) is None for maker, partner in makers)

    def is_behind(self, item: Aligned, measured: Measured, forward: Pair | None) -> bool:
        """Settle a gradient that lacks a part because a branch of the graph is cut in one run."""
        if forward is None or key_of(forward) not in self._cut or measured.equal:
            return False
        judgement = replace(AGREES, beyond_floor=True)
        self._settling.settle(
            item, State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
        )
        return True


def forward_pair(item: Aligned, gradient: Pair, role: Role) -> Pair | None:
    """Return the tensor of a call's forward that a gradient belongs to."""
    index = gradient.present.index
    return next((pair for pair in item.complete(role) if pair.present.index == index), None)


def _is_sent_on(item: Aligned, pair: Pair) -> bool:
    """Whether the other run sends this gradient too: to a parameter itself, not to what was made of it."""
    other = item.reference if pair.reference is None else item.candidate
    return any(one.index == pair.present.index for one in other.with_role(Role.PARAM_GRAD))


def _norm(pair: Pair) -> float:
    statistics = pair.present.statistics
    return statistics.norm if statistics is not None else math.nan


# Whether the last function of a call's graph is the same in two dumps, whose tools note the gradient that it sends.
#
# `linear` may end in `addmm`, which sends a bias's gradient first, or in a conversion, which sends on what it got.

OTHER_FUNCTION = "the graph of this call ends in a different function in the two runs"
"""Why such a gradient is not judged."""


def is_of_other_function(item: Aligned, pair: Pair) -> bool:
    """Whether a gradient is one that two different functions sent on, so that nothing follows from how it differs.

    Their gradients have different extents, or in one run a conversion comes last: it sends on what arrived,
    in a dtype of its own.
    """
    left, right = pair.reference, pair.candidate
    if left is None or right is None or not left.name.startswith(OF_LAST_FUNCTION):
        return False
    read = left.content.loader is not None and right.content.loader is not None
    if left.content.numel != right.content.numel or (left.shape != right.shape and not read):
        return True
    if left.dtype == right.dtype:
        return False
    handed_on = _arrived(item.reference, left.content), _arrived(item.candidate, right.content)
    return handed_on[0] != handed_on[1]


def _arrived(call: Call, gradient: Content) -> bool:
    """Whether a gradient is one that arrived at its call, by its extremes: a conversion sends it on."""
    one = gradient.statistics
    if one is None or not one.maximum:
        return False
    arrived = (record.content for record in call.with_role(Role.GRAD_OUTPUT))
    return any(
        other.numel == gradient.numel
        and other.statistics is not None
        and (other.statistics.minimum, other.statistics.maximum) == (one.minimum, one.maximum)
        for other in arrived
    )
