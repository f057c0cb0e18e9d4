"""What a tensor was computed from is traced to what both runs have, through calls that one of them lacks."""

from __future__ import annotations

import numpy as np
from made_steps import Array, Run, met

from lockstep.align.step import Aligned, AlignedStep
from lockstep.core.finding import Pair
from lockstep.core.site import CallKind, Role
from lockstep.locate.flow.boundary import Boundary, Tracer
from lockstep.locate.flow.ledger import Ledger, agreeing


def tensors(*names: str, seed: int = 0) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal((4, 8)).astype(np.float32) for name in names}


def traced(reference: Run, candidate: Run) -> tuple[Ledger, AlignedStep, Tracer]:
    ledger = Ledger(read_tensors=True)
    step = met(reference, candidate, ledger)
    return ledger, step, Tracer(step, ledger)


def settle(ledger: Ledger, pair: Pair) -> None:
    ledger.remember(agreeing(ledger.measure(pair)))


def one(item: Aligned, role: Role, index: int = 0) -> Pair:
    return next(pair for pair in item.complete(role) if pair.present.index == index)


def item_of(step: AlignedStep, op: str) -> Aligned:
    return next(item for item in step.aligned if item.reference.site.op == op)


def lone_ops(boundary: Boundary) -> tuple[list[str], list[str]]:
    region = boundary.region
    return (
        [call.site.op for call in region.reference_calls],
        [call.site.op for call in region.candidate_calls],
    )


def test_what_an_aligned_call_made_is_its_own_boundary() -> None:
    # given a tensor that one aligned call makes and another takes
    runs = [Run(tensors("x", "h", "y")) for _ in range(2)]
    for run in runs:
        run.call("torch.tanh", ["x"], ["h"])
        run.call("torch.sigmoid", ["h"], ["y"])
    ledger, step, tracer = traced(*runs)
    made = one(item_of(step, "torch.tanh"), Role.OUTPUT)
    settle(ledger, made)
    # when it is traced from where it enters
    boundary = tracer.forward(one(item_of(step, "torch.sigmoid"), Role.INPUT))
    # then it is found at once, with nothing in between
    assert [measured.pair for measured in boundary.entering] == [made]
    assert lone_ops(boundary) == ([], [])


def test_calls_without_partner_lie_in_the_region() -> None:
    # given a fused operator against the two that it stands for
    fused, apart = Run(tensors("x", "m", "h", "y")), Run(tensors("x", "m", "h", "y", "half"))
    fused.call("torch.tanh", ["x"], ["m"])
    fused.call("mine.fused", ["m"], ["h"])
    apart.call("torch.tanh", ["x"], ["m"])
    apart.call("torch.exp", ["m"], ["half"])
    apart.call("torch.log1p", ["half"], ["h"])
    for run in (fused, apart):
        run.call("torch.sigmoid", ["h"], ["y"])
    ledger, step, tracer = traced(fused, apart)
    entering = one(item_of(step, "torch.tanh"), Role.OUTPUT)
    settle(ledger, entering)
    # when what comes out of them is traced
    boundary = tracer.forward(one(item_of(step, "torch.sigmoid"), Role.INPUT))
    # then all three lie in between, and what enters them is the boundary
    assert lone_ops(boundary) == (["mine.fused"], ["torch.exp", "torch.log1p"])
    assert boundary.region.operators == 3
    assert [measured.pair for measured in boundary.entering] == [entering]


def test_a_call_that_hands_its_input_on_ends_the_search() -> None:
    # given calls without partner that return the very tensor that they get, which nothing made
    reference, candidate = Run(tensors("x", "y")), Run(tensors("x", "y"))
    candidate.call("mine.same", ["x"], ["x"])
    candidate.call("mine.again", ["x"], ["x"])
    for run in (reference, candidate):
        run.call("torch.sigmoid", ["x"], ["y"])
    _, step, tracer = traced(reference, candidate)
    # when it is traced, then each is gone through once, and there is no boundary
    boundary = tracer.forward(one(item_of(step, "torch.sigmoid"), Role.INPUT))
    assert lone_ops(boundary) == ([], ["mine.same", "mine.again"])
    assert boundary.entering == []


def backward_of_two_uses(*, lone: bool) -> tuple[Run, Run]:
    """A tensor that two calls take, the second of which only the reference has where `lone`."""
    runs = []
    for number in range(2):
        values = tensors("x", "h", "a", "b", "ga", "gb", "gh", "g1", "g2")
        if lone and number:
            values["b"] = np.ones((3, 5, 7), dtype=np.float32)
        run = Run(values)
        made = run.call("torch.tanh", ["x"], ["h"])
        first = run.call("torch.sigmoid", ["h"], ["a"])
        second = run.call("mine.other" if lone and number else "torch.relu", ["h"], ["b"])
        run.record(second, Role.GRAD_OUTPUT, "gb")
        run.record(second, Role.GRAD_INPUT, "g2")
        run.record(first, Role.GRAD_OUTPUT, "ga")
        run.record(first, Role.GRAD_INPUT, "g1")
        run.record(made, Role.GRAD_OUTPUT, "gh")
        runs.append(run)
    return runs[0], runs[1]


