"""Group the origins of one step by their common cause, each reported once, recomputed calls and bare modules too.

The walks name every place whose inputs do not explain it. Some causes show at many places at once: parameters that are
frozen, gradients that were never zeroed, another clipping. Here they become one origin each, in their phase.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from lockstep.align.dataflow import Flow
from lockstep.align.step import Aligned, AlignedStep, is_below
from lockstep.core.finding import Kind, Origin, OtherClass, Pair
from lockstep.core.manifest import OPERATORS
from lockstep.core.operators import Family, family_of
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, would_differ
from lockstep.core.site import CallKind, Phase, Role
from lockstep.core.text import listed
from lockstep.judge.tolerances import SAME_ELEMENTS_KEPT
from lockstep.locate.causes.gradient_causes import GradientCauses, contents_of
from lockstep.locate.causes.lone_updates import SideEffects
from lockstep.locate.causes.other_arguments import SettingCauses, taken_instead
from lockstep.locate.causes.other_models import SetupCauses
from lockstep.locate.causes.scaling import StepGradients
from lockstep.locate.causes.step_origins import RankOrigins, StepOrigins
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.origins import Origins, drops_inside
from lockstep.locate.setups.model_setup import ModelSetup
from lockstep.locate.unaligned_calls import Regions, Unaligned
from lockstep.measure.measured_pair import measure_pair
from lockstep.store.reader import Recording

_UNTRACED = frozenset({Kind.SETUP, Kind.RANDOM, Kind.RECOMPUTED})


class Causes:
    """Puts origins of one rank together by cause, step by step.

    setup: What differs between the set-ups of the two models.
    ledger, origins: What is known and found so far in this rank; origins are replaced and withdrawn.
    unaligned: Modules of other classes.
    unseen: How it is told that operators were not recorded, "" where they were.
    """

    def __init__(
        self,
        setup: ModelSetup,
        ledger: Ledger,
        origins: Origins,
        unaligned: Unaligned,
        unseen: str = "",
    ) -> None:
        self._rank = RankOrigins(setup, ledger, origins)
        self._unaligned, self._unseen = unaligned, unseen

    def explain(self, step: AlignedStep, first: int) -> None:
        """Go through a step's origins; `first` is the number of the first of them."""
        gradients, regions = StepGradients(step), Regions(step)
        for causes in (SetupCauses, RecomputedCauses, GradientCauses, SettingCauses):
            causes(self._rank, step, gradients, regions, first).run()
        SideEffects(self._rank, step, gradients, regions, first).run()
        origins = StepOrigins(self._rank, step, gradients, regions, first)
        origins.each(lambda origin: self._described(origin, regions))
        self._rank.before = contents_of(gradients.at_optimizer())

    def _described(self, origin: Origin, regions: Regions) -> Origin:
        beside = _beside_model(origin, regions.step)
        between = between_words(origin, regions.step, self._unseen)
        library = _library(origin, regions)
        origin = replace(
            origin,
            library=library,
            beside=beside,
            between=between,
            after_backward=_is_after_backward(origin, regions.step),
        )
        other = self._unaligned.class_around(origin.module)
        if origin.kind is Kind.RANDOM and other is not None:
            return replace(origin, reason=Reason(class_clause(other), origin.reason))
        if origin.kind in _UNTRACED:
            return origin
        reasons: list[Clause | str] = [origin.reason]
        wiring = taken_instead(origin.finding.pair, regions.step)
        if wiring:
            reasons.append(wiring)
        region = regions.behind(origin.finding.pair)
        if region:
            reasons.append(Clause(About.LONE_CALL, str(region)))
        if other is not None:
            reasons.append(class_clause(other))
        reasons.extend(self._compiled_words(origin, regions.step))
        return replace(origin, reason=Reason(*reasons))

    def _compiled_words(self, origin: Origin, step: AlignedStep) -> Iterator[Clause | str]:
        """Where an origin is a module of which compiled code hides the inside: how to see it."""
        flows = {"reference": step.reference, "candidate": step.candidate}
        sides = [
            side
            for side in self._rank.setup.compiled
            if step.hides_inside(origin.module, flows[side])
        ]
        if sides:
            where = "both runs" if len(sides) == 2 else f"the {sides[0]}"
            yield Clause(
                About.COMPILED,
                f"{where} ran compiled code here, of which nothing inside is seen: record --compile-eager shows it",
            )
            drops = [
                one for one in self._rank.setup.dropping if step.hides_inside(one, flows[sides[0]])
            ]
            if drops and len(sides) == 1 and origin.phase is Phase.FORWARD:
                yield (
                    f"{listed(drops)} in there may draw other random numbers than in code that is not"
                    " compiled, unless torch._inductor.config.fallback_random is set"
                )


