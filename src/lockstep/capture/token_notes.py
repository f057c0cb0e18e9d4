"""Telling which tokens a model is given next, where its engine hides them."""

from __future__ import annotations

from typing import Any

import torch

from lockstep.capture.recorder import active_recorder
from lockstep.core.errors import UsageError


def tokens(ids: Any, *, sequences: Any, positions: Any) -> None:
    """Say which tokens the next call of the model is given, for an engine that packs or hides them.

    Call it right before the model is called. Where nothing is recorded it does nothing.

    Parameters
    ----------
    ids
        The tokens, in the order in which the model has them: shape (tokens,) or (batch, tokens), whole numbers.
    sequences
        Which sequence each of them belongs to, as the other run numbers them: its row there, unless that run is
        annotated too. The same shape.
    positions
        Its place in that sequence, from 0; less than 0 for padding. The same shape.

    Raises
    ------
    UsageError
        If they are not whole numbers, or of different shapes.

    Examples
    --------
    >>> tokens([5, 7, 9], sequences=[0, 0, 1], positions=[3, 4, 0])
    """
    names = ("ids", "sequences", "positions")
    told = {
        name: _whole_numbers(name, one)
        for name, one in zip(names, (ids, sequences, positions), strict=True)
    }
    shapes = {name: tuple(one.shape) for name, one in told.items()}
    if len(set(shapes.values())) > 1:
        said = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise UsageError(
            f"lockstep.tokens: these differ in shape: {said}; give one of each for every token"
        )
    if (recorder := active_recorder()) is not None:
        recorder.recording.told_tokens = told


def _whole_numbers(name: str, value: Any) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        try:
            tensor = torch.as_tensor(value).detach().to("cpu", copy=True)
        except (TypeError, ValueError, RuntimeError) as error:
            raise UsageError(
                f"lockstep.tokens: {name} is not an array of whole numbers: {error}"
            ) from error
    kinds = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    if tensor.dtype not in kinds or tensor.ndim not in (1, 2):
        raise UsageError(
            f"lockstep.tokens: {name} is {tensor.dtype} of shape {tuple(tensor.shape)}; give whole numbers of shape"
            " (tokens,) or (batch, tokens)"
        )
    return tensor


__all__ = ["tokens"]
