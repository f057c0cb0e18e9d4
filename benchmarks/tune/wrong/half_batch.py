"""Faster and wrong: batches are half as large."""

import torch

_made = torch.utils.data.DataLoader.__init__


def _half(self, dataset, batch_size=1, **keywords):
    _made(self, dataset, batch_size // 2, **keywords)


torch.utils.data.DataLoader.__init__ = _half
