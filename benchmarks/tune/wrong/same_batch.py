"""Faster and wrong: the first batch is given again and again."""

import itertools

import torch

_given = torch.utils.data.DataLoader.__iter__
torch.utils.data.DataLoader.__iter__ = lambda self: itertools.repeat(next(_given(self)), len(self))
