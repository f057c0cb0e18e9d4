"""Group the origins of one step by their common cause, so that each cause is reported once.

The walks name every place whose inputs do not explain it. Some causes show at many places at once: parameters that are
frozen, gradients that were never zeroed, another clipping. Here they become one origin each, in their phase.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lockstep.align.step import AlignedStep
from lockstep.core.finding import Kind, Origin, OtherClass
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import Phase, Role
from lockstep.core.text import listed
from lockstep.locate.causes.between_modules import between_words
from lockstep.locate.causes.gradient_causes import GradientCauses, contents_of
from lockstep.locate.causes.other_arguments import SettingCauses
from lockstep.locate.causes.other_models import SetupCauses
from lockstep.locate.causes.recomputed_causes import RecomputedCauses
from lockstep.locate.causes.scaling import StepGradients
from lockstep.locate.causes.side_effects import SideEffects
from lockstep.locate.causes.step_origins import RankOrigins, StepOrigins
from lockstep.locate.causes.wiring import taken_instead
from lockstep.locate.flow.ledger import Ledger
from lockstep.locate.flow.origins import Origins
from lockstep.locate.lone_calls.regions import Regions
from lockstep.locate.lone_calls.unaligned_calls import Unaligned
from lockstep.locate.setups.model_setup import ModelSetup

_UNTRACED = frozenset({Kind.SETUP, Kind.RANDOM, Kind.RECOMPUTED})


class Causes:
    """Puts origins of one rank together by cause, step by step.

    Parameters
    ----------
    setup
        What differs between the set-ups of the two models.
    ledger, origins
        What is known and found so far in this rank; origins are replaced and withdrawn.
    unaligned
        Modules of other classes.
    unseen
        How it is told that operators were not recorded, "" where they were.
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
        origin = replace(origin, library=library, beside=beside, between=between)
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
