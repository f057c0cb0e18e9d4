"""The two calls that are judged, ready to be run again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lockstep.align.settings import are_set_otherwise
from lockstep.core.finding import CallPair
from lockstep.core.operators import canonical_name
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Role
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.rebuild import Rebuilt, rebuild
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.calls.rerun import Rerun
from lockstep.replay.calls.side import Side


@dataclass(frozen=True, slots=True)
class Pairing:
    """Both sides of one call.

    reference, candidate: The sides; where plain arguments differ the candidate's is run with the reference's.
    as_called: The candidate's side with its own arguments, where they differ.
    keeps_settings: The two were called otherwise, and the candidate's cannot be run with what the reference was called
        with.
    """

    reference: Side
    candidate: Side
    as_called: Side | None = None
    keeps_settings: bool = False

    @property
    def settings_replaced(self) -> bool:
        """Whether the candidate was called with other settings."""
        return self.as_called is not None

    def is_set_otherwise(self) -> bool:
        """Whether settings alone can make two results differ that are each what its own call gives.

        Raises CannotReplay if settings and tensors may do so.
        """
        if not self.keeps_settings:
            return False
        if self._takes_the_same:
            return True
        raise CannotReplay("the two runs call it in another way, and with other tensors")

    @property
    def _takes_the_same(self) -> bool:
        """Whether the same tensors enter both calls, bit by bit, in whatever order."""
        roles = (Role.INPUT, Role.GRAD_OUTPUT) if self.reference.backward else (Role.INPUT,)
        left, right = (
            sorted((one.role, one.digest or "") for one in side.call.with_role(*roles))
            for side in (self.reference, self.candidate)
        )
        return left == right and all(digest for _, digest in left)


def calls_of(calls: CallPair | None, output: Measured) -> CallPair:
    """The two calls that gave an output.

    Raises CannotReplay if one of them is not there, or the output is not theirs.
    """
    pair = output.pair
    if calls is None or calls.reference is None or calls.candidate is None:
        raise CannotReplay("it is no single call")
    for call, record in ((calls.reference, pair.reference), (calls.candidate, pair.candidate)):
        if record is None or not any(record is own for own in call.records):
            raise CannotReplay("the tensor belongs to another call")
    return calls


def records_of(output: Measured) -> tuple[TensorRecord, TensorRecord]:
    reference, candidate = output.pair.reference, output.pair.candidate
    if reference is None or candidate is None or output.shape_differs:
        raise CannotReplay("the two tensors have other shapes")
    return reference, candidate


def present(call: Call | None) -> Call:
    assert call is not None
    return call


def key_of(calls: CallPair, backward: bool) -> tuple[Any, ...]:
    left, right = present(calls.reference), present(calls.candidate)
    return left.rank, left.step, left.id, right.id, backward


def paired(calls: CallPair, backward: bool, *, settings: bool = True) -> Pairing:
    left, right = present(calls.reference), present(calls.candidate)
    if _makes_of(left) != _makes_of(right):
        # Each is right by its own definition; whether they are the same is another question.
        raise CannotReplay("the two runs call other operators, or one with more tensors")
    one, two = rebuild(left), rebuild(right)
    as_called, keeps_settings = None, False
    spelled_alike = left.site.op == right.site.op
    if settings and not (spelled_alike and not are_set_otherwise(left.arguments, right.arguments)):
        own = Side(Rerun(right, two), backward=backward)
        replaced = _with_settings(right, two, one, backward)
        if replaced is None:
            keeps_settings = True
        elif replaced != two:
            two, as_called = replaced, own
    return Pairing(
        Side(Rerun(left, one), backward=backward),
        Side(Rerun(right, two), backward=backward),
        as_called,
        keeps_settings,
    )


def _makes_of(call: Call) -> tuple[str, int]:
    """What is done and with how many tensors."""
    return canonical_name(call.site.op), len(call.with_role(Role.INPUT))


def _with_settings(call: Call, own: Rebuilt, other: Rebuilt, backward: bool) -> Rebuilt | None:
    """The candidate's call with the reference's settings; None where it cannot be made with them.

    Where the value makes no difference, the two give the same, and nothing is said.
    """
    try:
        replaced = own.with_settings(other)
        if replaced == own:
            return own
        Side(Rerun(call, replaced), backward=backward).check()
    except CannotReplay:
        return None
    return replaced
