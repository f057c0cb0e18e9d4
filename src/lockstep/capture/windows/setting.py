"""Set the state of a window in this training, in place and bit by bit, and name what could not be set."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lockstep.capture.windows.live_generators import LiveGenerator
from lockstep.capture.windows.state_of_training import LiveTensor, StateOfTraining
from lockstep.capture.windows.taking import EARLIER, GENERATORS, KINDS, NUMBERS, OPTIMIZERS
from lockstep.core.site import Role
from lockstep.core.text import listed
from lockstep.core.windows import StateDifference
from lockstep.store.window_states import WindowState

_MOST_NAMES = 3


@dataclass(slots=True)
class StateSet:
    """What came of setting a state.

    is_set: Whether the trained parameters are those of the state.
    not_set: Parts that could not be set, and why.
    differed: Counts that were not equal before.
    distance: How far the trained parameters were apart before, relative.
    """

    is_set: bool = False
    not_set: list[str] = field(default_factory=list)
    differed: list[StateDifference] = field(default_factory=list)
    distance: float | None = None


def set_tensors(kept: WindowState, live: StateOfTraining) -> StateSet:
    """Set all tensors of a state, of which `other_model` has said nothing.

    Raises CorruptError if a file of the state is damaged.
    """
    done = StateSet()
    _make_optimizer_states(kept, live, done)
    squares = dict.fromkeys(("apart", "norm"), 0.0)
    for name, one in live.tensors.items():
        if name not in kept.tensors:
            continue
        own, wanted = one.own, tensor_of(kept, name)
        if tuple(own.shape) != tuple(wanted.shape):
            done.not_set.append(f"{name}: of shape {_shape(own)} here, and {_shape(wanted)} there")
            continue
        if _counts(own) and _counts(wanted) and not _is_of_scaler(name):
            _note_count(name, own, wanted, done)
        if one.is_trained:
            apart, norm = _squares(own, wanted)
            squares["apart"] += apart
            squares["norm"] += norm
        own.copy_(wanted)
    done.is_set = True
    done.distance = math.sqrt(squares["apart"] / squares["norm"]) if squares["norm"] else 0.0
    done.not_set += _without_partner(kept, live)
    return done


def set_generators(
    kept: WindowState, live: Mapping[str, LiveGenerator], begun: int = 0
) -> tuple[list[str], list[StateDifference]]:
    """Set the generators; return what could not be set, and which were not where those of the state are.

    `begun` is how often the step has begun before.
    """
    states, kinds = kept.values.get(GENERATORS, {}), kept.values.get(KINDS, {})
    states = dict(enumerate(kept.values.get(EARLIER, ()))).get(begun, states)
    not_set = [f"{name}: not here" for name in states if name not in live]
    not_set += [f"{name}: not there" for name in live if name not in states]
    differed = []
    for name, generator in live.items():
        if name not in states:
            continue
        if kinds.get(name) != generator.kind:
            not_set.append(f"{name}: {generator.kind} here, and {kinds.get(name)} there")
            continue
        if generator.read() != states[name]:
            differed.append(StateDifference(name, "in its own state", "in a different state"))
            generator.write(states[name])
    return not_set, differed


def tensor_of(kept: WindowState, name: str) -> torch.Tensor:
    """A tensor of a state, on the CPU."""
    listed_as = kept.tensors[name]
    elements = np.array(kept.elements(name))  # a copy: the file is mapped for reading alone
    dtype: torch.dtype = getattr(torch, listed_as.dtype)
    flat = torch.from_numpy(elements.view(np.uint8)).view(dtype)
    return flat.reshape(listed_as.shape)


# --- optimizers ------------------------------------------------------------------------------------------------------


def _make_optimizer_states(kept: WindowState, live: StateOfTraining, done: StateSet) -> None:
    """Make the states that an optimizer of the same class has not made yet, as `load_state_dict` would place them."""
    theirs = set(kept.values.get(OPTIMIZERS, ()))
    numbers: dict[str, Any] = kept.values.get(NUMBERS, {})
    for called, (optimizer, parameters) in live.optimizers.items():
        lost: list[str] = []
        if called not in theirs:
            done.not_set.append(f"{called}: the reference has {listed(sorted(theirs)) or 'none'}")
            continue
        prefix = called[: len(called) - len(called.lstrip("0123456789."))]
        for owner, parameter in parameters.items():
            state = optimizer.state.get(parameter)
            if state:
                continue
            made = dict(_kept_of(kept, f"{prefix}{owner}|", parameter))
            if not made:
                continue
            start = f"{called}: {owner}|"
            made |= {
                name.removeprefix(start): value
                for name, value in numbers.items()
                if name.startswith(start)
            }
            lost.append(owner)
            optimizer.state[parameter] = made
            for key, value in made.items():
                if isinstance(value, torch.Tensor):
                    live.tensors[f"{prefix}{owner}|{key}"] = LiveTensor(value, Role.STATE)
        if lost and kept.step:  # before the first step, one of the two may have been resumed
            name = f"the state of {called} for {listed(lost, _MOST_NAMES)}"
            done.differed.append(StateDifference(name, "there", "empty"))


def _kept_of(
    kept: WindowState, start: str, parameter: torch.Tensor
) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors of one parameter's state; what has the parameter's shape lies where the parameter does."""
    for name in kept.tensors:
        if name.startswith(start):
            tensor = tensor_of(kept, name)
            key = name.removeprefix(start)
            beside = key != "step" and tensor.is_floating_point()
            yield key, tensor.to(parameter.device, parameter.dtype) if beside else tensor


