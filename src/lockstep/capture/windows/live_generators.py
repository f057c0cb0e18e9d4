"""Read and set the random generators of a process: the global ones, and those that variables of the script lead to."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)
"""Classes of generators that a script may hold."""


@dataclass(frozen=True, slots=True)
class LiveGenerator:
    """A generator of this process.

    kind: What its states fit: the class of the algorithm, and of torch's the type of the device.
    read: Gives its state, as a text.
    write: Sets a state that `read` gave in this process or another one.
    """

    kind: str
    read: Callable[[], str]
    write: Callable[[str], object]


def global_generators() -> dict[str, LiveGenerator]:
    """Return the generators of Python, NumPy and torch, by name; those of devices only where they are in use."""
    found = {
        "Python's generator": _of_python(random.getstate, random.setstate),
        "NumPy's generator": _of_numpy(
            lambda: np.random.get_state(legacy=False), np.random.set_state
        ),
        "torch's generator": _of_torch("cpu", torch.get_rng_state, torch.set_rng_state),
    }
    return found | {f"torch's generator of {one}": each for one, each in _of_devices()}


def generator_of(value: Any) -> LiveGenerator | None:
    """A generator that a script holds; None of a value that is none, or whose state nobody can set."""
    if isinstance(value, torch.Generator):
        return _of_torch(value.device.type, value.get_state, value.set_state)
    if isinstance(value, np.random.Generator):
        bits: Any = value.bit_generator
        return _of_numpy(lambda: bits.state, lambda state: setattr(bits, "state", state))
    if isinstance(value, np.random.RandomState):
        return _of_numpy(lambda: value.get_state(legacy=False), value.set_state)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return _of_python(value.getstate, value.setstate)
    return None


def _of_devices() -> Iterator[tuple[str, LiveGenerator]]:
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    module = None if accelerator is None else torch.get_device_module(accelerator)
    if accelerator is None or not getattr(module, "is_initialized", lambda: False)():
        return
    for number in range(torch.accelerator.device_count()):
        device = torch.device(accelerator.type, number)
        yield (
            str(device),
            _of_torch(
                device.type,
                lambda device=device: module.get_rng_state(device),  # type: ignore[union-attr, misc]
                lambda state, device=device: module.set_rng_state(state, device),  # type: ignore[union-attr, misc]
            ),
        )


def _of_python(read: Callable[[], Any], write: Callable[[Any], object]) -> LiveGenerator:
    def set_state(text: str) -> None:
        version, words, gauss = json.loads(text)
        write((version, tuple(words), gauss))

    return LiveGenerator("python", lambda: json.dumps(read()), set_state)


def _of_numpy(read: Callable[[], Any], write: Callable[[Any], object]) -> LiveGenerator:
    return LiveGenerator(
        f"numpy {read()['bit_generator']}",
        lambda: json.dumps(read(), default=_plain),
        lambda text: write(_as_arrays(json.loads(text), read())),
    )


def _as_arrays(state: Any, own: Any) -> Any:
    """A state with arrays where the generator's own state has some."""
    if isinstance(own, np.ndarray):
        return np.array(state, own.dtype)
    if isinstance(own, dict):
        return {name: _as_arrays(state[name], value) for name, value in own.items()}
    return state


def _plain(value: Any) -> Any:
    return value.tolist()


def _of_torch(
    device: str, read: Callable[[], torch.Tensor], write: Callable[[torch.Tensor], object]
) -> LiveGenerator:
    def set_state(text: str) -> None:
        write(torch.tensor(list(bytes.fromhex(text)), dtype=torch.uint8))

    return LiveGenerator(f"torch {device}", lambda: bytes(read().cpu().tolist()).hex(), set_state)
