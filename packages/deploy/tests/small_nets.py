"""Small nets, as a user has them in a file: functions that return a module and its inputs."""

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """A residual block."""

    def __init__(self, wide):
        super().__init__()
        self.conv = nn.Conv2d(wide, wide, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(wide)

    def forward(self, x):
        return F.relu(x + self.norm(self.conv(x)))


class SmallResNet(nn.Module):
    """A residual network for 8 x 8 images."""

    def __init__(self, wide=8):
        super().__init__()
        self.stem = nn.Conv2d(1, wide, 3, padding=1)
        self.blocks = nn.Sequential(Block(wide), Block(wide))
        self.head = nn.Linear(wide, 10)

    def forward(self, x):
        return self.head(self.blocks(F.relu(self.stem(x))).mean((2, 3)))


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, wide):
        super().__init__()
        self.qkv = nn.Linear(wide, 3 * wide)
        self.out = nn.Linear(wide, wide)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return self.out(scores.masked_fill(~mask, -1e9).softmax(-1) @ v)


class SmallGPT(nn.Module):
    """A decoder of one layer."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(50, 16)
        self.norm = nn.LayerNorm(16)
        self.attention = Attention(16)
        self.mlp = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.last = nn.LayerNorm(16)

    def forward(self, ids):
        x = self.tokens(ids)
        x = x + self.attention(self.norm(x))
        return self.last(x + self.mlp(x)) @ self.tokens.weight.T


def _trained(module):
    """Weights and statistics that are no start's."""
    torch.manual_seed(0)
    for one in module.modules():
        if isinstance(one, nn.BatchNorm2d):
            nn.init.normal_(one.running_mean)
            nn.init.uniform_(one.running_var, 0.5, 2.0)
        if isinstance(one, (nn.BatchNorm2d, nn.LayerNorm)):
            nn.init.uniform_(one.weight, 0.5, 1.5)
            nn.init.normal_(one.bias)
    return module


def resnet(wide=8):
    torch.manual_seed(0)
    return _trained(SmallResNet(wide)), torch.randn(2, 1, 8, 8)


def gpt():
    torch.manual_seed(0)
    return _trained(SmallGPT()), {"ids": torch.randint(0, 50, (2, 6))}


class Tiny(nn.Module):
    """A convolution, a maximum and a linear layer."""

    def __init__(self):
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 4, 3, stride=2, padding=1), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(F.max_pool2d(F.relu(self.conv(x)), 2).flatten(1))


def tiny():
    torch.manual_seed(0)
    return Tiny(), torch.randn(2, 1, 8, 8)


def sorts():
    """A net that uses what ONNX has no operator for."""

    class Sorts(nn.Module):
        def forward(self, x):
            return torch.linalg.eigvals(x).real

    return Sorts(), torch.randn(3, 3)


def branches():
    """A net whose path depends on its data."""

    class Branches(nn.Module):
        def forward(self, x):
            return x + 1 if x.sum() > 0 else x - 1

    return Branches(), torch.randn(3)


def nothing():
    return 3
