"""Which calls of a script take the gradient of one parameter alone."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import lockstep
from lockstep.core.operators import parameters_by_call


def test_calls_on_a_gradient_are_told_by_the_parameter(tmp_path: Path) -> None:
    # given a script that halves each gradient, and adds up their norms
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with lockstep.record(tmp_path / "run", steps="0:1"):
        model(torch.randn(5, 4)).sum().backward()
        for one in reversed([*model.parameters()]):
            assert one.grad is not None
            one.grad.div_(2)
        sum(one.grad.norm() for one in model.parameters() if one.grad is not None)
        optimizer.step()
    calls = lockstep.open(tmp_path / "run").ranks["rank0"].calls(0)
    # when they are asked for
    found = parameters_by_call(calls)
    told = [(call.site.op.rpartition(".")[2], found[call.id]) for call in calls if call.id in found]
    # then each is told by its parameter, and the sum of several by none
    names = ["1.bias", "1.weight", "0.bias", "0.weight"]
    assert told[:4] == [("div_", name) for name in names]
    assert "add" not in [operator for operator, _ in told]
