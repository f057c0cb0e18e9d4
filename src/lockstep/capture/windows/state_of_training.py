"""Find the tensors and generators that make up the state of the training in this process, each by a stable name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from lockstep.capture.ends.afterwards import Owners
from lockstep.capture.ends.holdings import Known, Walk
from lockstep.capture.ends.instances import forget_classes
from lockstep.capture.ends.outside import script_variables
from lockstep.capture.ends.states_at_deletion import (
    OptimizedNames,
    held_by_optimizer,
)
from lockstep.capture.modules.process_modules import NamedModule
from lockstep.capture.tensors.shards import local_part
from lockstep.capture.updates.parameter_groups import optimizer_name
from lockstep.capture.windows.live_generators import LiveGenerator, generator_of, global_generators
from lockstep.core.site import Role
from lockstep.core.states import HeldSetting, Standing

Shapes = frozenset[tuple[tuple[int, ...], int]]


@dataclass(frozen=True, slots=True)
class LiveTensor:
    """A tensor of the state: `is_trained` tells of parameters that an optimizer updates."""

    tensor: torch.Tensor
    role: Role
    is_trained: bool = False

    @property
    def own(self) -> torch.Tensor:
        """The part of this rank."""
        local = local_part(self.tensor)
        return self.tensor if local is None else local


@dataclass(slots=True)
class ScriptState:
    """What variables of the script lead to: containers by path, tensors, generators, scalers and settings."""

    places: dict[str, object] = field(default_factory=dict)
    tensors: list[tuple[str, torch.Tensor]] = field(default_factory=list)
    generators: dict[str, LiveGenerator] = field(default_factory=dict)
    scalers: list[str] = field(default_factory=list)
    settings: list[HeldSetting] = field(default_factory=list)


class _PlacedWalk(Walk):
    """Notes where each object was met, and generators."""

    def __init__(self, known: Known) -> None:
        super().__init__(known, {})
        self.found = ScriptState()

    def _visit(self, path: str, value: object, *, is_setting: bool, depth: int) -> None:
        generator = generator_of(value)
        if generator is not None:
            self.found.generators.setdefault(path, generator)
            return
        self.found.places[path] = value
        if isinstance(value, torch.amp.GradScaler):
            self.found.scalers.append(path)
        if isinstance(value, DataLoader):
            for name, held in _generators_of(value):
                self.found.generators.setdefault(f"{path}.{name}", held)
        super()._visit(path, value, is_setting=is_setting, depth=depth)


def _generators_of(loader: DataLoader[Any]) -> Iterator[tuple[str, LiveGenerator]]:
    for name, holder in (("generator", loader), ("sampler.generator", loader.sampler)):
        held = generator_of(getattr(holder, "__dict__", {}).get("generator"))
        if held is not None:
            yield name, held


def script_state(told: frozenset[int]) -> ScriptState:
    """Return what the script's variables lead to now; `told` are tensors and optimizers that are named elsewhere."""
    walk = _PlacedWalk(Known(told))
    holdings = walk.through(script_variables())
    forget_classes()
    walk.found.tensors = [one for one in holdings.tensors if id(one[1]) not in told]
    walk.found.settings = holdings.settings
    return walk.found


@dataclass(slots=True)
class StateOfTraining:
    """The state of the training, as live objects.

    tensors: All tensors by name.
    optimizers: Optimizers by name, with their parameters by name.
    """

    tensors: dict[str, LiveTensor] = field(default_factory=dict)
    optimizers: dict[str, tuple[Optimizer, dict[str, torch.Tensor]]] = field(default_factory=dict)

    @property
    def trained(self) -> dict[str, LiveTensor]:
        """Parameters that an optimizer updates."""
        return {name: one for name, one in self.tensors.items() if one.is_trained}


