"""Write the state of this training at the start of a window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lockstep.capture.windows.live_generators import LiveGenerator
from lockstep.capture.windows.state_of_training import ScriptState, StateOfTraining
from lockstep.core.records import Array
from lockstep.devices.tensor_numbers import digest_of, dtype_name, raw_bytes
from lockstep.store.tensors import SAFETENSORS_NAMES, raw_dtype
from lockstep.store.window_states import GivenTensor, StateWriter, can_keep

OPTIMIZERS, GENERATORS, EARLIER, KINDS, SETTINGS, NUMBERS, DEVICES = (
    "optimizers", "generators", "earlier", "kinds", "settings", "numbers", "devices",
)  # fmt: skip
"""Keys of a state's other values. `earlier` are the generators at each time that the step began before, and turned out
to be none; `settings` are schedulers' and other numbers, `numbers` those in optimizers' states; `kinds` says what each
generator is."""

_NUMBERS = (bool, int, float)


def take(
    writer: StateWriter,
    step: int,
    state: StateOfTraining,
    script: ScriptState,
    generators: Sequence[dict[str, str]],
    live: dict[str, LiveGenerator],
) -> tuple[str, list[str]]:
    """Write a state; return its digest, and the parts that could not be kept.

    writer: Writes it.
    step: The step that begins.
    state, script: The state, and what variables lead to.
    generators, live: States of the generators each time that the step began, before its batch was drawn, and the
        generators.

    Raises OSError if the disk does not take it.
    """
    tensors, not_kept = dict[str, GivenTensor](), list[str]()
    for name, one in state.tensors.items():
        dtype = dtype_name(one.own.dtype)
        if can_keep(dtype):
            tensors[name] = given(one.own)
        else:
            not_kept.append(f"{name}: of dtype {dtype}")
    values: dict[str, Any] = {
        OPTIMIZERS: sorted(state.optimizers),
        GENERATORS: generators[-1],
        EARLIER: list(generators[:-1]),
        KINDS: {name: one.kind for name, one in live.items() if name in generators[-1]},
        SETTINGS: {one.path: one.value for one in script.settings},
        NUMBERS: numbers_in_states(state),
        DEVICES: devices_of(state),
    }
    return writer.write(step, tensors, values), not_kept


def given(tensor: torch.Tensor) -> GivenTensor:
    """A tensor to be kept, read when it is written."""
    dtype = dtype_name(tensor.dtype)
    flat = tensor.detach().contiguous().reshape(-1)

    def read() -> Array:
        return raw_bytes(flat).view(raw_dtype(SAFETENSORS_NAMES[dtype]))

    return GivenTensor(dtype, tuple(tensor.shape), digest_of(flat), read)


def devices_of(state: StateOfTraining) -> list[str]:
    """Return the types of the devices that the trained parameters are on."""
    return sorted({one.tensor.device.type for one in state.trained.values()})


def numbers_in_states(state: StateOfTraining) -> dict[str, bool | int | float]:
    """Return plain numbers in the optimizers' states, by the parameter and their own name."""
    return {
        f"{optimizer}: {name}|{key}": value
        for optimizer, (live, parameters) in state.optimizers.items()
        for name, parameter in parameters.items()
        for key, value in live.state.get(parameter, {}).items()
        if type(value) in _NUMBERS
    }
