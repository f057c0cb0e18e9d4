"""An activation that is a module; the first argument `written` gives it a class that has the formula of the other."""

import sys

import torch
from torch import nn


class Written(nn.Module):
    """The approximation of GELU by its formula."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x**3)))


torch.manual_seed(0)
act = Written() if sys.argv[1] == "written" else nn.GELU()
model = nn.Sequential(nn.Linear(8, 16), act, nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
for _step in range(4):
    loss = nn.functional.cross_entropy(model(torch.randn(6, 8)), torch.randint(0, 4, (6,)))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
