"""16 bits by hooks: what is computed, where gradients arrive, and that a copy of the model keeps its own parameters."""

from __future__ import annotations

import copy

import pytest
import torch

from lockstep.wings.tune.half_precision import use_autocast, use_low_weights


def _net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))


def test_weights_are_16_bits_in_forward_alone_and_gradients_float32() -> None:
    net, x = _net(), torch.randn(3, 4)
    seen = []
    net[0].register_forward_pre_hook(lambda module, inputs: seen.append(module.weight.dtype))
    use_low_weights(net, "bfloat16")
    out = net(x)
    out.sum().backward()
    # then the layer had 16 bits, the norm's parameters, results and gradients are float32
    assert seen == [torch.bfloat16]
    assert out.dtype is torch.float32
    assert {one.grad.dtype for one in net.parameters()} == {torch.float32}
    assert {type(one) for one in net.parameters()} == {torch.nn.Parameter}
    # and it is what a model of 16-bit weights computes
    low = _net()
    low[0].bfloat16(), low[2].bfloat16()
    assert torch.equal(out, low(x.bfloat16()).float())


def test_a_copy_computes_with_its_own_parameters() -> None:
    for use in (use_low_weights, use_autocast):
        net, x = _net(), torch.randn(3, 4)
        use(net, "bfloat16")
        average = copy.deepcopy(net)
        with torch.no_grad():
            for one in average.parameters():
                one.zero_()
        assert not average(x).any()
        assert net(x).any()


def test_parameters_come_back_where_forward_fails() -> None:
    net = _net()
    use_low_weights(net, "bfloat16")
    with pytest.raises(RuntimeError):
        net(torch.randn(3, 5))
    assert {one.dtype for one in net.parameters()} == {torch.float32}
    assert isinstance(net[0].weight, torch.nn.Parameter)
