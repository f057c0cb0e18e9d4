"""Faster and wrong: no gradient goes through what is to be computed again."""

import torch


def _detached(function, *arguments, use_reentrant=None):
    with torch.no_grad():
        return function(*arguments)


torch.utils.checkpoint.checkpoint = _detached
