"""16 bits by hooks: what is computed, where gradients arrive, and that a copy of the model keeps its own parameters."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import lockstep
from lockstep_tune.half_precision import use_autocast, use_low_weights
from lockstep_tune.tuned_trials import error_of


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


class _Convolved(torch.nn.Module):
    """A convolution whose bias has no gradient but rounding, as a norm follows."""

    def __init__(self, share: float = 1.0) -> None:
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8)
        self.out, self.share = torch.nn.Linear(8 * 36, 4), share

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.conv(x)).relu().flatten(1)
        return self.out(hidden * self.share if self.share != 1.0 else hidden)


def _recorded(
    folder: Path, use: Callable[[torch.nn.Module, str], None] | None, share: float = 1.0
) -> Path:
    torch.manual_seed(0)
    net, batches = _Convolved(share), torch.randn(2, 8, 3, 8, 8)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    if use is not None:
        use(net, "bfloat16")
    with lockstep.record(folder, model=net, steps="0:2"):
        for x in batches:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x), torch.arange(8) % 4).backward()
            optimizer.step()
    return folder


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use", [use_low_weights, use_autocast])
def test_16_bits_are_another_precision_throughout_with_an_error_and_a_fault_in_them_is_one(
    tmp_path: Path, use: Callable[[torch.nn.Module, str], None]
) -> None:
    plain = _recorded(tmp_path / "plain", None)
    # when the same training runs in 16 bits
    found = lockstep.compare_recordings(plain, _recorded(tmp_path / "low", use))
    # then no operator is at fault, and the error is that of 16 bits, although a gradient is zero but for rounding
    assert found.other_precision_alone
    assert 0.0 < error_of(found) < 0.05
    # and a factor that the other one lacks stays a fault
    wrong = lockstep.compare_recordings(plain, _recorded(tmp_path / "wrong", use, share=1.3))
    assert not wrong.other_precision_alone
    assert wrong.exit_code(strict=False) == 1
