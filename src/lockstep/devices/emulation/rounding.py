"""Round single numbers as an emulated device does: flushing, saturation, random rounding."""

from __future__ import annotations

import os

import torch
from torch import Tensor

_INTEGER_OF = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def flushed(value: Tensor) -> Tensor:
    """Subnormal numbers become zero of their sign."""
    return torch.where(value.abs() < torch.finfo(value.dtype).tiny, value * 0, value)


def saturated(value: Tensor) -> Tensor:
    """Infinities become the largest finite number of their sign; NaN stays."""
    limit = torch.finfo(value.dtype).max
    return value.clamp(-limit, limit)


def randomly_rounded(value: Tensor, generator: torch.Generator) -> Tensor:
    """Move every other number, at random, to one of its two neighbours.

    Monte Carlo arithmetic (Parker 1997) and discrete stochastic arithmetic (Vignes 1993; CADNA) round every result up
    or down at random instead of to nearest, so that the spread of a computation is the rounding error of that
    computation. Here the result is rounded already: it stays with probability 1/2 and moves one unit in the last place
    up or down with 1/4 each. The mean is kept; the relative root mean square is between 0.7 and 1.4 unit roundoffs,
    1.04 over a logarithmic distribution, and no number moves further than 2 unit roundoffs.

    What cannot have been rounded stays: zero, and whole numbers up to the square root of the largest exact one, which
    are counts, masks and positions. Subnormal, infinite and NaN values, and those of 8 bits, stay too.

    Parameters
    ----------
    value
        Any floating-point dtype, any shape.
    generator
        Where the random bits come from; on the device of `value`.

    Returns
    -------
    Tensor
        Same dtype and shape.
    """
    integer = _INTEGER_OF.get(value.dtype)
    if integer is None:
        return value
    info = torch.finfo(value.dtype)
    draw = torch.randint(
        0, 4, value.shape, generator=generator, dtype=torch.int8, device=value.device
    )
    moved = (value.view(integer) + ((draw & 1) - (draw >> 1))).view(value.dtype)
    size = value.abs()
    whole = (value == value.round()) & (size <= (2.0 / info.eps) ** 0.5)
    return torch.where((size >= info.tiny) & (size < info.max) & ~whole, moved, value)


class Generators:
    """Random numbers apart from the training's own, one stream per device.

    seed: Two with the same seed draw the same. The ranks of a training, known by RANK, draw differently.
    """

    def __init__(self, seed: int) -> None:
        rank = os.environ.get("RANK", "0")
        self._seed = seed * 1_000_003 + (int(rank) if rank.isdigit() else 0)
        self._made: dict[torch.device, torch.Generator] = {}

    def on(self, device: torch.device) -> torch.Generator:
        """The stream of one device."""
        if device not in self._made:
            self._made[device] = torch.Generator(device).manual_seed(self._seed)
        return self._made[device]
