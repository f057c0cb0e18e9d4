"""Weights in a file that `torch.save` wrote: tensors alone are read, no code is run."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep.errors import UsageError
from lockstep_sampling.weights.fingerprint import Fingerprint
from lockstep_sampling.weights.live import fingerprints_of_dict

_KEYS = ("state_dict", "model_state_dict", "model", "module")
"""Under which trainers keep the model's tensors beside an optimizer's: Lightning, torch's tutorials, DeepSpeed."""


def fingerprints_in(path: Path) -> list[Fingerprint]:
    """Return the fingerprints of a checkpoint's weights.

    Raises UsageError if it cannot be read without running code, or holds no tensors by name.
    """
    try:
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, pickle.UnpicklingError, EOFError, ValueError, KeyError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise UsageError(
            f"{path}: cannot be read as a checkpoint of tensors ({first}); save the state_dict alone"
        ) from error
    told = _state_dict_in(loaded)
    if not any(isinstance(one, torch.Tensor) for one in told.values()):
        raise UsageError(f"{path}: holds no tensors by name; save the model's state_dict()")
    return fingerprints_of_dict(told)


def _state_dict_in(loaded: Any) -> Mapping[str, Any]:
    if not isinstance(loaded, Mapping):
        return {}
    for key in _KEYS:
        if isinstance(loaded.get(key), Mapping):  # tensors beside it are counters and the like
            return _state_dict_in(loaded[key])
    return {str(name): one for name, one in loaded.items()}


__all__ = ["fingerprints_in"]
