"""The table of optimizers says what torch's classes do."""

from __future__ import annotations

import pytest
import torch

from lockstep.core.optimizer_classes import KERNEL_CHOICES, SWITCHES, optimizer_of

CLASSES = (
    "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "ASGD", "LBFGS", "NAdam", "RAdam", "RMSprop",
    "Rprop", "SGD",
)  # fmt: skip
OPTIONS = {
    "SGD": {"momentum": 0.9}, "RMSprop": {"momentum": 0.9, "centered": True},
    "Adam": {"amsgrad": True}, "AdamW": {"amsgrad": True},
}  # fmt: skip


@pytest.mark.parametrize("name", CLASSES)
def test_states_and_options_of_the_table_are_those_of_the_class(name: str) -> None:
    # given an optimizer of a class that has made two updates of a vector and of a matrix
    parameters = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3,), (3, 2))]
    kind = getattr(torch.optim, name)
    optimizer = kind(parameters, lr=0.1, **OPTIONS.get(name, {}))
    for _ in range(2):
        for parameter in parameters:
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step(lambda: sum(one.square().sum() for one in parameters))
    # then the states and options that the table names are there
    known = optimizer_of(f"torch.optim.{name}")
    state = {key for parameter in parameters for key in optimizer.state[parameter]}
    named = {*known.averages, *known.squares, *({known.root} if known.root else ())}
    assert named <= {"max_exp_avg_sq", *state}
    assert set(known.options_of_closure) <= optimizer.defaults.keys()
    assert (KERNEL_CHOICES | SWITCHES) & optimizer.defaults.keys() or name == "LBFGS"


@pytest.mark.parametrize("name", CLASSES)
def test_averages_are_linear_in_the_gradients_and_squares_are_quadratic(name: str) -> None:
    # given three updates by some gradients, and three by twice these
    torch.manual_seed(0)
    gradients = [[torch.randn(shape) for shape in ((3,), (3, 2))] for _ in range(3)]
    held = []
    for factor in (1.0, 2.0):
        parameters = [torch.nn.Parameter(torch.ones_like(one)) for one in gradients[0]]
        optimizer = getattr(torch.optim, name)(parameters, lr=1e-3, **OPTIONS.get(name, {}))
        for step in gradients if name != "LBFGS" else ():
            for parameter, gradient in zip(parameters, step, strict=True):
                parameter.grad = gradient * factor
            optimizer.step()
        held.append([optimizer.state[one] for one in parameters])
    # then what the table calls an average is twice as large, and four times what it calls a square
    known = optimizer_of(f"torch.optim.{name}")
    times = dict.fromkeys(known.averages, 2.0) | dict.fromkeys(known.squares, 4.0)
    if known.squares:
        times.pop("momentum_buffer", None)  # of updates, which RMSprop divides by the root of these
    for one, twice in zip(*held, strict=True):
        for state in times.keys() & one.keys():
            torch.testing.assert_close(twice[state], one[state] * times[state])


@pytest.mark.parametrize("name", CLASSES)
def test_the_update_of_a_linear_class_is_linear_in_the_gradient_and_no_other_is(name: str) -> None:
    # given ten updates by a gradient, as RAdam begins like SGD, and ten by twice that
    moved = []
    for factor in (1.0, 2.0):
        parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
        parameter.grad = torch.full((3,), 0.5 * factor, dtype=torch.float64)
        optimizer = getattr(torch.optim, name)([parameter], lr=1e-3)
        before = parameter.detach().clone()
        for _ in range(10):
            optimizer.step(*([lambda one=parameter: one.sum()] if name == "LBFGS" else []))
        moved.append((parameter.detach() - before).norm().item())
    # then it moves twice as far for those that are linear alone
    is_twice = abs(moved[1] - 2 * moved[0]) < 1e-6 * moved[0]
    assert optimizer_of(f"torch.optim.{name}").is_linear is (is_twice and name != "LBFGS")


def test_adam_and_adamw_differ_in_where_weight_decay_goes_in_and_of_others_nothing_is_known() -> (
    None
):
    for one, other in (("Adam", "AdamW"), ("AdamW", "Adam")):
        assert optimizer_of(f"torch.optim.{one}").decays_otherwise_as == f"torch.optim.{other}"
    assert optimizer_of("train.Lion") == optimizer_of("train.Other")