def test_a_gradient_is_traced_to_what_all_uses_send_back() -> None:
    # given a tensor that two aligned calls take
    ledger, step, tracer = traced(*backward_of_two_uses(lone=False))
    item = item_of(step, "torch.tanh")
    forward, gradient = one(item, Role.OUTPUT), one(item, Role.GRAD_OUTPUT)
    # when its gradient is traced
    boundary = tracer.backward(forward, item, gradient, inside=False)
    # then both send a part of it
    sent = {id(measured.pair) for measured in boundary.entering}
    users = [item_of(step, op) for op in ("torch.sigmoid", "torch.relu")]
    assert sent == {id(ledger.measure(one(user, Role.GRAD_INPUT)).pair) for user in users}
    assert lone_ops(boundary) == ([], [])


def test_a_gradient_that_comes_through_a_lone_call_has_it_in_its_region() -> None:
    # given the same, where the second call of either run has no partner
    ledger, step, tracer = traced(*backward_of_two_uses(lone=True))
    item = item_of(step, "torch.tanh")
    # when its gradient is traced
    boundary = tracer.backward(
        one(item, Role.OUTPUT), item, one(item, Role.GRAD_OUTPUT), inside=False
    )
    # then only the first is a source, and the others lie in between
    expected = ledger.measure(one(item_of(step, "torch.sigmoid"), Role.GRAD_INPUT))
    assert boundary.entering == [expected]
    assert lone_ops(boundary) == (["torch.relu"], ["mine.other"])


def test_what_leaves_a_container_backward_was_sent_by_calls_inside() -> None:
    # given a module whose input goes into a call inside, and into another one behind it
    runs = []
    for _ in range(2):
        run = Run(tensors("x", "y", "z", "gy", "gx", "outside"))
        block = run.call("Block", ["x"], kind=CallKind.MODULE)
        inner = run.call("torch.tanh", ["x"], ["y"], parent=block)
        run.record(block, Role.OUTPUT, "y")
        later = run.call("torch.sigmoid", ["x"], ["z"])
        run.record(later, Role.GRAD_INPUT, "outside")
        run.record(inner, Role.GRAD_OUTPUT, "gy")
        run.record(inner, Role.GRAD_INPUT, "gx")
        run.record(block, Role.GRAD_INPUT, "gx")
        runs.append(run)
    _, step, tracer = traced(*runs)
    block = item_of(step, "Block")
    leaving = one(block, Role.GRAD_INPUT)
    # when the gradient that leaves the module is traced inside of it, and that of its input everywhere
    inside = tracer.backward(one(block, Role.INPUT), block, leaving, inside=True)
    # then only what the call inside sends back counts
    names = [measured.pair.present.site.op for measured in inside.entering]
    assert names == ["torch.tanh"]


def test_what_a_call_returns_was_made_by_that_call() -> None:
    # given an aligned call whose result was not judged
    runs = [Run(tensors("x", "h")) for _ in range(2)]
    for run in runs:
        run.call("torch.tanh", ["x"], ["h"])
    ledger, step, tracer = traced(*runs)
    item = item_of(step, "torch.tanh")
    settle(ledger, one(item, Role.INPUT))
    # when its result is traced, then the call itself lies in the region, behind what it takes
    boundary = tracer.forward(one(item, Role.OUTPUT))
    assert lone_ops(boundary) == (["torch.tanh"], ["torch.tanh"])
    assert [measured.pair for measured in boundary.entering] == [one(item, Role.INPUT)]


def test_a_module_around_a_call_sends_nothing_back_to_it() -> None:
    # given a call in a module that returns the very tensor that both take
    runs = []
    for _ in range(2):
        run = Run(tensors("x", "y", "gy", "gx", "leaving"))
        block = run.call("Block", ["x"], kind=CallKind.MODULE)
        same = run.call("mine.same", ["x"], ["x"], parent=block)
        inner = run.call("torch.tanh", ["x"], ["y"], parent=block)
        run.record(inner, Role.GRAD_OUTPUT, "gy")
        run.record(inner, Role.GRAD_INPUT, "gx")
        run.record(same, Role.GRAD_OUTPUT, "gx")
        run.record(block, Role.GRAD_INPUT, "leaving")
        runs.append(run)
    _, step, tracer = traced(*runs)
    item = item_of(step, "mine.same")
    # when the gradient of what it returns is traced
    boundary = tracer.backward(
        one(item, Role.OUTPUT), item, one(item, Role.GRAD_OUTPUT), inside=False
    )
    # then only the call behind it sends one
    assert [measured.pair.present.site.op for measured in boundary.entering] == ["torch.tanh"]