def class_clause(other: OtherClass) -> Clause:
    """Return a module's class in either run, as a clause."""
    return Clause(About.CLASS, str(other), other.module, other.reference, other.candidate)


def _beside_model(origin: Origin, step: AlignedStep) -> str:
    """What a tree of modules is that stands beside the model: of its class, or not updated (a teacher, a target)."""
    root = origin.module.partition(".")[0]
    kind = step.module_classes.get(root, "")
    name = kind.rpartition(".")[2]
    if not name or not (root == name or root.startswith(f"{name}_")):
        return ""  # a part of the model, by its own name there
    updated = step.names_of(Role.PARAM_AFTER)
    if any(one.startswith(f"{root}.") for one in updated):
        return ""
    same = kind == step.module_classes.get("")
    which = f"a second {name}" if same else f"{name} beside the model"
    return f"{which}, which no optimizer updates"


def _library(origin: Origin, regions: Regions) -> str:
    """Line of the library that the user's line of an origin calls, or ""."""
    pair = origin.finding.pair
    for record in (pair.candidate, pair.reference):
        call = regions.call_of(record) if record is not None else None
        if call is not None and call.source == origin.source:
            return call.library
    return ""


_ARRIVING = frozenset({Role.INPUT, Role.GRAD_OUTPUT})
_LEAVING = {
    Role.INPUT: Role.OUTPUT, Role.OUTPUT: Role.OUTPUT, Role.GRAD_OUTPUT: Role.GRAD_INPUT,
    Role.GRAD_INPUT: Role.GRAD_INPUT,
}  # fmt: skip
"""What the module before left, by what differs first."""


def operators_unseen(*recordings: Recording) -> str:
    """Return the words for operators that were not recorded, "not recorded at L0"; "" if they were."""
    gaps = (gap for one in recordings for gap in one.manifest.not_seen if gap.what == OPERATORS)
    return next((f"not recorded{f' at {gap.level}' if gap.level else ''}" for gap in gaps), "")


def _is_after_backward(origin: Origin, step: AlignedStep) -> bool:
    """Return whether an operator outside of all modules ran when the backward of its step was over."""
    if origin.module or not origin.op or origin.phase not in (Phase.FORWARD, Phase.BACKWARD):
        return False
    if origin.finding.pair.present.role not in (Role.INPUT, Role.OUTPUT):
        return False
    calls = step.recorded[origin.finding.pair.reference is None]
    arrived = [call.sequence for call in calls if call.kind is CallKind.GRADIENT]
    return bool(arrived) and origin.sequence > max(arrived)


def between_words(origin: Origin, step: AlignedStep, unseen: str) -> str:
    """Return between which modules an origin lies, "between fc and rnn, not recorded at L0"; "" where it is in one.

    origin: Of this step.
    step: Where modules alone were recorded.
    unseen: As `operators_unseen` tells it.
    """
    record = origin.finding.pair.present
    if not unseen or origin.kind is not Kind.FAULT or record.role not in _LEAVING:
        return ""
    met = _call_of(origin, step)
    if met is None or (record.role not in _ARRIVING and not step.is_container(met)):
        return ""
    path = met.reference.site.module
    inside = record.role not in _ARRIVING
    before = _last_before(step, met, record.sequence, _LEAVING[record.role], inside=inside)
    backward = record.role in (Role.GRAD_OUTPUT, Role.GRAD_INPUT)
    start = before or ("the loss" if backward else f"the input of {_name(_outer(step, met))}")
    end = path or "the model"
    if inside:
        end = f"the {'input' if backward else 'result'} of {_name(path)}"
    return f"between {start} and {end}, {unseen}"


def _call_of(origin: Origin, step: AlignedStep) -> Aligned | None:
    """The module call at which an origin was met."""
    record = origin.finding.pair.present
    return next(
        (
            item
            for item in step.of_kind(CallKind.MODULE)
            if any(pair.present is record for pair in item.whole)
        ),
        None,
    )


def _last_before(step: AlignedStep, met: Aligned, moment: int, role: Role, *, inside: bool) -> str:
    """Path of the module that was the last to leave something before a moment; "" where none was."""
    path = met.reference.site.module
    found = max(
        (
            (pair.present.sequence, item.reference.site.module)
            for item in _others(step, met)
            if not is_below(path, item.reference.site.module)
            and (not inside or is_below(item.reference.site.module, path))
            for pair in item.complete(role)
            if pair.present.sequence < moment
        ),
        default=(0, ""),
    )
    return found[1]


def _others(step: AlignedStep, met: Aligned) -> Iterator[Aligned]:
    return (item for item in step.of_kind(CallKind.MODULE) if item is not met)


