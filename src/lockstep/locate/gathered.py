"""Gather over the ranks and steps of one comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from lockstep.align.settings import NumbersRead
from lockstep.align.step import AlignedStep
from lockstep.core.dependence import Dependence
from lockstep.core.finding import (
    Evidence,
    Finding,
    Metrics,
    Outcome,
    Pair,
    SetupDifference,
)
from lockstep.core.manifest import RankManifest
from lockstep.core.not_compared import NotCompared
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.remarks import On, Remark
from lockstep.core.site import CallKind
from lockstep.judge.protocol import Judge
from lockstep.locate.causes.causes import Causes, operators_unseen
from lockstep.locate.causes.dtype_changes import DtypeChanges, autocast_policies
from lockstep.locate.coverage import CompiledCode, Coverage
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.origins import Origins
from lockstep.locate.lone_effects import Idiom, LoneEffect, idle_causes, lone_effects
from lockstep.locate.setups.model_setup import ModelSetup, model_setup
from lockstep.locate.setups.precision import PrecisionClasses, tf32_allowed
from lockstep.locate.setups.setup_facts import circumstances
from lockstep.locate.unaligned_calls import Unaligned, called_words, words_for
from lockstep.reading.paired_steps import Pairing
from lockstep.store.reader import RankRecording

if TYPE_CHECKING:
    from lockstep.core.rank_findings import EqualRank

_NOT_AT_THIS_CALL = "the other run did not record it at this call"


@dataclass
class Gathered:
    """The collected results of all ranks and steps of one comparison."""

    judge: Judge
    read_tensors: bool
    pairing: Pairing
    ledgers: dict[str, Ledger] = field(default_factory=dict)
    origins: dict[str, Origins] = field(default_factory=dict)
    lone: list[Finding] = field(default_factory=list)
    precision: PrecisionClasses = field(default_factory=PrecisionClasses)
    unaligned: Unaligned = field(default_factory=Unaligned)
    idle: dict[str, IdleCalls] = field(default_factory=dict)
    causes: dict[str, Causes] = field(default_factory=dict)
    setup: list[SetupDifference] = field(default_factory=list)
    setups: dict[str, ModelSetup] = field(default_factory=dict)
    dtypes: DtypeChanges = field(default_factory=DtypeChanges)
    coverage: Coverage = field(default_factory=Coverage)
    compiled: CompiledCode = field(default_factory=CompiledCode)
    steps: set[int] = field(default_factory=set)
    halted: NotCompared | None = None
    aligned: int = 0
    has_calls: bool = False
    one_sided: list[Pair] = field(default_factory=list)
    equal_ranks: dict[str, EqualRank[Finding]] = field(default_factory=dict)
    crossed: list[str] = field(default_factory=list)
    unused_gradients: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    unaligned_reference: int = 0
    unaligned_candidate: int = 0

    def add_rank(self, name: str, reference: RankRecording, candidate: RankRecording) -> None:
        """A rank of both is about to be compared."""
        dependences = (_dependence(reference), _dependence(candidate))
        ledger = Ledger(
            read_tensors=self.read_tensors, precision=self.precision, dependences=dependences,
            tells_widths=not self.pairing.is_of_two_frameworks,
            numbers_read=NumbersRead(reference.manifest.steps, candidate.manifest.steps),
        )  # fmt: skip
        setup = model_setup(reference, candidate, self.pairing.names[name])
        if not self.judge.looks_at_set_up:
            setup = replace(setup, modules={})
        self.ledgers[name], self.origins[name] = ledger, Origins()
        self.setups[name] = setup
        unseen = operators_unseen(self.pairing.reference, self.pairing.candidate)
        self.causes[name] = Causes(setup, ledger, self.origins[name], self.unaligned, unseen)
        self._add_set_up(reference.manifest, candidate.manifest, setup.differences())

    def add_equal_rank(self, reference: RankRecording, candidate: RankRecording) -> None:
        """A rank of both is not opened, as it is equal by its files: where and how it ran is compared all the same."""
        self._add_set_up(reference.manifest, candidate.manifest, [])

    def _add_set_up(
        self, reference: RankManifest, candidate: RankManifest, of_model: list[SetupDifference]
    ) -> None:
        self.precision.tf32 = tf32_allowed(reference, candidate)
        self.dtypes.policies = autocast_policies(reference, candidate)
        said = {str(one) for one in self.setup}
        told = of_model
        if not self.pairing.is_of_another_tool:  # which tells nothing of where it ran
            told = [*circumstances(reference, candidate), *of_model]
        self.setup.extend(one for one in told if str(one) not in said)

    @property
    def every_finding(self) -> Sequence[Finding]:
        """All findings in order of ranks, then those without a partner."""
        if not self.equal_ranks:
            every = (one for ledger in self.ledgers.values() for one in ledger.findings)
            return (*every, *self.lone)
        from lockstep.core.rank_findings import RankFindings  # for many ranks alone

        names = [
            name for name in self.pairing.ranks.both if name in (*self.ledgers, *self.equal_ranks)
        ]
        return RankFindings(
            [
                *(
                    self.equal_ranks.get(name) or tuple(self.ledgers[name].findings)
                    for name in names
                ),
                tuple(self.lone),
            ]
        )

    def count(self, rank: str, step: AlignedStep) -> None:
        """Count calls without partner, and list them."""
        setup = self.setups[rank]
        if setup.compiled:
            self.coverage.note_inside(step, setup.modules)
            self.compiled.note(step, setup.compiled)
        effects = lone_effects(step)
        self.unaligned.gather(step, effects)
        if self.judge.looks_at_set_up:
            self.idle.setdefault(rank, IdleCalls()).gather(effects)
        self.coverage.note(step)
        for side, names in step.unused_gradients.items():
            self.unused_gradients[side].update(names)
        kinds = (CallKind.MODULE, CallKind.OPERATOR)
        self.has_calls |= any(pair.present.kind in kinds for pair in step.pairs)
        self.aligned += sum(1 for _ in step.of_kind(CallKind.MODULE, CallKind.OPERATOR))
        for pair in step.lone:
            self.unaligned_reference += pair.candidate is None
            self.unaligned_candidate += pair.reference is None
            for record in pair.present.records:
                sides = (record, None) if pair.candidate is None else (None, record)
                self.lone.append(_missing(Pair(*sides), "its call has no partner in the other run"))
        named = {step.path_of(call, is_candidate=True) for call in step.candidate.calls.values()}
        for item in step.aligned:
            own, other = item.reference.site, step.path_of(item.candidate, is_candidate=True)
            if own.module != other and own.module in named:
                self.crossed.append(f"that of {own} under {item.candidate.site}")
            for paired in item.pairs:
                if paired.reference is None or paired.candidate is None:
                    self.lone.append(_missing(paired, _NOT_AT_THIS_CALL))
                    if not (item.calls.only_results or self.ledgers[rank].is_beside(item)):
                        self.one_sided.append(paired)


def _dependence(rank: RankRecording) -> Dependence:
    """What the training of a rank depends on; unknown while it still goes on."""
    return Dependence(rank.steps if rank.is_closed else (), rank.calls)


def _missing(pair: Pair, reason: str) -> Finding:
    return Finding(
        pair,
        Outcome.MISSING,
        Metrics(Evidence.NONE),
        float("nan"),
        float("nan"),
        Reason(Clause(About.ALONE, reason)),
    )


@dataclass(slots=True)
class IdleCalls:
    """Collects, over the steps of one rank, the calls of one run alone that changed nothing.

    The steps agree, and what one run alone clips may bite in a later one: the headline tells of it.
    """

    remarks: list[Remark] = field(default_factory=list)
    _known: set[tuple[object, ...]] = field(default_factory=set)

    def gather(self, effects: Sequence[LoneEffect]) -> None:
        """Take in one more step."""
        for together in idle_causes(effects):
            first = together[0]
            key = (first.is_candidate, first.idiom or (first.call.site.op, first.call.source))
            if key not in self._known:
                self._known.add(key)
                self.remarks.append(_remark(together))


def _remark(together: Sequence[LoneEffect]) -> Remark:
    acting = next((one for one in together if one.works_on is not None), together[-1])
    return Remark(
        On.CALLS_IDLE,
        side="candidate" if acting.is_candidate else "reference",
        step=acting.call.step,
        names=(acting.call.site.op if acting.idiom is None else acting.idiom.value,),
        at=acting.call.library or acting.call.source,
        reason=_words(together, acting.idiom, is_candidate=acting.is_candidate),
    )


def _words(together: Sequence[LoneEffect], idiom: Idiom | None, *, is_candidate: bool) -> str:
    called = [(one.call.site.op, one.call.library or one.call.source) for one in together]
    if idiom is None:
        return words_for([], called) if is_candidate else words_for(called, [])
    side, other = ("candidate", "reference") if is_candidate else ("reference", "candidate")
    return f"{idiom.value} in the {side}, not in the {other}: {called_words(called)}"


__all__ = ["IdleCalls"]
