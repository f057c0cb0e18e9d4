"""Causes in the set-ups of the two runs: frozen, tied, a different mode, settings, a different optimizer."""

from __future__ import annotations

import math
from dataclasses import replace

from lockstep.align.settings import Setting, differing_settings
from lockstep.core.finding import Finding, Kind, Origin, Outcome, Pair, SetupDifference
from lockstep.core.operators import Family, family_of
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.site import CallKind, Phase, Role
from lockstep.locate.causes.lone_updates import frozen_origin, tied_origin
from lockstep.locate.causes.step_origins import StepOrigins, is_cut
from lockstep.locate.flow.origins import origin_at, place_of_call
from lockstep.locate.flow.words import setting_clause
from lockstep.locate.setups.model_setup import (
    MODE,
    OtherModule,
    clauses_for_modules,
    is_within,
    outwards,
    unseen_inside,
)
from lockstep.locate.setups.setup_facts import GROUPS, OPTIMIZER, OTHER_MODE

_MODES = frozenset({"training", "p", "kwargs.training", "kwargs.p", "kwargs.dropout_p"})
_DROPPING = frozenset({Family.DROPOUT, Family.ATTENTION})


class SetupCauses(StepOrigins):
    """Names causes in the set-up of one step."""

    __slots__ = ()

    def run(self) -> None:
        """Put origins together by these causes."""
        self._set_up_otherwise()
        self._in_another_mode()
        self._otherwise_inside()
        self._other_optimizer()
        self._other_numbers()

    def _set_up_otherwise(self) -> None:
        """Parameters that are frozen, or tied, in one run only."""
        setup, origins = self.rank.setup, self.rank.origins
        frozen = {**setup.frozen_later, **setup.frozen}
        for cause, made, names in (
            ("frozen", frozen_origin(self.step, frozen), {*frozen}),
            (
                "tied",
                tied_origin(self.step, setup.tied),
                {*setup.tied, *(n for n, _ in setup.tied.values())},
            ),
        ):
            if made is None:
                continue
            follows = [
                origin
                for origin in self.found()
                if self.is_after_backward(origin)
                or (names & {*origin.tensor.split("|")})
                or (cause == "frozen" and is_cut(origin))
            ]
            self.withdraw(follows)
            origins.insert(made, cause)
            if cause == "frozen":
                self.rank.ledger.moved_alone.update(frozen)

    def _in_another_mode(self) -> None:
        """Dropout of another p, modules in training in one run and in evaluation in the other: one origin."""
        concerned = [
            (origin, settings)
            for origin in self.found()
            if origin.finding.outcome is not Outcome.MISSING
            and (settings := self._mode_settings(origin))
        ]
        if not concerned:
            return
        said = list(dict.fromkeys(setting_clause(one) for _, some in concerned for one in some))
        modes = self.rank.setup.modes
        if modes:
            words = f"modules in a different mode: {len(modes)}"
            said.append(Clause(About.SETTING, words, OTHER_MODE))
        numbers = concerned[0][0].reason.without(About.RANDOM, About.UNTRIED)
        reason = Reason(*said, *(one for one in numbers if one not in said))
        self.merge([origin for origin, _ in concerned], kind=Kind.SETUP, reason=reason)

    def _otherwise_inside(self) -> None:
        """Modules that ran unseen, in compiled code, and are set up otherwise: one origin for each that holds some."""
        modules = {**self._with_lone_gradients(), **self.rank.setup.modules}
        for around, inside in unseen_inside(self.step, modules).items():
            concerned = [
                origin
                for origin in self.found()
                if origin.kind is not Kind.SETUP
                and (is_within(origin.module, around) or self.is_after_backward(origin))
            ]
            if concerned:
                path, module = next(iter(inside.items()))
                reason = Reason(*clauses_for_modules(inside), concerned[0].reason)
                names = {one.name for other in inside.values() for one in other.differences}
                kind = Kind.SETUP if names <= {MODE, *_MODES} else concerned[0].kind
                self.merge(
                    concerned,
                    module=path,
                    module_class=module.module_class,
                    reason=reason,
                    kind=kind,
                )

    def _with_lone_gradients(self) -> dict[str, OtherModule]:
        """Modules of parameters that get a gradient in one run only."""
        found: dict[str, OtherModule] = {}
        for name, (call, _) in self.lone_gradients().items():
            path, _, own = name.rpartition(".")
            words = ("there", "missing") if self.is_of_reference(call) else ("missing", "there")
            one = SetupDifference(f"the gradient of {own}", *words)
            known = found[path].differences if path in found else ()
            found[path] = OtherModule(self.step.module_classes.get(path, ""), (*known, one))
        return found

    def _mode_settings(self, origin: Origin) -> list[Setting]:
        item = self.item_of(origin)
        if item is None:
            return []
        drops = family_of(origin.op) in _DROPPING or origin.kind is Kind.RANDOM
        differing = differing_settings(item.reference.arguments, item.candidate.arguments)
        return [
            one
            for one in differing
            if one.name in _MODES and (drops or one.name.endswith("training"))
        ] or ([one for one in differing if one.tells_numbers] if drops else [])

    def _other_optimizer(self) -> None:
        """Hyper-parameters, groups and class of the optimizer: one origin."""
        updates = [origin for origin in self.found() if origin.phase is Phase.OPTIMIZER]
        setup = self.rank.setup
        other = setup.optimizers
        concerned = updates if other else [one for one in updates if one.kind is Kind.SETUP]
        if not concerned:
            return
        concerned.extend(one for one in self.found() if self._moves_inside(one, concerned[0]))
        said: list[Clause | str] = []
        if other:
            words = f"the optimizer is {other[0]} in the reference and {other[1]} in the candidate"
            said.append(Clause(About.SETTING, words, OPTIMIZER, *other))
        said.extend(
            dict.fromkeys(origin.reason for origin in concerned if origin.kind is Kind.SETUP)
        )
        if setup.groups is not None:
            left, right = map(str, setup.groups)
            words = f"the reference has {left} parameter groups, the candidate {right}"
            said.append(Clause(About.SETTING, words, GROUPS, left, right))
        self.merge(concerned, kind=Kind.SETUP, reason=Reason(*said))

    def _moves_inside(self, origin: Origin, update: Origin) -> bool:
        """Whether a parameter is met as an optimizer has moved it that evaluates a closure, while it does."""
        call = self.call_of(update)
        moved = origin.phase is Phase.FORWARD and origin.role is Role.INPUT
        named = moved and origin.tensor in self.rank.ledger.parameter_names
        return named and call is not None and call.sequence < origin.sequence

    def _other_numbers(self) -> None:
        """A module with another epsilon, say, whose results differ by no more than the noise: these are two models."""
        if self.rank.origins.found:
            return
        for path, module in self.rank.setup.modules.items():
            numbers = module.numbers()
            pair = self._first_result(path) if numbers else None
            if pair is None:
                continue
            other = OtherModule(module.module_class, tuple(numbers))
            measured = self.rank.ledger.measure(pair)
            words = f"the result differs by rel {measured.difference:.2g}, within its noise"
            left = Clause(About.LEFT, words, difference=measured.difference)
            reason = Reason(*clauses_for_modules({path: other}), left)
            record = pair.present
            finding = Finding(
                pair,
                Outcome.DIFFER,
                measured.metrics,
                measured.difference,
                math.nan,
                reason,
                kind=Kind.SETUP,
            )
            call = self.regions.call_of(record)
            if call is not None:
                place = place_of_call(call, record, self.step.module_classes)
                place = replace(place, module=path, module_class=module.module_class)
                self.rank.origins.insert(origin_at(place, finding, reason, Kind.SETUP), reason)
                return

    def _first_result(self, path: str) -> Pair | None:
        """What a module returns, or the nearest around it that both runs call; None where it is equal bit by bit."""
        called = {item.reference.site.module: item for item in self.step.of_kind(CallKind.MODULE)}
        around = next((one for one in outwards(path) if one in called), None)
        if around is None:
            return None
        results = called[around].complete(Role.OUTPUT)
        return next((one for one in results if not self.rank.ledger.measure(one).equal), None)
