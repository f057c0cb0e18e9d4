"""Keep the end of a training that goes on with a model and an optimizer that are made anew."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import Module
from torch.optim.optimizer import Optimizer

from lockstep.capture.ends.states_at_deletion import LastStates, OptimizedNames
from lockstep.capture.modules.live_modules import living
from lockstep.capture.modules.module_paths import clean_tree
from lockstep.capture.modules.process_modules import NamedModule
from lockstep.core.states import Standing

Places = list[list[tuple[str, str]]]
"""Path of the module and full name of each parameter of an optimizer, by group and place."""

_MOST_LOOKED_FOR = 8
"""Times that the whole heap is looked at for the modules of a model; later ones lend their parameters alone."""
MOST_KEPT = 8
"""Ends that are kept of models that a training went on without; of later ones the last alone is."""


@dataclass(slots=True)
class _Known:
    """An optimizer with the names of its parameters."""

    parameters: list[weakref.ref[torch.Tensor]]
    places: Places
    names: OptimizedNames


class MadeAnew:
    """Keeps what the optimizers hold that go on with a training, each apart, by the names of the first.

    last_states: Makes what takes the states of one of them.
    """

    def __init__(self, last_states: Callable[[], LastStates]) -> None:
        self._last_states = last_states
        self._known: dict[int, _Known] = {}
        self._kept: dict[int, LastStates] = {}
        self._looked_for = 0

    def begin(self, optimizers: Sequence[Optimizer], names: Sequence[OptimizedNames]) -> None:
        """Learn the names of the optimizers that there are behind the last recorded step."""
        for optimizer, called in zip(optimizers, names, strict=True):
            self._learn(optimizer, called)

    def _learn(self, optimizer: Optimizer, names: OptimizedNames) -> None:
        groups = [group["params"] for group in optimizer.param_groups]
        places = [
            [
                names.owners.get(id(parameter), ("", f"param_groups[{number}].params[{place}]"))
                for place, parameter in enumerate(group)
            ]
            for number, group in enumerate(groups)
        ]
        parameters = [weakref.ref(parameter) for group in groups for parameter in group]
        self._known[id(optimizer)] = _Known(parameters, places, names)

    def goes_on(self, earlier: int, optimizer: Optimizer) -> None:
        """An optimizer goes on with the training of an earlier one."""
        known = self._known.get(earlier)
        if known is None:
            return
        held = {id(parameter): parameter for parameter in _parameters_of(optimizer)}
        alive = {id(one()) for one in known.parameters if one() is not None}
        modules: list[NamedModule] = []
        if alive & held.keys():
            owners = {
                number: known.names.owners[number] for number in alive & known.names.owners.keys()
            }
            by_modules = known.names.held_by_modules
        else:
            owners = _by_place(optimizer, known.places)
            modules = self._modules_of(owners)
            by_modules = frozenset(id(one.tensor) for named in modules for one in named.held())
        names = replace(known.names, owners=owners, held_by_modules=by_modules)
        self._learn(optimizer, names)
        self._watch(optimizer, names, modules)

    def _watch(
        self, optimizer: Optimizer, names: OptimizedNames, modules: Sequence[NamedModule]
    ) -> None:
        if len(self._kept) >= MOST_KEPT:
            self._forget(next(reversed(self._kept)))
        states = self._kept[id(optimizer)] = self._last_states()
        for named in modules:
            states.watch_module(named)
        states.watch_optimizer(optimizer, names)

    def _modules_of(self, owners: Mapping[int, tuple[str, str]]) -> list[NamedModule]:
        """The modules of a model that hold these parameters, by the paths of the model before it."""
        if self._looked_for >= _MOST_LOOKED_FOR:
            return []
        self._looked_for += 1
        modules = [one for one in living(Module) if "_modules" in vars(one)]
        children = {id(child) for one in modules for child in one._modules.values()}
        found = []
        for top in (one for one in modules if id(one) not in children):
            tree = list(clean_tree(top, "", {}, {}))
            outside = _path_outside(tree, owners)
            if outside is not None:
                named = _named(tree, outside, frozenset(owners))
                found += named
        return found

    def went_back(self, later: int) -> None:
        """An optimizer did not go on with the training after all."""
        self._forget(later)
        self._known.pop(later, None)

    def _forget(self, number: int) -> None:
        states = self._kept.pop(number, None)
        if states is not None:
            states.forget()

    def finish(self) -> list[LastStates]:
        """The end has come: what was kept of each, in order of time."""
        for states in self._kept.values():
            states.finish()
        return list(self._kept.values())

    def forget(self) -> None:
        """Watch nothing any more."""
        for number in list(self._kept):
            self._forget(number)


def _parameters_of(optimizer: Optimizer) -> Iterator[torch.Tensor]:
    return (parameter for group in optimizer.param_groups for parameter in group["params"])


def _by_place(optimizer: Optimizer, places: Places) -> dict[int, tuple[str, str]]:
    return {
        id(parameter): place
        for group, names in zip(optimizer.param_groups, places, strict=True)
        for parameter, place in zip(group["params"], names, strict=True)
    }


def _path_outside(
    tree: Sequence[tuple[str, Module]], owners: Mapping[int, tuple[str, str]]
) -> tuple[str, str] | None:
    """What stands before the paths of a tree where they name the earlier model, or is to be left out of them."""
    for path, module in tree:
        for key, parameter in module._parameters.items():
            owner = owners.get(id(parameter))
            if owner is not None:
                own = f"{path}.{key}" if path else key
                if owner[1].endswith(own):
                    return owner[1].removesuffix(own), ""
                return ("", own.removesuffix(owner[1])) if own.endswith(owner[1]) else None
    return None


def _named(
    tree: Sequence[tuple[str, Module]], outside: tuple[str, str], trained: frozenset[int]
) -> list[NamedModule]:
    before, left_out = outside
    within = [(path, module) for path, module in tree if f"{path}.".startswith(left_out)]
    return [
        NamedModule(
            module,
            f"{before}{f'{path}.'.removeprefix(left_out)}".strip("."),
            Standing.MET,
            frozenset(),
            trained,
        )
        for path, module in within
    ]
