"""Find every module of the process whose tensors may matter: recorded ones, and others beside them.

Beside are a mean of weights, a target network, a teacher, the other half of a pair of networks. They are called by
their class, and by how many of it were made before, whether these live or not: what Python has collected by now is left
to chance. Their parts are called as by `named_modules`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import Module

from lockstep.capture.modules.live_modules import LivingModules
from lockstep.capture.modules.module_paths import ModuleNames, clean_tree, plain_class
from lockstep.capture.tensors.state_taker import Held
from lockstep.core.site import Role
from lockstep.core.states import Standing


@dataclass(frozen=True, slots=True)
class NamedModule:
    """A module with its path, and what it is to the training.

    `left_out` are full names of its tensors that are told elsewhere: second names of one that another module holds;
    `trained` gives whether an optimizer holds a tensor, by its identity.
    """

    module: Module
    path: str
    standing: Standing
    left_out: frozenset[str]
    trained: frozenset[int]

    def held(self) -> Iterator[Held]:
        """Its own tensors."""
        yield from self.held_in(self.module._parameters, self.module._buffers)

    @property
    def of_gone(self) -> HeldIn:
        """Gives its own tensors by its dictionaries, without the module itself."""
        return replace(self, module=_NO_MODULE).held_in

    def held_in(
        self,
        parameters: Mapping[str, torch.Tensor | None],
        buffers: Mapping[str, torch.Tensor | None],
    ) -> Iterator[Held]:
        """The tensors of such a module, by its dictionaries."""
        for role, tensors in ((Role.PARAM, parameters), (Role.BUFFER, buffers)):
            for key, tensor in tensors.items():
                name = f"{self.path}.{key}" if self.path else key
                if tensor is not None and name not in self.left_out:
                    trained = id(tensor) in self.trained
                    standing = Standing.TRAINED if trained else self.standing
                    yield Held(self.path, name, role, standing, tensor)


_NO_MODULE: Any = None
HeldIn = Callable[[Mapping[str, Any], Mapping[str, Any]], Iterator[Held]]


def held_modules(
    names: ModuleNames, living: LivingModules, trained: Iterable[torch.Tensor]
) -> list[NamedModule]:
    """All of them, each once, those that were met first.

    names: Knows those that were met.
    living: Knows all.
    trained: What optimizers hold.
    """
    by_optimizers, second_names = frozenset(map(id, trained)), frozenset(names.tied())
    found = [
        NamedModule(module, path, Standing.MET, second_names, by_optimizers)
        for path, module in names.modules()
    ]
    met = {id(named.module) for named in found}
    told = set(names.owners)
    for path, module in _beside(living, met):
        own = {f"{path}.{key}": tensor for key, tensor in _own(module)}
        left_out = frozenset(name for name, tensor in own.items() if id(tensor) in told)
        if len(left_out) < len(own):
            told.update(map(id, own.values()))
            standing = Standing.BEFORE if living.was_before(module) else Standing.BESIDE
            found.append(NamedModule(module, path, standing, left_out, by_optimizers))
    return found


def _beside(living: LivingModules, met: set[int]) -> Iterator[tuple[str, Module]]:
    """Modules that were not met, with their paths."""
    for top in living.tops():
        if not _is_made_by_compiler(top):
            place = living.place_of(top)
            label = f"{plain_class(type(top)).__name__}{f'_{place}' if place else ''}"
            for path, module in clean_tree(top, label, {}, {}):
                if id(module) not in met:
                    yield path, module


def _own(module: Module) -> list[tuple[str, torch.Tensor]]:
    own = (*module._parameters.items(), *module._buffers.items())
    return [(key, tensor) for key, tensor in own if tensor is not None]


def _is_made_by_compiler(module: Module) -> bool:
    """Whether a module holds what torch has captured of others."""
    graphs = sys.modules.get("torch.fx.graph_module")
    return graphs is not None and isinstance(module, graphs.GraphModule)