# --- differences -----------------------------------------------------------------------------------------------------


def other_model(kept: WindowState, live: StateOfTraining) -> str:
    """Return why the trained parameters are not those of the state, "" where they are."""
    trained = live.trained
    alone = [name for name in trained if name not in kept.tensors]
    if alone:
        return f"{listed(alone, _MOST_NAMES)} is not in the state"
    states = {name.rpartition("|")[0] for name in kept.tensors if "|" in name}
    alone = sorted(states - {name.rpartition("|")[0] for name in live.tensors if "|" in name})
    alone = [
        name for name in alone if name.lstrip("0123456789.") not in trained and name not in trained
    ]
    if alone:
        return f"{listed(alone, _MOST_NAMES)} is not trained here"
    for name, one in trained.items():
        if tuple(one.own.shape) != kept.tensors[name].shape:
            shapes = f"{_shape(one.own)} here and {kept.tensors[name].shape} there"
            return f"{name} is of shape {shapes}"
    return ""


def _without_partner(kept: WindowState, live: StateOfTraining) -> Iterator[str]:
    here = [name for name in live.tensors if name not in kept.tensors]
    there = [name for name in kept.tensors if name not in live.tensors]
    if here:
        yield f"{listed(here, _MOST_NAMES)}: not in the state"
    if there:
        yield f"{listed(there, _MOST_NAMES)}: not here"


def _counts(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a count: one number without a fraction, as how often an optimizer has stepped."""
    if tensor.numel() != 1 or tensor.dim() or tensor.is_complex():
        return False
    number = float(tensor)
    return math.isfinite(number) and number == int(number)


def _is_of_scaler(name: str) -> bool:
    """Whether it is the factor or the count of a GradScaler, which overflows decide."""
    return name.endswith(("._scale", "._growth_tracker"))


def _note_count(name: str, own: torch.Tensor, wanted: torch.Tensor, done: StateSet) -> None:
    if float(own) != float(wanted):
        done.differed.append(StateDifference(name, f"{float(wanted):g}", f"{float(own):g}"))


def _squares(own: torch.Tensor, wanted: torch.Tensor) -> tuple[float, float]:
    there = wanted.double()
    return float((own.cpu().double() - there).square().sum()), float(there.square().sum())


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
