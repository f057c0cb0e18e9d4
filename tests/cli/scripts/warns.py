"""Warns in every way: from code of its own, at several distances, and by torch."""

import logging
import sys
import warnings

import torch
import torch.nn.functional as F
from torch import nn

logging.basicConfig(format="%(pathname)s:%(lineno)d %(message)s", stream=sys.stderr)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        for level in (1, 2, 3):
            warnings.warn(f"forward of a function {level}", stacklevel=level)
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        for level in (1, 2, 3):
            warnings.warn(f"backward of a function {level}", stacklevel=level)
        return 3 * ctx.saved_tensors[0] ** 2 * gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.softmax = nn.Softmax()

    def forward(self, x):
        for level in (1, 2, 3, 4, 5, 6):
            warnings.warn(f"forward {level}", RuntimeWarning, level)
        return self.softmax(self.linear(x)) + F.softmax(x)


def hook(*_):
    for level in (1, 2, 3, 4, 5):
        warnings.warn(f"hook {level}", stacklevel=level)


def told(x):
    warnings.warn("of a helper", UserWarning, stacklevel=2)
    warnings.warn(DeprecationWarning("an instance"), stacklevel=2)
    return x.t()


torch.manual_seed(0)
net = Net()
net.register_forward_hook(hook)
net.linear.register_full_backward_hook(hook)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(4):
    optimizer.zero_grad()
    x = torch.randn(2, 4)
    y = Cube.apply(net(x))
    told(y)
    y.register_hook(hook)
    loss = F.mse_loss(y, torch.ones(4)) + torch.ones(2, 2, 2).T.sum()
    values, _ = torch.range(0, 3).sort()
    _ = y.grad
    loss.backward()
    logging.warning("said %s", torch.get_rng_state().sum().item())
    torch.tensor(y)
    F.upsample(x[None, None], scale_factor=2)
    nn.functional.nll_loss(y, torch.zeros(2, dtype=torch.long), size_average=True)
    optimizer.step()
