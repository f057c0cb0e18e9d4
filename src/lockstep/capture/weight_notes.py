"""`lockstep.weights`, which a training calls wherever Lockstep is: the member `sampling` takes the notes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from lockstep.capture.process.environment import module_of_member


def weights(
    model: Any,
    name: str = "weights",
    *,
    step: int | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Path | None:
    """Note the weights of a model as they are now, for `lockstep weights`; the member `sampling` does it.

    Call it in the trainer and in the engine, with the same name and step, right after the weights were handed on. In a
    process group call it on every rank: parts that ranks hold of a `DTensor` are gathered one tensor at a time. Where
    nothing is recorded and no folder is given, it does nothing.

    Parameters
    ----------
    model
        A `torch.nn.Module`, or tensors by name, such as a `state_dict()`.
    name
        Which weights these are. Letters, digits, `_`, `.`, `+` and `-`.
    step
        The version of the weights; by default how often this process has noted that name.
    directory
        The folder to write to, one for the trainer and one for the engine. By default the recording that is on, else
        the folder that the variable `LOCKSTEP_WEIGHTS` names.

    Returns
    -------
    pathlib.Path or None
        The file, which holds digests and sketches, but no matrix; None where there is no folder.

    Raises
    ------
    UsageError
        If the name cannot be a file's, the model is none, or the member `sampling` is not installed.
    OutputExistsError
        If that note is there already, or cannot be written.
    """
    live = module_of_member("sampling", "lockstep_sampling.weights.live", "lockstep.weights")
    path: Path | None = live.note_weights(model, name, step=step, directory=directory)
    return path


__all__ = ["weights"]
