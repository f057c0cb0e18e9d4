"""A small classifier of handwritten digits."""

import torch


class Digits(torch.nn.Module):
    """Two convolutions and a head, for images of 8 x 8."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 8, 3, padding=1)
        self.second = torch.nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm = torch.nn.GroupNorm(4, 16)
        self.head = torch.nn.Linear(16 * 4 * 4, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits of ten classes, from images of shape (batch, 1, 8, 8)."""
        x = torch.nn.functional.gelu(self.first(images))
        x = torch.nn.functional.gelu(self.norm(self.second(x)))
        return self.head(x.flatten(1))