def _outer(step: AlignedStep, met: Aligned) -> str:
    around = step.module_around(met)
    return "" if around is None else around.reference.site.module


def _name(path: str) -> str:
    return path or "the model"


# Activation checkpointing that computes a call again, in backward, with other random numbers than in forward.
#
# The gradients are then those of another network than the one whose loss was taken. One run alone proves it: a call
# that draws random numbers got bitwise equal tensors both times, and gave something else.


class RecomputedCauses(StepOrigins):
    """Names a call that one run computes again differently as the one cause of the differences there."""

    __slots__ = ()

    def run(self) -> None:
        """Put origins together by this cause."""
        sides = {"reference": self.step.reference, "candidate": self.step.candidate}
        drawn = {side: drawn_again(flow) for side, flow in sides.items()}
        otherwise = [side for side, calls in drawn.items() if calls]
        if len(otherwise) != 1:
            return
        side = otherwise[0]
        first, sites = drawn[side][0], _met_otherwise(sides[side].calls.values())
        follows = [one for one in self.found() if self._follows(one, drawn[side], sites)]
        if not follows:
            return
        words = f"the {side} draws others than in forward for {_named(first)}"
        reason = Reason(Clause(About.RANDOM, words), *follows[0].reason.without(About.RANDOM))
        self.merge(follows, kind=Kind.RECOMPUTED, reason=reason)
        self.rank.origins.know_random_stream()

    def _follows(self, origin: Origin, drawn: Sequence[Call], sites: set[tuple[str, str]]) -> bool:
        call = self.call_of(origin)
        if call is None or call.kind is not CallKind.OPERATOR:
            return False
        if origin.phase is Phase.BACKWARD:
            return _site_of(call) in sites
        item = self.item_of(origin)
        return item is not None and any(
            one is item.reference or one is item.candidate for one in drawn
        )


def drawn_again(flow: Flow) -> list[Call]:
    """Return the calls of one run that were computed again with other random numbers, in order of time.

    A call counts if it draws random numbers, an earlier one of the same place with the same arguments got bitwise equal
    tensors, and none of these gave what it gives.
    """
    calls = [call for call in flow.calls.values() if call.id not in flow.containers]
    forward = _in_forward(calls)
    return [
        call
        for call in calls
        if call.recomputed
        and (family_of(call.site.op) in (Family.DROPOUT, Family.RANDOM) or drops_inside(call))
        and (earlier := [one for one in forward[_site_of(call)] if _is_first_time(one, call)])
        and all(_gave_another(one, call) for one in earlier)
    ]


def _in_forward(calls: Iterable[Call]) -> dict[tuple[str, str], list[Call]]:
    """What was not computed again, by its site."""
    found = defaultdict[tuple[str, str], list[Call]](list)
    for call in calls:
        if not call.recomputed:
            found[_site_of(call)].append(call)
    return found


def _is_first_time(call: Call, again: Call) -> bool:
    """Whether a call of the same place was made before, of bitwise equal tensors and the same arguments."""
    entered = _digests(again, Role.INPUT)
    return (
        call.sequence < again.sequence
        and call.arguments == again.arguments
        and None not in entered
        and _digests(call, Role.INPUT) == entered
    )


def _gave_another(call: Call, again: Call) -> bool:
    """Whether two results are those of other random numbers; rounding of a sum inside is none."""
    cosines = []
    for first, second in zip(
        call.with_role(Role.OUTPUT), again.with_role(Role.OUTPUT), strict=False
    ):
        if would_differ(first.digest, second.digest) and first.digest != second.digest:
            cosines.append(measure_pair(Pair(first, second)).metrics.cosine)
    if not drops_inside(again):
        return bool(cosines)
    return any(cosine <= SAME_ELEMENTS_KEPT for cosine in cosines)


def _met_otherwise(calls: Iterable[Call]) -> set[tuple[str, str]]:
    """Sites at which something was computed again on or to tensors that forward did not have there."""
    operators = [call for call in calls if call.kind is CallKind.OPERATOR]
    forward = _in_forward(operators)
    roles = (Role.INPUT, Role.OUTPUT)
    met = {site: {_digests(one, *roles) for one in calls} for site, calls in forward.items()}
    return {
        site
        for call in operators
        if call.recomputed
        and (site := _site_of(call)) in met
        and _digests(call, *roles) not in met[site]
    }


def _digests(call: Call, *roles: Role) -> tuple[str | None, ...]:
    return tuple(record.digest for record in call.with_role(*roles))


def _site_of(call: Call) -> tuple[str, str]:
    return call.site.module, call.site.op


def _named(call: Call) -> str:
    where = f" of {call.site.module}" if call.site.module else ""
    line = f" ({call.source})" if call.source else ""
    return f"{call.site.op}{where}{line}"
