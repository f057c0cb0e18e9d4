"""Parameters and buffers that a step finds or leaves changed, explained by the last update or call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.content_notes import DIFFER_BETWEEN_RANKS
from lockstep.core.finding import Outcome, Pair
from lockstep.core.operators import Family, family_of
from lockstep.core.site import Role
from lockstep.judge.protocol import AGREES, Judge, Region, as_open
from lockstep.locate.flow.accumulation import Event
from lockstep.locate.flow.buffers import region_inside
from lockstep.locate.flow.judged_pair import JudgedPair
from lockstep.locate.flow.ledger import BufferUser, Ledger, State, Updated, agreeing
from lockstep.locate.flow.operations import Operations
from lockstep.locate.flow.places import Places
from lockstep.locate.flow.settling import Settling
from lockstep.measure.measured_pair import Measured, pooled

UNSEEN = Region(unseen=8)
"""Calls assumed between tensors where none was recorded (level module, functional code between modules)."""

ONE_UNSEEN = Region(unseen=1)
"""One such call."""


class BetweenSteps:
    """Judges parameters and buffers that a call takes by their values after the step before.

    Parameters
    ----------
    step
        The aligned step.
    ledger, judge, operations, places, settling
        As the walk has them.
    updated
        Gives the last updates of a parameter of that name on all ranks.
    """

    def __init__(
        self,
        step: AlignedStep,
        ledger: Ledger,
        judge: Judge,
        operations: Operations,
        places: Places,
        settling: Settling,
        updated: Callable[[str], Sequence[Updated]],
    ) -> None:
        self._step, self._ledger, self._judge = step, ledger, judge
        self._operations, self._places = operations, places
        self._settling, self._updated = settling, updated
        self._left: dict[int, Pair | None] = {}

    def is_left(self, pair: Pair) -> bool:
        """Whether a pair is a buffer as `left` gave it."""
        return id(pair) in self._left

    def parameter(self, item: Aligned, measured: Measured) -> None:
        """Return the judgement of a parameter that the script changed between the steps."""
        if measured.pair.present.name in self._ledger.moved_alone:
            moved = replace(AGREES, beyond_floor=True)
            self._settling.settle(
                item, State(measured, moved, tainted=True, outcome=Outcome.DIFFER)
            )
            return
        last = self._ledger.last_updates.get(measured.pair.present.name)
        if last is None or last[0].step != item.reference.step - 1:
            self._changed_unseen(item, measured)
            return
        place, after = last
        entering, seen = self._as_gathered(after, measured)
        judgement = self._judge.update(entering, measured)
        judgement = judgement if seen else as_open(judgement)
        name = f"{place.tensor} at the next step"
        cause = ("changed between steps", item.reference.step)
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, lambda: place, name=name, cause=cause)
        )

    def _as_gathered(self, after: Measured, measured: Measured) -> tuple[list[Measured], bool]:
        """What an update left of a parameter, on all ranks where each has a part; and whether that is the whole."""
        contents = measured.pair.contents
        unlike_copies = any(one.told.kind in DIFFER_BETWEEN_RANKS for one in contents)
        if unlike_copies or after.numel >= measured.numel:
            return [after], True
        step = after.pair.present.step
        parts = [
            other
            for _, other in self._updated(measured.pair.present.name)
            if other.pair.present.step == step
        ]
        together = pooled(parts)
        whole = sum(other.numel for other in parts) >= measured.numel
        return ([after] if together is None else [together]), whole

    def buffer(self, item: Aligned, measured: Measured) -> None:
        """A buffer differs that no call was seen to change: the call that used it before did."""
        user = self._ledger.buffer_users.get(measured.pair.present.name)
        if user is None:
            self._changed_unseen(item, measured)
            return
        judgement = self._judge.passage(user.entering, measured, region=ONE_UNSEEN)
        name = f"the buffer {measured.pair.present.name} after it"
        self._settling.decide(
            JudgedPair(
                item,
                measured,
                judgement,
                user.entering,
                lambda: user.place,
                settings=user.settings,
                chosen=user.chosen,
                name=name,
            )
        )

    def left(self) -> Iterator[Event]:
        """Buffers of modules that are not seen in both runs, as a module around them leaves them."""
        for pair, before in self._ledger.buffers.written_unseen(self._step):
            owner = pair.present.name.rpartition(".")[0]
            around = self._operations.around(owner)
            if around and not self._operations.modules_at(owner):
                self._left[id(pair)] = before
                call = around[-1].reference
                last = max((record.sequence for record in call.records), default=call.sequence)
                yield last, len(self._step.aligned), around[-1], pair

    def judge_left(self, item: Aligned, pair: Pair) -> None:
        """A buffer after the calls of a module around, of which one run shows nothing inside."""
        measured, before = self._ledger.measure(pair), self._left[id(pair)]
        if measured.equal or not measured.known:
            self._settling.settle(item, agreeing(measured))
            return
        entering = [*self._operations.of(item, backward=False).inputs]
        entering.extend([self._ledger.measure(before)] if before is not None else [])
        region = region_inside(self._step, item)
        judgement = self._judge.passage(entering, measured, region=region)
        owner = pair.present.name.rpartition(".")[0]
        module_class = self._step.module_classes.get(owner, "")
        place = replace(
            self._places.of(item, pair), module=owner, module_class=module_class, op=module_class
        )
        name = f"the buffer {pair.present.name} after it"
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, lambda: place, name=name)
        )

    def _changed_unseen(self, item: Aligned, measured: Measured) -> None:
        """A parameter or buffer changed in no recorded call: by what the optimizers left, if by anything known."""
        if not self._ledger.knows_step(item.reference.step - 1):
            self._settling.settle(item, self._ledger.drifted(measured))
            return
        updates = pooled(after for _, after in self._ledger.last_updates.values())
        entering = [] if updates is None else [updates]
        judgement = self._judge.passage(entering, measured, region=UNSEEN)
        name = f"{measured.pair.present.name}, changed since the last step,"
        place = partial(self._places.of, item, measured.pair)
        cause = ("changed between steps", item.reference.step)
        self._settling.decide(
            JudgedPair(item, measured, judgement, entering, place, name=name, cause=cause)
        )

    def note_user(self, item: Aligned, pair: Pair) -> None:
        if family_of(item.reference.site.op) is Family.MOVEMENT:
            return
        operation = self._operations.of(item, backward=False)
        place = replace(self._places.of(item, pair), role=Role.BUFFER)
        self._ledger.buffer_users[pair.present.name] = BufferUser(
            place,
            operation.inputs,
            tuple(self._operations.settings_of(item)),
            self._operations.chosen_otherwise(item),
        )
