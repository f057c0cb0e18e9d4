"""Recurrent layers alone against double precision: activations of a few units in the last place are sound."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from replay_bench import altered, judged, loaded, operators, record_of, recorded
from torch import Tensor, nn

from lockstep.core.operators import chains_matmuls
from lockstep.core.records import Call
from lockstep.core.site import Role
from lockstep.judge.tolerances import SINGLE
from lockstep.replay.calls.held_results import steps_through

STEPS, BATCH, WIDTH, ENTERING, LAYERS = 20, 8, 32, 16, 2
_noise = torch.Generator().manual_seed(1)

Function = Callable[[Tensor], Tensor]


def off_by_units(x: Tensor, units: float) -> Tensor:
    """Up to so many units in the last place of single precision off, either way."""
    return x * (1.0 + (2.0 * torch.rand(x.shape, generator=_noise) - 1.0) * units * 2.0 * SINGLE)


def fast_sigmoid(x: Tensor) -> Tensor:
    """As a GPU's fast exponential and fast division give it: two units each."""
    return off_by_units(1.0 / (1.0 + off_by_units(torch.exp(-x), 2.0)), 2.0)


def fast_tanh(x: Tensor) -> Tensor:
    return 2.0 * fast_sigmoid(2.0 * x) - 1.0


def cubic_tanh(x: Tensor) -> Tensor:
    """A polynomial near zero; off by 1e-4 where `x` is 0.24."""
    return torch.where(x.abs() < 0.24, x - x**3 / 3, torch.tanh(x))


def lstm(
    layer: nn.LSTM,
    x: Tensor,
    sigmoid: Function,
    tanh: Function,
    gate: float = 1.0,
    off: float = 0.0,
) -> Tensor:
    """The states of the last layer, `(steps, batch, width)`, gate by gate.

    `gate` multiplies the forget gate, `off` is added to each bias.
    """
    for number in range(layer.num_layers):
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        w, u, b, c = (getattr(layer, f"{name}_l{number}") for name in names)
        h = cell = torch.zeros(x.shape[1], layer.hidden_size)
        states = []
        for entering in x:
            i, f, g, o = (entering @ w.T + b + h @ u.T + c + off).chunk(4, -1)
            cell = gate * sigmoid(f) * cell + sigmoid(i) * tanh(g)
            h = sigmoid(o) * tanh(cell)
            states.append(h)
        x = torch.stack(states)
    return x


@pytest.fixture(scope="module")
def layer() -> nn.LSTM:
    torch.manual_seed(0)
    return nn.LSTM(ENTERING, WIDTH, LAYERS)


@pytest.fixture(scope="module")
def entering() -> Tensor:
    return torch.randn(STEPS, BATCH, ENTERING, generator=torch.Generator().manual_seed(2))


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory, layer: nn.LSTM, entering: Tensor) -> Call:
    directory = tmp_path_factory.mktemp("lstm") / "run"
    recording = recorded(directory, lambda: layer(entering)[0].square().sum().backward())
    return next(one for one in operators(recording) if one.site.op == "torch.lstm")


def as_result(call: Call, states: Tensor) -> Call:
    return altered(call, Role.OUTPUT, 0, states.detach().numpy())


def test_activations_of_a_few_units_in_the_last_place_are_sound(
    call: Call, layer: nn.LSTM, entering: Tensor
) -> None:
    # Given an LSTM as a GPU computes it: off by far more than single precision's own rounding
    states = lstm(layer, entering, fast_sigmoid, fast_tanh)
    recorded_states = record_of(call, Role.OUTPUT).load()
    far = np.linalg.norm(states.detach().numpy() - recorded_states) / np.linalg.norm(
        recorded_states
    )
    assert far > 16 * SINGLE
    # When the two are judged, on whichever side it is
    either = judged(call, as_result(call, states)), judged(as_result(call, states), call)
    # Then both are sound
    assert all(one.local and not one.unexplained for one in either)
    # And five times as large errors are sound, as the steps may carry them on
    exact = lstm(layer, entering, torch.sigmoid, torch.tanh)
    assert not judged(call, as_result(call, exact + 5 * (states - exact))).unexplained


@pytest.mark.parametrize("exchanged", [False, True], ids=["candidate", "reference"])
@pytest.mark.parametrize(
    ("tanh", "gate", "off"),
    [
        (cubic_tanh, 1.0, 0.0),
        (lambda x: torch.tanh(x) + 1e-4 * torch.sin(40 * x), 1.0, 0.0),
        (torch.tanh, 0.999, 0.0),
        (torch.tanh, 1.0, 1e-4),
    ],
    ids=["a polynomial", "1e-4 off", "another forget gate", "another bias"],
)
def test_a_wrong_recurrent_layer_is_a_fault(
    call: Call,
    layer: nn.LSTM,
    entering: Tensor,
    tanh: Function,
    gate: float,
    off: float,
    exchanged: bool,
) -> None:
    wrong = as_result(call, lstm(layer, entering, torch.sigmoid, tanh, gate, off))

    judgement = judged(wrong, call) if exchanged else judged(call, wrong)

    assert judgement.local
    assert judgement.unexplained


@pytest.mark.parametrize("role_index", range(3, 11))
def test_gradients_through_such_activations_are_sound_and_a_dropped_part_is_not(
    call: Call, layer: nn.LSTM, entering: Tensor, role_index: int
) -> None:
    # Given the gradient of a weight as fast activations leave it
    name = call.with_role(Role.INPUT)[role_index].name
    states = lstm(layer, entering, fast_sigmoid, fast_tanh)
    (gradient,) = torch.autograd.grad(
        states, layer.get_parameter(name), loaded(call, Role.GRAD_OUTPUT)
    )
    # When it is judged, then it is sound, and one that lacks a part in a thousand is not
    for factor, wrong in ((1.0, False), (0.999, True)):
        other = altered(call, Role.PARAM_GRAD, role_index, (factor * gradient).numpy())
        judgement = judged(call, other, Role.PARAM_GRAD, role_index)
        assert judgement.local
        assert judgement.unexplained is wrong


@pytest.mark.parametrize("directions", [1, 2])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_the_steps_of_all_layers_are_counted(
    tmp_path: Path, kind: type[nn.RNNBase], directions: int
) -> None:
    layer = kind(4, 6, LAYERS, bidirectional=directions == 2, batch_first=True)
    recording = recorded(tmp_path / "run", lambda: layer(torch.randn(3, 5, 4))[0].sum().backward())
    run = next(one for one in operators(recording) if chains_matmuls(one.site.op))
    states = run.with_role(Role.OUTPUT)

    assert steps_through(states) == 5 * LAYERS
    assert steps_through(states[:1]) == 1.0
