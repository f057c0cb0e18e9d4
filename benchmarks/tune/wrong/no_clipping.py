"""Faster and wrong: gradients are not clipped."""

import torch

torch.nn.utils.clip_grad_norm_ = lambda parameters, *_, **__: torch.zeros(())
