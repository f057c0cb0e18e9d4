"""Weights in a file that `torch.save` wrote: tensors alone are read, no code is run."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep.core.errors import UsageError
from lockstep.wings.sampling.weights.fingerprint import Fingerprint
from lockstep.wings.sampling.weights.live import fingerprint_of_tensor
from lockstep.wings.sampling.weights.logical_names import logical_names

_KEYS = ("state_dict", "model_state_dict", "model", "module")
"""Under which trainers keep the model's tensors beside an optimizer's: Lightning, torch's tutorials, DeepSpeed."""


def fingerprints_in(path: Path) -> list[Fingerprint]:
    """Return the fingerprints of a checkpoint's weights.

    Raises
    ------
    UsageError
        If it cannot be read without running code, or holds no tensors by name.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"{path}: cannot be read as a checkpoint of tensors ({first}); save the state_dict alone"
        ) from error
    tensors = _state_dict_in(loaded)
    if not tensors:
        raise UsageError(f"{path}: holds no tensors by name; save the model's state_dict()")
    names = logical_names(tensors)
    return [fingerprint_of_tensor(names[name], tensor) for name, tensor in tensors.items()]


def _state_dict_in(loaded: Any) -> dict[str, torch.Tensor]:
    if not isinstance(loaded, Mapping):
        return {}
    tensors = {str(name): one for name, one in loaded.items() if isinstance(one, torch.Tensor)}
    if tensors:
        return tensors
    for key in _KEYS:
        if key in loaded:
            return _state_dict_in(loaded[key])
    return {}


__all__ = ["fingerprints_in"]
