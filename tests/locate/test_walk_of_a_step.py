"""The walk through a step names the call where a difference begins, and lets it taint what is computed from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from made_steps import Array, Run, met

from lockstep.core.finding import Finding, Kind, Origin, Outcome
from lockstep.core.site import CallKind, Phase, Role
from lockstep.judge.error_model import ErrorModel
from lockstep.locate.flow.ledger import Ledger, last_updates
from lockstep.locate.flow.origins import Origins, place_of
from lockstep.locate.flow.walk import StepWalk

Fault = Callable[[Array], Array]


def unchanged(value: Array) -> Array:
    return value


def rounded(value: Array) -> Array:
    """As another kernel may round it."""
    return np.nextafter(value, np.float32(np.inf)).astype(np.float32)


def by(factor: float) -> Fault:
    return lambda value: (value * np.float32(factor)).astype(np.float32)


def run_of(*, cut: bool = False, **faults: Fault) -> Run:
    """`x -> tanh -> h -> sigmoid -> y` in a block, and back; each fault is done to the tensor of its name."""
    generator = np.random.default_rng(3)

    def made(name: str, value: Array) -> Array:
        return faults.get(name, unchanged)(value.astype(np.float32))

    x = made("x", generator.standard_normal((16, 16)))
    h = made("h", np.tanh(x))
    y = made("y", 1 / (1 + np.exp(-h)))
    gy = made("gy", np.ones_like(y))
    gh = made("gh", gy * y * (1 - y))
    gx = made("gx", gh * (1 - h * h))
    run = Run({"x": x, "h": h, "y": y, "gy": gy, "gh": gh, "gx": gx})
    block = run.call("Block", ["x"], kind=CallKind.MODULE)
    first = run.call("torch.tanh", ["x"], ["h"], parent=block)
    second = run.call("torch.sigmoid", ["h"], ["y"], parent=block)
    run.record(block, Role.OUTPUT, "y")
    run.record(block, Role.GRAD_OUTPUT, "gy")
    run.record(second, Role.GRAD_OUTPUT, "gy")
    run.record(second, Role.GRAD_INPUT, "gh")
    if not cut:
        run.record(first, Role.GRAD_OUTPUT, "gh")
        run.record(first, Role.GRAD_INPUT, "gx")
        run.record(block, Role.GRAD_INPUT, "gx")
    return run


ORDER = ("x", "h", "y", "gy", "gh", "gx")
BEHIND = {"h": {"y", "gh", "gx"}, "y": {"gh", "gx"}, "gh": {"gx"}, "gx": set()}
"""What is computed from what."""


def two_uses(*, cut: bool = False, **faults: Fault) -> Run:
    """`x -> tanh -> h`, which a block takes twice, and back: it sends the sum of both, unless the first is cut."""
    generator = np.random.default_rng(5)

    def made(name: str, value: Array) -> Array:
        return faults.get(name, unchanged)(value.astype(np.float32))

    x = generator.standard_normal((16, 16)).astype(np.float32)
    h = np.tanh(x)
    a, b = 1 / (1 + np.exp(-h)), np.exp(h)
    ga, gb = (generator.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    g1, g2 = made("g1", ga * a * (1 - a)), made("g2", gb * b)
    total = made("sum", g2 if cut else g1 + g2)
    run = Run({"x": x, "h": h, "a": a.astype(np.float32), "b": b.astype(np.float32), "ga": ga, "gb": gb, "g1": g1,
               "g2": g2, "sum": total})  # fmt: skip
    maker = run.call("torch.tanh", ["x"], ["h"])
    block = run.call("Block", ["h"], kind=CallKind.MODULE)
    first = run.call("torch.sigmoid", ["h"], ["a"], parent=block)
    second = run.call("torch.exp", ["h"], ["b"], parent=block)
    run.record(block, Role.OUTPUT, "a", 0)
    run.record(block, Role.OUTPUT, "b", 1)
    for index, name in enumerate(("ga", "gb")):
        run.record(block, Role.GRAD_OUTPUT, name, index)
    run.record(second, Role.GRAD_OUTPUT, "gb")
    run.record(second, Role.GRAD_INPUT, "g2")
    run.record(first, Role.GRAD_OUTPUT, "ga")
    if not cut:
        run.record(first, Role.GRAD_INPUT, "g1")
    run.record(block, Role.GRAD_INPUT, "sum")
    run.record(maker, Role.GRAD_OUTPUT, "sum")
    return run


def walked(reference: Run, candidate: Run) -> tuple[list[Origin], list[Finding]]:
    ledger, origins = Ledger(read_tensors=True), Origins()
    step = met(reference, candidate, ledger)
    StepWalk(step, ledger, origins, ErrorModel()).run()
    return origins.found, ledger.findings


def named(origins: list[Origin]) -> list[tuple[str, Phase]]:
    return [(origin.op, origin.phase) for origin in origins]


def test_two_equal_steps_have_no_origin_and_every_pair_is_judged() -> None:
    # given one run twice
    origins, findings = walked(run_of(), run_of())
    # then all of it agrees, and nothing was left out
    assert origins == []
    assert {finding.outcome for finding in findings} == {Outcome.AGREE}
    assert len(findings) == 2 + 2 + 2 + 6  # inputs and outputs of three calls, and their gradients


@pytest.mark.parametrize("at", ["h", "y", "gh", "gx"])
def test_rounding_has_no_origin_wherever_it_begins(at: str) -> None:
    origins, findings = walked(run_of(), run_of(**{at: rounded}))
    assert origins == []
    assert {finding.kind for finding in findings} <= {None, Kind.NOISE}
    assert Kind.NOISE in {finding.kind for finding in findings}


@pytest.mark.parametrize(
    ("at", "where"),
    [
        ("h", ("torch.tanh", Phase.FORWARD)),
        ("y", ("torch.sigmoid", Phase.FORWARD)),
        ("gh", ("torch.sigmoid", Phase.BACKWARD)),
        ("gx", ("torch.tanh", Phase.BACKWARD)),
    ],
)
def test_a_fault_is_named_where_it_begins_and_nowhere_else(
    at: str, where: tuple[str, Phase]
) -> None:
    # given a run in which one tensor is five per cent too large
    origins, findings = walked(run_of(), run_of(**{at: by(1.05)}))
    # then the call that made it is the only origin
    assert named(origins) == [where]
    differing = [finding for finding in findings if finding.outcome is Outcome.DIFFER]
    # and all that is computed from it differs too, which is inherited
    assert [finding.kind for finding in differing if not finding.inherited] == [Kind.FAULT]
    behind = {finding.pair.present.content.id for finding in differing if finding.inherited}
    assert behind >= {number for number, name in enumerate(ORDER) if name in BEHIND[at]}


def test_an_input_that_differs_explains_what_is_computed_from_it() -> None:
    # given runs on batches that differ a little
    def nudged(value: Array) -> Array:
        return (value + np.float32(1e-3)).astype(np.float32)

    origins, findings = walked(run_of(), run_of(x=nudged))
    # then the batch is where it begins, at the block that takes it, and no operator is blamed
    assert [origin.role for origin in origins] == [Role.INPUT]
    assert [origin.op for origin in origins] == ["Block"]
    assert not any(
        finding.kind is Kind.FAULT and finding.pair.present.role is Role.OUTPUT
        for finding in findings
    )


def test_a_graph_that_is_cut_in_one_run_is_an_origin() -> None:
    # given a run whose first call gets no gradient, though the second sends one on
    reference, candidate = run_of(), run_of(cut=True)
    second = next(call for call in candidate.calls if call.site.op == "torch.sigmoid")
    second.records = tuple(
        record for record in second.records if record.role is not Role.GRAD_INPUT
    )
    # then the call that sends nothing on is named
    origins, _ = walked(reference, candidate)
    assert named(origins) == [("torch.sigmoid", Phase.BACKWARD)]
    assert "only the reference sends a gradient on" in origins[0].reason


def test_the_gradient_that_lacks_the_part_of_a_cut_graph_is_no_second_origin() -> None:
    # given a tensor with two uses, of which one sends nothing back in the candidate
    origins, findings = walked(two_uses(), two_uses(cut=True))
    # then the use is named, and the sum differs because of it
    assert named(origins) == [("torch.sigmoid", Phase.BACKWARD)]
    sums = [finding for finding in findings if finding.pair.present.content.id == 8]
    assert {(finding.outcome, finding.inherited) for finding in sums} == {(Outcome.DIFFER, True)}


@pytest.mark.parametrize(
    ("at", "where"), [("g1", "torch.sigmoid"), ("g2", "torch.exp"), ("sum", "Block")]
)
def test_what_a_module_sends_back_follows_from_the_calls_inside(at: str, where: str) -> None:
    # given a module that sends the sum of two gradients, one of the three five per cent too large
    origins, _ = walked(two_uses(), two_uses(**{at: by(1.05)}))
    # then a part is named at the call that computes it, the sum at the module
    assert named(origins) == [(where, Phase.BACKWARD)]


@pytest.mark.parametrize(
    ("second", "ops"), [(1.0, ["torch.tanh"]), (1.5, ["torch.tanh", "torch.sigmoid"])]
)
def test_a_second_fault_is_named_where_the_first_cannot_explain_it(
    second: float, ops: list[str]
) -> None:
    # given a first tensor that is off by a ten-thousandth, and another behind it
    origins, _ = walked(run_of(), run_of(h=by(1.0001), y=by(second)))
    # then the second is one more origin only if it is off by far more than follows
    assert [origin.op for origin in origins] == ops


def updated_on(rank: str, left: Array, right: Array) -> Ledger:
    """What a rank knows of the update of its part of the parameter "w" in step 0, and of all that has come since."""
    ledger = Ledger(read_tensors=True)
    runs = []
    for value in (left, right):
        run = Run({"part": value})
        call = run.call("torch.optim.AdamW", kind=CallKind.OPTIMIZER, phase=Phase.OPTIMIZER)
        run.record(call, Role.PARAM_AFTER, "part", name="w")
        runs.append(run)
    (item,) = met(runs[0], runs[1], ledger).aligned
    (pair,) = item.whole
    place = replace(place_of(item, pair, {}), rank=rank)
    ledger.last_updates["w"] = place, ledger.measure(pair)
    return ledger


def gathered(whole: Array) -> Run:
    """The step after, which takes the whole parameter."""
    run = Run({"part": whole[:1], "w": whole, "y": np.tanh(whole)}, step=1)
    call = run.call("torch.tanh", ["w"], ["y"])
    call.records = tuple(
        replace(record, name="w") if record.role is Role.INPUT else record
        for record in call.records
    )
    return run


@pytest.mark.parametrize(
    ("moved", "known", "outcome"),
    [
        (0.02, 2, Outcome.AGREE),  # the part of the other rank was moved as far by its own update
        (0.0, 2, Outcome.DIFFER),  # nobody's update explains it
        (0.0, 1, Outcome.INCOMPARABLE),  # nothing is known of the other rank
    ],
)
def test_a_parameter_of_which_each_rank_has_a_part_follows_from_all_of_them(
    moved: float, known: int, outcome: Outcome
) -> None:
    # given the own part equal, and another part that arrives 2 % further away
    generator = np.random.default_rng(7)
    own, other = (generator.standard_normal(32).astype(np.float32) for _ in range(2))
    far = by(1.02)(other)
    ledgers = [updated_on("rank0", own, own), updated_on("rank1", other, by(1 + moved)(other))]
    step = met(
        gathered(np.concatenate([own, other])),
        gathered(np.concatenate([own, far])),
        ledgers[0],
    )
    ledgers[0].parameter_names.add("w")
    # when the step takes the whole
    updated = partial(last_updates, ledgers[:known])
    StepWalk(step, ledgers[0], Origins(), ErrorModel(), updated).run()
    # then it is held against what all ranks' updates left
    found = [one for one in ledgers[0].findings if one.pair.present.role is Role.INPUT]
    assert [one.outcome for one in found] == [outcome]