def state_of_training(
    modules: Sequence[NamedModule],
    optimizers: Sequence[Optimizer],
    owners: Owners,
    script: ScriptState,
    before: Mapping[str, object],
) -> StateOfTraining:
    """Return the state of the training.

    modules, optimizers: Those of the process.
    owners: Path and full name of parameters by identity.
    script: What variables of the script lead to.
    before: Containers by path as the step before ended: what was made since is no state, but of the step that begins.
    """
    found = StateOfTraining()
    names: dict[int, tuple[str, str]] = dict(owners)
    for module in modules:
        for held in module.held():
            names.setdefault(id(held.tensor), (held.module, held.name))
            trained = held.role is Role.PARAM and held.standing is Standing.TRAINED
            _add(found, held.name, held.tensor, held.role, is_trained=trained)
    by_module = frozenset(id(one.tensor) for one in found.tensors.values())
    for number, optimizer in enumerate(optimizers):
        prefix = f"{number}." if number else ""
        called = OptimizedNames(names, by_module, prefix)
        for held in held_by_optimizer(optimizer.state, optimizer.param_groups, called):
            is_state = held.role is Role.STATE
            name = f"{prefix}{held.name}" if is_state else held.name
            _add(found, name, held.tensor, held.role, is_trained=not is_state)
        found.optimizers[f"{prefix}{optimizer_name(optimizer)}"] = (
            optimizer,
            {names[id(one)][1]: one for one in _parameters(optimizer) if id(one) in names},
        )
    for path, tensor in _lasting(script, before, _shapes(modules, optimizers)):
        _add(found, path, tensor, Role.STATE)
    return found


def _add(
    found: StateOfTraining, name: str, tensor: torch.Tensor, role: Role, *, is_trained: bool = False
) -> None:
    if not is_lazy(tensor) and tensor.layout is torch.strided and not tensor.is_nested:
        found.tensors.setdefault(name, LiveTensor(tensor, role, is_trained))


def _parameters(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    for group in optimizer.param_groups:
        yield from group["params"]


# --- copies that the script holds ------------------------------------------------------------------------------------


def _lasting(
    script: ScriptState, before: Mapping[str, object], shapes: frozenset[Shapes]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors of scalers, and of containers that hold one tensor for each of the model's: means and copies of weights.

    A container that was made since the last step is left out: a batch is one.
    """
    grouped: dict[str, list[tuple[str, torch.Tensor]]] = {}
    for path, tensor in script.tensors:
        grouped.setdefault(parent_of(path), []).append((path, tensor))
    for parent, held in grouped.items():
        lasts = parent in script.places and before.get(parent) is script.places[parent]
        if parent in script.scalers or (lasts and _shapes_of(one for _, one in held) in shapes):
            yield from held


def parent_of(path: str) -> str:
    """Return the path of the container: `ema.shadow` of `ema.shadow['fc.weight']`."""
    if path.endswith("]"):
        quote = path[-2] if path[-2] in "'\"" else ""
        return path[: path.rindex(f"[{quote}", 0, len(path) - 2)]
    return path.rpartition(".")[0]


def _shapes(modules: Sequence[NamedModule], optimizers: Iterable[Optimizer]) -> frozenset[Shapes]:
    """The shapes that copies of a model have together: of its parameters, of those that are trained, of its state."""
    held = [one for module in modules for one in module.held()]
    parameters = [one for one in held if one.role is Role.PARAM]
    groups = [
        [one.tensor for one in held],
        [one.tensor for one in parameters],
        [one.tensor for one in parameters if one.tensor.requires_grad],
        *[list(_parameters(optimizer)) for optimizer in optimizers],
    ]
    return frozenset(_shapes_of(group) for group in groups if group)


def _shapes_of(tensors: Iterable[torch.Tensor]) -> Shapes:
    return frozenset(Counter(tuple(one.shape) for one in tensors).items())


def all_generators(script: ScriptState) -> dict[str, LiveGenerator]:
    """Return the generators of the process by name: global ones, and those that the script holds."""
    return global_generators() | {
        f"generator {path}": one for path, one in script.generators.items()
    }
