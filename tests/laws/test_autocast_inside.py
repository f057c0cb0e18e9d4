"""Two spellings of one function under autocast, of which one rounds inside of an operator, or elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

import lockstep
from lockstep.core.finding import Comparison, Kind, Verdict

Compute = Callable[["Network", Tensor], Tensor]


class Network(nn.Module):
    """Layers from which each training takes what it needs; `compute` is its forward pass."""

    def __init__(self, compute: Compute) -> None:
        super().__init__()
        self.compute = compute
        self.enter, self.leave = nn.Linear(8, 16), nn.Linear(16, 4)
        self.cell = nn.GRUCell(8, 16)
        self.frozen = nn.Linear(16, 16).requires_grad_(False)
        self.down, self.up = (
            nn.Parameter(torch.randn(4, 16) / 4),
            nn.Parameter(torch.randn(16, 4) / 8),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self, x)


def recorded(path: Path, compute: Compute) -> Path:
    torch.manual_seed(0)
    network = Network(compute)
    used = [one for one in network.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(used, 1e-2)
    with lockstep.record(path, model=network, steps="0:2", save="tensors"):
        for step in range(2):
            torch.manual_seed(step)
            x, y = torch.randn(8, 5, 8), torch.randn(8, 4)
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16):
                out = network(x)
                loss = F.mse_loss(out[..., :4].float(), y)
            loss.backward()
            optimizer.step()
    return path


def compared(tmp_path: Path, *computes: Compute) -> Comparison:
    sides = [recorded(tmp_path / name, one) for name, one in zip("ab", computes, strict=True)]
    return lockstep.compare_recordings(*sides)


def by_cell(net: Network, x: Tensor) -> Tensor:
    state = x.new_zeros(len(x), 16)
    for place in range(x.shape[1]):
        state = net.cell(x[:, place], state)
    out: Tensor = net.leave(state)
    return out


def by_hand(net: Network, x: Tensor, share: float = 1.0) -> Tensor:
    cell, state = net.cell, x.new_zeros(len(x), 16)
    for place in range(x.shape[1]):
        given = F.linear(x[:, place], cell.weight_ih, cell.bias_ih).chunk(3, 1)
        held = F.linear(state, cell.weight_hh, cell.bias_hh).chunk(3, 1)
        reset, update = torch.sigmoid(given[0] + held[0]), torch.sigmoid(given[1] + held[1])
        new = torch.tanh(given[2] + reset * held[2] * share)
        state = (1 - update) * new + update * state
    out: Tensor = net.leave(state)
    return out


def test_a_cell_that_rounds_inside_breaks_no_law(tmp_path: Path) -> None:
    # Given a recurrent cell, whose products autocast rounds inside, and the same by hand
    found = compared(tmp_path, by_cell, by_hand)
    # When they are compared, then every law holds; what is told is that one keeps its states in fewer bits
    assert found.laws is not None
    assert (found.laws.breaches, found.laws.not_judged) == ((), ())
    assert all(one.kind is not Kind.FAULT or one.op == "torch.gru_cell" for one in found.origins)


def test_a_cell_by_hand_that_is_wrong_breaks_one(tmp_path: Path) -> None:
    found = compared(tmp_path, by_cell, lambda net, x: by_hand(net, x, 0.9))
    assert found.verdict is Verdict.DIVERGED
    assert found.laws is not None
    assert found.laws.breaches


def in_two_paths(net: Network, x: Tensor) -> Tensor:
    hidden = net.enter(x[:, 0])
    both: Tensor = net.frozen(hidden) + 2.0 * F.linear(F.linear(hidden, net.down), net.up)
    out: Tensor = net.leave(torch.tanh(both))
    return out


def merged(net: Network, x: Tensor, factor: float = 2.0) -> Tensor:
    weight = net.frozen.weight + factor * (net.up @ net.down)
    out: Tensor = net.leave(torch.tanh(F.linear(net.enter(x[:, 0]), weight, net.frozen.bias)))
    return out


def test_results_of_other_sizes_are_no_change_of_precision(tmp_path: Path) -> None:
    # Given an adapter beside its layer, and one that is added to the layer's weight, in float32
    assert compared(tmp_path, in_two_paths, merged).verdict is Verdict.AGREE


def test_an_adapter_with_another_factor_is_told(tmp_path: Path) -> None:
    found = compared(tmp_path, in_two_paths, lambda net, x: merged(net, x, 2.2))
    assert found.verdict is Verdict.DIVERGED


def divergence(net: Network, x: Tensor) -> Tensor:
    mean, spread = net.enter(x[:, 0]).chunk(2, -1)
    apart = (-0.5 * (1 + spread - mean.pow(2) - spread.exp())).sum(-1, keepdim=True)
    out: Tensor = net.leave(torch.cat([mean, spread], -1)) + 0.1 * apart
    return out


def of_distributions(net: Network, x: Tensor, half: float = 0.5) -> Tensor:
    mean, spread = net.enter(x[:, 0]).chunk(2, -1)
    one = Normal(mean, (half * spread).exp(), validate_args=False)
    other = Normal(torch.zeros_like(mean), torch.ones_like(mean))
    apart = kl_divergence(one, other).sum(-1, keepdim=True)
    out: Tensor = net.leave(torch.cat([mean, spread], -1)) + 0.1 * apart
    return out


@pytest.mark.parametrize(("half", "verdict"), [(0.5, Verdict.AGREE), (0.6, Verdict.DIVERGED)])
def test_what_enters_two_calls_of_one_name_is_no_result_of_these(
    tmp_path: Path, half: float, verdict: Verdict
) -> None:
    # Given a divergence by hand, and by distributions, whose products have the other sign
    found = compared(tmp_path, divergence, lambda net, x: of_distributions(net, x, half))
    assert found.verdict is verdict
