"""What enters a step and what the optimizer makes of it: initial parameters, the batch, gradients, updates."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from made_steps import Array, Run, met

from lockstep.core.finding import Finding, Kind, Origin, Outcome
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.error_model import ErrorModel
from lockstep.locate.flow.ledger import Ledger, State, agreeing
from lockstep.locate.flow.origins import Origins
from lockstep.locate.flow.setup_walk import SetupWalk
from lockstep.locate.flow.updates import BETWEEN, UpdateWalk

NAMES = ("layer.weight", "layer.bias")
RATE = np.float32(0.1)


def noise(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def set_up(factor: float, *, kind: CallKind, step: int = 0) -> Run:
    """Two tensors that are there before the step, scaled."""
    run = Run(
        {name: np.float32(factor) * noise(n, 8, 8) for n, name in enumerate(NAMES)}, step=step
    )
    phase = Phase.INIT if kind is CallKind.INIT else Phase.DATA
    role = Role.PARAM if kind is CallKind.INIT else Role.OUTPUT
    call = run.call("Linear", kind=kind, phase=phase, module="layer")
    for index, name in enumerate(NAMES):
        run.record(call, role, name, index, name)
    return run


def set_up_walked(reference: Run, candidate: Run) -> tuple[list[Origin], list[Finding]]:
    ledger, origins = Ledger(read_tensors=True), Origins()
    step = met(reference, candidate, ledger)
    SetupWalk(step, ledger, origins, ErrorModel()).run()
    return origins.found, ledger.findings


@pytest.mark.parametrize("kind", [CallKind.INIT, CallKind.DATA])
def test_what_differs_before_the_step_is_one_origin(kind: CallKind) -> None:
    # given two tensors that differ, though nothing was computed yet
    origins, findings = set_up_walked(set_up(1.0, kind=kind), set_up(1.01, kind=kind))
    # then they have one cause, which the set-up has
    assert [origin.kind for origin in origins] == [Kind.SETUP]
    assert "layer.bias" in origins[0].reason
    assert [finding.inherited for finding in findings] == [False, True]


@pytest.mark.parametrize("kind", [CallKind.INIT, CallKind.DATA])
def test_the_same_set_up_twice_agrees(kind: CallKind) -> None:
    origins, findings = set_up_walked(set_up(1.0, kind=kind), set_up(1.0, kind=kind))
    assert origins == []
    assert [finding.outcome for finding in findings] == [Outcome.AGREE, Outcome.AGREE]


def test_parameters_of_a_later_step_may_have_been_trained_apart_a_little() -> None:
    # given recordings that begin at the fifth step
    def at_five(factor: float) -> Run:
        return set_up(factor, kind=CallKind.INIT, step=5)

    # when parameters differ by what noise in sound steps leaves, and by more
    near, _ = set_up_walked(at_five(1.0), at_five(1.0 + 1e-5))
    far, _ = set_up_walked(at_five(1.0), at_five(1.5))
    # then only the second is an origin, and the advice is to begin earlier
    assert near == []
    assert "record from step 0" in far[0].reason


def updated(
    *,
    scale: float = 1.0,
    clipped: float = 1.0,
    nudge: float = 0.0,
    arguments: Mapping[str, object] = {"lr": 0.1},
    only: tuple[str, ...] = NAMES,
) -> Run:
    """Plain gradient descent on two parameters, by `scale` times what it should be."""
    tensors: dict[str, Array] = {}
    for number, name in enumerate(NAMES):
        before, gradient = noise(number, 32, 32), noise(10 + number, 32, 32)
        gradient = gradient * np.float32(1.0 + nudge)
        arrives = gradient * np.float32(clipped)
        tensors[name], tensors[f"{name} sent"] = before, gradient
        tensors[f"{name} gradient"] = arrives
        tensors[f"{name} after"] = before - RATE * np.float32(scale) * arrives
    run = Run(tensors)
    for name in NAMES:
        sum_of = run.call("backward", kind=CallKind.GRADIENT, phase=Phase.BACKWARD, module="layer")
        run.record(sum_of, Role.PARAM_GRAD, f"{name} sent", 0, name)
    for name in only:
        call = run.call(
            "SGD", kind=CallKind.OPTIMIZER, phase=Phase.OPTIMIZER, module="layer", arguments=arguments
        )  # fmt: skip
        for role, suffix in (
            (Role.PARAM, ""),
            (Role.PARAM_GRAD, " gradient"),
            (Role.PARAM_AFTER, " after"),
        ):
            run.record(call, role, name + suffix, 0, name)
    return run


def update_walked(reference: Run, candidate: Run) -> tuple[list[Origin], Ledger]:
    ledger, origins = Ledger(read_tensors=True), Origins()
    step = met(reference, candidate, ledger)
    gradients: dict[str, list[State]] = {}
    computed = []
    for item in step.of_kind(CallKind.GRADIENT):
        for pair in item.complete(Role.PARAM_GRAD):
            measured = ledger.measure(pair)
            ledger.remember(agreeing(measured))
            computed.append(measured)
            gradients[pair.present.name] = [agreeing(measured)]
    UpdateWalk(step, ledger, origins, ErrorModel(), gradients, lambda: computed).run()
    return origins.found, ledger


def test_a_sound_update_agrees_and_is_remembered() -> None:
    origins, ledger = update_walked(updated(), updated(nudge=1e-7))
    assert origins == []
    assert set(ledger.last_updates) == set(NAMES)


def test_an_update_of_another_size_is_one_origin_at_the_optimizer() -> None:
    # given a run whose optimizer moves everything twice as far
    origins, _ = update_walked(updated(), updated(scale=2.0))
    # then its first parameter is named, with the other
    assert [(origin.op, origin.phase) for origin in origins] == [("SGD", Phase.OPTIMIZER)]
    assert origins[0].tensor == NAMES[0]
    assert NAMES[1] in origins[0].reason


@pytest.mark.parametrize(("scale", "ops"), [(1.002, []), (1.03, ["SGD"])])
def test_updates_of_another_size_count_though_each_parameter_could_be_noise(
    scale: float, ops: list[str]
) -> None:
    # given gradients that differ enough for every parameter to differ so, and updates of another size
    origins, _ = update_walked(updated(), updated(scale=scale, nudge=9e-5))
    # then one per cent is too much for all of them together
    assert [origin.op for origin in origins] == ops


def test_a_hyper_parameter_is_the_cause_of_what_it_does() -> None:
    # given the same, set so
    origins, ledger = update_walked(updated(), updated(scale=2.0, arguments={"lr": 0.2}))
    # then the setting is the one origin
    assert [origin.kind for origin in origins] == [Kind.SETUP]
    assert "lr" in origins[0].reason
    assert "2 parameters" in origins[0].reason
    faults = [finding for finding in ledger.findings if finding.kind is Kind.FAULT]
    assert len(faults) == 1


def test_a_hyper_parameter_without_effect_is_told_of_a_tensor_that_counts_once() -> None:
    # given settings that differ where the update is the same
    origins, ledger = update_walked(updated(), updated(arguments={"lr": 0.2}))
    # then one finding is told of the pair, and no pair has two
    assert [origin.kind for origin in origins] == [Kind.SETUP]
    assert any(one is origins[0].finding for one in ledger.findings)
    records = [id(one.pair.reference) for one in ledger.findings]
    assert len(records) == len(set(records))
    # as many are reported as where the settings are the same
    _, alike = update_walked(updated(), updated())
    assert len(ledger.findings) == len(alike.findings)


def test_a_choice_of_kernel_is_no_hyper_parameter() -> None:
    origins, _ = update_walked(
        updated(arguments={"lr": 0.1, "foreach": True}),
        updated(arguments={"lr": 0.1, "foreach": False}),
    )
    assert origins == []


def test_a_gradient_changed_between_backward_and_update_is_named_there() -> None:
    # given gradients that are the same behind backward, and halved when the optimizer gets them
    origins, _ = update_walked(updated(), updated(clipped=0.5))
    # then the step between is the origin, not the update that follows from it
    assert [origin.op for origin in origins] == [BETWEEN]
    assert origins[0].phase is Phase.BACKWARD


def test_a_parameter_that_one_run_leaves_out_is_named() -> None:
    # given a run that updates the first parameter only, though both get a gradient
    origins, ledger = update_walked(updated(), updated(only=NAMES[:1]))
    # then that is the origin, and all that comes later differs
    assert [origin.tensor for origin in origins] == [NAMES[1]]
    assert "only the reference updates layer.bias" in origins[0].reason
    assert ledger.updated_apart
