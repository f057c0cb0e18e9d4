"""Writing a tensor to a file of torch's own."""

from __future__ import annotations

from pathlib import Path

import torch

from lockstep.core.records import Array
from lockstep.core.replacement import replacing


def save_tensor(path: Path, elements: Array, dtype: str, shape: tuple[int, ...]) -> None:
    """Write one tensor as `torch.save` does.

    Parameters
    ----------
    path
        The file; one that is there is replaced.
    elements
        The elements bit by bit, shape (numel,): bfloat16 as uint16, float8 as uint8.
    dtype, shape
        As torch names them: "bfloat16", (4, 128).

    Raises
    ------
    OSError
        If it cannot be written.
    """
    values = torch.from_numpy(elements.copy()).view(getattr(torch, dtype)).reshape(shape)
    with replacing(path) as aside:
        torch.save(values, aside)
