"""`lockstep.weights`: note the weights that a process has now, so that a different process's can be compared."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from lockstep.errors import OutputExistsError, UsageError
from lockstep.recorder import Silence, active_recorder, recorded_directory
from lockstep_sampling.weights.fingerprint import Fingerprint, fingerprint_of
from lockstep_sampling.weights.logical_names import logical_names
from lockstep_sampling.weights.note_files import FOLDER, note_path, write_note

VARIABLE = "LOCKSTEP_WEIGHTS"
"""The folder of notes, where nothing is recorded and no folder is given."""
_NAME = re.compile(r"[\w.+-]+")


def note_weights(
    model: Any,
    name: str = "weights",
    *,
    step: int | None = None,
    directory: str | os.PathLike[str] | None = None,
) -> Path | None:
    """Do what `lockstep.weights` says."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"lockstep.weights: {name!r} is no name; use letters, digits, _ . + and -")
    version = _counted[name] if step is None else _checked_step(step)
    folder = _folder(directory)
    if folder is None:
        return None
    path = note_path(folder, name, version, _rank())
    if path.exists():
        raise OutputExistsError(
            f"{path}: is there already, of an earlier run or a different process; remove it, or give another directory="
        )
    with Silence():
        taken = fingerprints_of_dict(_named_in(model))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_note(path, taken)
    except OSError as error:
        raise OutputExistsError(
            f"{folder}: cannot be written ({error.strerror or error}); give another directory="
        ) from error
    _counted[name] = version + 1
    return path


_counted: Counter[str] = Counter()
"""By name, the step of the next note of this process."""


def _named_in(model: Any) -> Mapping[str, Any]:
    told = model.state_dict() if isinstance(model, torch.nn.Module) else model
    if not isinstance(told, Mapping):
        raise UsageError(
            f"lockstep.weights: got {type(model).__name__}; give a torch.nn.Module, or tensors by name"
        )
    return {str(name): one for name, one in told.items()}


def _folder(directory: str | os.PathLike[str] | None) -> Path | None:
    if directory is not None:
        return Path(directory)
    recorder = active_recorder()
    if recorder is not None:
        return recorder.recording.directory / FOLDER
    if os.environ.get(VARIABLE):
        return Path(os.environ[VARIABLE])
    recorded = recorded_directory()
    return None if recorded is None else recorded / FOLDER


def _rank() -> int:
    group = torch.distributed
    return group.get_rank() if group.is_available() and group.is_initialized() else 0


def _checked_step(step: int) -> int:
    if type(step) is not int or step < 0:
        raise UsageError(f"lockstep.weights: step is {step!r}; give a whole number from 0")
    return step


def fingerprints_of_dict(told: Mapping[str, Any]) -> list[Fingerprint]:
    """Take the fingerprints of a state dict: of what is no tensor (`_extra_state`), that nothing is known of it."""
    kept = {name: one for name, one in told.items() if _is_of_a_model(name, one)}
    names = logical_names(kept)
    return [
        fingerprint_of_tensor(names[name], one)
        if isinstance(one, torch.Tensor)
        else Fingerprint(names[name], "", (), unread=f"no tensor: {type(one).__name__}")
        for name, one in kept.items()
    ]


def _is_of_a_model(name: str, one: Any) -> bool:
    """Whether it is a tensor, or what `torch.nn.Module.get_extra_state` gave; else a number of the trainer's."""
    is_extra = name.rpartition(".")[2] == _EXTRA_STATE and one is not None
    return isinstance(one, torch.Tensor) or is_extra


_EXTRA_STATE = "_extra_state"
"""As `torch.nn.Module.state_dict` calls it."""


def fingerprint_of_tensor(name: str, tensor: torch.Tensor) -> Fingerprint:
    """Take the fingerprint of a tensor; a `DTensor` is gathered, so all its ranks have to come here."""
    whole = tensor.detach()
    if hasattr(whole, "full_tensor"):
        whole = whole.full_tensor()
    dtype, shape = str(whole.dtype).removeprefix("torch."), tuple(whole.shape)
    unread = _unread(whole)
    if unread:
        return Fingerprint(name, dtype, shape, unread=unread)
    flat = whole.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return fingerprint_of(name, dtype, shape, elements_of(flat))


def _unread(tensor: torch.Tensor) -> str:
    """Why the numbers of a tensor cannot be read; "" where they can."""
    if tensor.is_meta:
        return "on the meta device: it has no numbers"
    if tensor.is_quantized:
        return "quantised by torch"
    if tensor.layout is not torch.strided:
        return f"its layout is {str(tensor.layout).removeprefix('torch.')}"
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"a tensor of the class {type(tensor).__name__}"
    return ""


def elements_of(flat: torch.Tensor) -> Any:
    """Return the elements of a tensor of one axis as NumPy has them, bfloat16 as uint16, what NumPy lacks as bytes."""
    if flat.dtype is torch.bfloat16:
        return flat.view(torch.uint16).numpy()
    try:
        return flat.numpy()
    except TypeError:  # float8 and the like
        return flat.view(torch.uint8).numpy()


__all__ = [
    "VARIABLE",
    "elements_of",
    "fingerprint_of_tensor",
    "fingerprints_of_dict",
    "note_weights",
]
