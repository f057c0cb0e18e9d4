"""Weights as people bring them: checkpoints of any wrapper, .safetensors, and folders as Hugging Face writes them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep.errors import UsageError, reason_of
from lockstep.terminal import listed
from lockstep_deploy.engines import engine, first_line

SUFFIXES = (".pth", ".pt", ".tar", ".bin", ".ckpt", ".safetensors")
_EMA_KEYS = ("ema_state_dict", "state_dict_ema", "model_ema", "ema")
_STATE_KEYS = ("state_dict", "model_state_dict", "model", "net")
_PREFIXES = ("module.", "_orig_mod.", "model.", "net.", "network.", "ema_model.", "ema.")
"""What wrappers put in front of names: DataParallel, torch.compile, the attribute that Lightning modules keep a model
in, averaged copies. One is taken off where all names have it and the module has none with it."""

_BESIDE_WEIGHTS = ("n_averaged", "initted", "step")
"""What averaged copies count beside their weights."""

_IN_FOLDERS = ("model.safetensors", "pytorch_model.bin")
"""Names of weights in folders as Hugging Face writes them; with `.index.json` behind, of those in several files."""

_SHOWN = 5


def load_checkpoint(
    module: torch.nn.Module, path: Path, weights: str, trusted: bool, said: list[str]
) -> None:
    """Load a checkpoint, or the weights of a folder, into a module.

    module: What the weights are of.
    path: A file of one of `SUFFIXES`, or a folder.
    weights: Which weights of a checkpoint that has two sorts: "auto", "ema" or "plain".
    trusted: Whether reading it may run code.
    said: Gets a sentence for each choice.

    Raises UsageError if it cannot be read, or has other names or shapes than the module.
    """
    loaded: dict[str, Any] = {}
    for part in _files_of(path) if path.is_dir() else [path]:
        is_safe = part.suffix == ".safetensors"
        found = _safetensors(part) if is_safe else _unpickled(part, trusted)
        loaded = found if not loaded else loaded | found
    own = module.state_dict()
    state = _without_prefixes(_state_in(loaded, path, weights, said), own, path, said)
    check_names(own, state, path)
    module.load_state_dict(state, strict=False)


def _files_of(folder: Path) -> list[Path]:
    """The files that a folder keeps its weights in: one, or those that an index lists."""
    for name in _IN_FOLDERS:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if not index.is_file():
            continue
        try:
            parts = sorted(
                set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
            )
        except (OSError, ValueError, LookupError, AttributeError, TypeError) as error:
            raise UsageError(
                f"{index}: cannot be read as an index of weights ({reason_of(error)})"
            ) from error
        away = [one for one in parts if Path(one).name != one or not (folder / one).is_file()]
        if away:
            raise UsageError(
                f"{index}: lists {listed(away, _SHOWN)}, which the folder does not have"
            )
        return [folder / one for one in parts]
    raise UsageError(f"{folder}: holds no weights ({' or '.join(_IN_FOLDERS)}, or their index)")


def _without_prefixes(
    state: dict[str, torch.Tensor], own: Mapping[str, Any], path: Path, said: list[str]
) -> dict[str, torch.Tensor]:
    """Weights by the module's names: without what wrappers put in front, or count beside."""
    for name in _BESIDE_WEIGHTS:
        if name in state and name not in own:
            state = {key: value for key, value in state.items() if key != name}
    while prefix := next(
        (
            one
            for one in _PREFIXES
            if state and all(key.startswith(one) for key in state)
            and not any(key.startswith(one) for key in own)
        ),
        "",
    ):  # fmt: skip
        state = {key.removeprefix(prefix): value for key, value in state.items()}
        said.append(f"took {prefix!r} off the names of {path.name}")
    return state


def _safetensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return dict(engine("safetensors.torch").load_file(str(path)))
    except Exception as error:
        said = getattr(error, "strerror", None) or first_line(error, 120)
        raise UsageError(f"{path}: cannot be read as .safetensors ({said})") from error


def _unpickled(path: Path, trusted: bool) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=not trusted)
    except Exception as error:
        said = getattr(error, "strerror", None) or first_line(error, 120)
        advice = "save its state_dict() again" + (
            ""
            if trusted
            else ", or give --trust if you know who made it: reading it then runs its code"
        )
        raise UsageError(
            f"{path}: cannot be read as a checkpoint of weights alone ({said}); {advice}"
        ) from error


def _state_in(loaded: Any, path: Path, weights: str, said: list[str]) -> dict[str, torch.Tensor]:
    found = loaded
    if isinstance(loaded, Mapping):
        averaged = [key for key in _EMA_KEYS if isinstance(loaded.get(key), Mapping)]
        plain = [key for key in _STATE_KEYS if isinstance(loaded.get(key), Mapping)]
        if weights == "ema" and not averaged:
            raise UsageError(
                f"{path}: has no averaged weights ({', '.join(_EMA_KEYS)}); leave out --weights ema"
            )
        keys = plain if weights == "plain" else [*averaged, *plain]
        if keys:
            found = loaded[keys[0]]
            other = [key for key in (*averaged, *plain) if key != keys[0]]
            beside = (
                f"; it holds {listed(other)} too (--weights plain or ema chooses)" if other else ""
            )
            said.append(f"weights under {keys[0]!r} of {path.name}{beside}")
    if (
        not isinstance(found, Mapping)
        or not all(isinstance(one, torch.Tensor) for one in found.values())
        or not found
    ):
        raise UsageError(f"{path}: holds no weights by name; save the module's state_dict()")
    return dict(found)


def check_names(own: Mapping[str, Any], state: Mapping[str, Any], path: Path) -> None:
    """Refuse weights that are not those of a module; a name that is tied to another needs none.

    own: The module's `state_dict`.
    state: What it is to hold, by name.
    path: Where that is from.

    Raises UsageError with the names.
    """
    lacks = lacking(own, state)
    more = [name for name in state if name not in own]
    shapes = [
        f"{name} {list(state[name].shape)} for {list(own[name].shape)}"
        for name in own
        if name in state and state[name].shape != own[name].shape
    ]
    parts = [
        f"{what} {listed(names, _SHOWN)}"
        for what, names in (("lacks", lacks), ("has beside", more), ("has other shapes at", shapes))
        if names
    ]
    if parts:
        raise UsageError(
            f"{path}: is of another model than the factory makes: it {'; it '.join(parts)}"
        )


def lacking(own: Mapping[str, torch.Tensor], state: Collection[str]) -> list[str]:
    """Names of a module's `state_dict` that others do not have, nor that of a weight which it is tied to."""
    held = {_place(own[name]) for name in state if name in own}
    return [name for name in own if name not in state and _place(own[name]) not in held]


def _place(tensor: torch.Tensor) -> tuple[int, torch.Size, tuple[int, ...]] | int:
    """What tied weights have in common; a tensor without elements has its own."""
    if not tensor.numel():
        return id(tensor)
    return tensor.data_ptr(), tensor.shape, tensor.stride()
