"""Judge a pair, and decide: it agrees, the difference is inherited, or it begins there."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

from lockstep.align.settings import Setting
from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Kind, Outcome
from lockstep.core.operators import Family, family_of
from lockstep.core.reason import Reason
from lockstep.core.site import CallKind, Role
from lockstep.judge.protocol import Judgement
from lockstep.judge.tolerances import ILL_CONDITIONED, LINEAR_REGIME, SECOND_ORIGIN, UNBOUNDED
from lockstep.locate.flow.ledger import Ledger, State, agreeing, key_of, settle
from lockstep.locate.flow.origins import Origins, Place
from lockstep.locate.flow.outweighed import NO_PAIR, Extents
from lockstep.locate.flow.words import beside_reason, open_clause, origin_reason, settled_reason
from lockstep.measure.measured_pair import Measured


class Settling:
    """Settles pairs: keeps and reports each in the ledger, and names origins.

    ledger, origins: What is known and found so far in this rank; both are added to.
    extents, scopes: Of the step.
    """

    def __init__(self, ledger: Ledger, origins: Origins, extents: Extents, scopes: Scopes) -> None:
        self._ledger, self._origins = ledger, origins
        self._extents, self._scopes = extents, scopes

    def decide(self, judged: JudgedPair) -> None:
        """Origin, inherited or agreeing."""
        measured, judgement = judged.measured, judged.judgement
        known = self._ledger.state(measured.pair)
        if known is not None and known.tainted:
            self.settle(judged.item, known.at(measured))
            return
        if judgement is NO_PAIR:
            reason = Reason(open_clause(NO_PAIR.words))
            state = State(measured, judgement, outcome=Outcome.INCOMPARABLE)
            self._set_aside(state, reason, judged.place())
            return
        tainting = [source for source in judged.behind if self._ledger.tainted(source)]
        is_origin = self._is_origin(judged, tainting)
        unjudged = judgement.open or (judgement.unexplained and measured.shape_differs)
        if (is_origin or unjudged) and self._ledger.is_beside(judged.item):
            reason = beside_reason(measured, judgement)
            self._set_aside(agreeing(measured), reason, judged.place())
            return
        if is_origin:
            self._begin_origin(judged)
            return
        apart = self._ledger.updated_apart
        outcome = Outcome.AGREE
        if (apart or tainting) and judgement.beyond_floor:
            outcome = Outcome.DIFFER
        elif judgement.open or (
            judgement.beyond_floor and any(self._ledger.is_open(one) for one in judged.behind)
        ):
            outcome = Outcome.INCOMPARABLE
        elif judgement.unexplained and measured.shape_differs:
            judgement = replace(judgement, words=self._extents.why_open(judged.item, measured))
            outcome = Outcome.INCOMPARABLE
        if judgement.kind is None and judgement.beyond_floor and judged.is_amplified:
            judgement = replace(judgement, kind=Kind.AMPLIFIED)
        state = State(measured, judgement, apart or bool(tainting), outcome)
        if self._is_made_of_rounding(judged):
            self._ledger.rounding_alone.note_made(measured.pair)
        aside = self._followed_aside(judged)
        if outcome is Outcome.AGREE and judgement.beyond_floor and aside is not None:
            self._set_aside(state, settled_reason(measured, judgement, outcome), aside)
        else:
            self.settle(judged.item, state)

    def _is_made_of_rounding(self, judged: JudgedPair) -> bool:
        """Whether nothing takes a result's bound away but gradients that are rounding alone.

        All else that enters has to be near, and the operator known: the bound of any other says nothing of each input.
        """
        item, measured = judged.item, judged.measured
        if not judged.judgement.tolerance >= UNBOUNDED or measured.shape_differs:
            return False
        entering = [one for one in judged.entering if not one.equal]
        others = [one for one in entering if not self._ledger.rounding_alone.is_of(one)]
        if others and family_of(item.reference.site.op) is Family.UNKNOWN:
            return False
        return len(others) < len(entering) and all(one.relative <= LINEAR_REGIME for one in others)

    def _set_aside(self, state: State, reason: Reason, place: Place) -> None:
        """Report a difference that this step follows without, and do not keep it.

        It may go into a later step, which is not known to follow: there it is judged anew.
        """
        self._ledger.aside.setdefault(key_of(state.measured.pair), place)
        self._ledger.report(state, reason, inherited=False)

    def _followed_aside(self, judged: JudgedPair) -> Place | None:
        """Where a difference began that explains this one and was set aside; None where none does."""
        keys = (key_of(source.pair) for source in judged.behind)
        return next((self._ledger.aside[key] for key in keys if key in self._ledger.aside), None)

    def _is_origin(self, judged: JudgedPair, tainting: Sequence[Measured]) -> bool:
        """Whether a difference begins here: not explained, and not small beside what is inherited."""
        measured, judgement = judged.measured, judged.judgement
        overwhelmed = self._ledger.updated_apart or any(
            source.relative > LINEAR_REGIME for source in tainting
        )
        if measured.shape_differs and (self._ledger.any_tainted or not judged.entering):
            overwhelmed |= bool(self._extents.why_open(judged.item, measured))
        secondary = bool(tainting) and measured.difference <= SECOND_ORIGIN * judgement.tolerance
        return judgement.unexplained and (judgement.local or not (overwhelmed or secondary))

    def _begin_origin(self, judged: JudgedPair) -> None:
        measured, judgement, cause = judged.measured, judged.judgement, judged.cause
        untried = bool(judged.chosen) and judgement.kind is None
        if untried:  # it gives something else: that is no fault, as far as it is known
            judgement = replace(judgement, kind=Kind.SETUP)
        state = State(measured, judgement, tainted=True, outcome=Outcome.DIFFER)
        reason = origin_reason(
            judged.entering,
            measured,
            judgement,
            settings=judged.settings,
            untried=untried,
            name=judged.name,
        )
        finding = self._ledger.report(state, reason, inherited=False)
        at = judged.place()
        if finding.kind is Kind.SETUP:
            cause = ("setting", at.op, *map(str, judged.chosen))
        if not self._origins.add(at, finding, one_of=cause, wrong_run=judgement.wrong_run):
            self._ledger.repeat(finding)
        self._ledger.remember(state)
        self._scopes.widen(judged.item, measured)

    def is_clear(self, item: Aligned, measured: Measured) -> bool:
        """Settle a pair that has met before, is equal, or of which nothing is known."""
        known = self._ledger.state(measured.pair)
        if known is None and measured.known and not measured.equal:
            return False
        self.settle(item, known.at(measured) if known else agreeing(measured))
        return True

    def settle(self, item: Aligned, state: State) -> None:
        """Keep and report a pair that is no origin."""
        settle(self._ledger, state)
        self._scopes.widen(item, state.measured)


_LEAVING = frozenset({Role.OUTPUT, Role.GRAD_INPUT, Role.BUFFER})


class Scopes:
    """Gathers the worst tensors of one step."""

    def __init__(self, step: AlignedStep) -> None:
        self._step = step
        self._worst: dict[tuple[int, bool], Measured] = {}

    def around(self, item: Aligned, measured: Measured, *, backward: bool) -> list[Measured]:
        """The worst tensor seen so far inside the same module call, if any."""
        passed_out = (
            item.reference.kind is CallKind.MODULE and measured.pair.present.role in _LEAVING
        )
        scope = item.reference.id if passed_out else item.reference.parent
        worst = self._worst.get((scope, backward))
        return [worst] if worst is not None else []

    def before(self, item: Aligned, *, backward: bool) -> list[Measured]:
        """The worst tensor seen so far beside a call, inside the same module call, if any."""
        worst = self._worst.get((item.reference.parent, backward))
        return [worst] if worst is not None else []

    def widen(self, item: Aligned, measured: Measured) -> None:
        """Take a tensor into account."""
        role, call = measured.pair.present.role, item.reference
        if call.kind is CallKind.GRADIENT or role is Role.PARAM_GRAD:
            return
        scope = call.parent
        if role is Role.INPUT or role is Role.GRAD_OUTPUT:
            if not self._step.is_container(item):
                return
            scope = call.id
        key = (scope, role is Role.GRAD_OUTPUT or role is Role.GRAD_INPUT)
        worst = self._worst.get(key)
        if worst is None or measured.relative > worst.relative:
            self._worst[key] = measured


@dataclass(frozen=True, slots=True)
class JudgedPair:
    """A pair with everything that the walk decides by.

    item: The call that the pair is met at.
    measured, judgement: How far apart its sides are, and whether that is explained.
    entering: What it was computed from.
    place: Gives where an origin would be.
    settings: What says that the call was made with other settings.
    chosen: Settings that the script chose otherwise.
    background: What it also depends on, without having been judged against it.
    name: What an origin's words call it, "" where its place says enough.
    cause: What origins of one cause have in common, None where each is its own.
    """

    item: Aligned
    measured: Measured
    judgement: Judgement
    entering: Sequence[Measured]
    place: Callable[[], Place]
    settings: Sequence[Setting] = ()
    chosen: tuple[Setting, ...] = ()
    background: Sequence[Measured] = ()
    name: str = ""
    cause: tuple[Hashable, ...] | None = None

    @property
    def behind(self) -> tuple[Measured, ...]:
        """All that a difference may be inherited from."""
        return (*self.entering, *self.background)

    @property
    def is_amplified(self) -> bool:
        """Whether a difference grows by far more than operators usually let it: ill-conditioned here."""
        largest = max((one.relative for one in self.entering if one.floating), default=0.0)
        return 0.0 < largest * ILL_CONDITIONED < self.measured.difference < math.inf
