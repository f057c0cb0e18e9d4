"""Digest modules and optimizers when they are deleted, or when the process ends.

A script's model is gone when Python runs what is registered for its exit, where it was made inside of a function. So
each module is referred to weakly, and the dictionaries of its own tensors are held until it goes: tensors live exactly
as long as the module does. Where something on a tensor leads back to the module (a hook that knows it) that would keep
both alive for ever; of such a module nothing is held, and its end is seen only where it lives until the process ends.
"""

from __future__ import annotations

import gc
import os
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module
from torch.optim.optimizer import Optimizer

from lockstep.capture.calls.leaves import tensors_in
from lockstep.capture.modules.process_modules import NamedModule
from lockstep.capture.silence import Silence
from lockstep.capture.tensors.state_taker import Held, StateTaker
from lockstep.core.site import Role
from lockstep.core.states import Moment, Standing

_MOST_VISITED = 100_000
"""Objects that are looked at for a way back to what holds a tensor; where there are more, one is taken to exist."""


@dataclass(frozen=True, slots=True)
class OptimizedNames:
    """The names of an optimizer's parameters: path of the module and full name, by identity.

    `held_by_modules` are those that a watched module holds, so that they are taken from there; `optimizer` stands
    before the place of one that has no name.
    """

    owners: Mapping[int, tuple[str, str]]
    held_by_modules: frozenset[int]
    optimizer: str = ""


@dataclass(slots=True)
class _Watched:
    """Something that will go: gives what it holds, from itself or from what is held of it in its stead."""

    reference: weakref.ref[Any]
    of_living: Callable[[Any], Iterable[Held]]
    of_gone: Callable[[], Iterable[Held]] | None


@dataclass
class LastStates:
    """Takes the state of modules and optimizers at their end.

    taker: Takes what they hold.
    step_now: How many steps have ended.
    wants: Whether a tensor is wanted, by the path of its module and its name.
    """

    taker: StateTaker
    step_now: Callable[[], int]
    wants: Callable[[str, str], bool]
    unseen: list[str] = field(default_factory=list)
    """What went without that its end could be seen."""
    failures: list[Exception] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._watched: dict[int, _Watched] = {}
        self._process = os.getpid()
        self._handles: list[Any] = []

    def watch_module(self, named: NamedModule) -> None:
        """Take the state of a module when it goes."""
        module, of_gone = named.module, named.of_gone
        parameters, buffers = module._parameters, module._buffers
        gone: Callable[[], Iterable[Held]] | None = None
        if not _leads_to((parameters, buffers), module):

            def gone() -> Iterable[Held]:
                return of_gone(parameters, buffers)

        def living(module: Module) -> Iterable[Held]:
            return of_gone(module._parameters, module._buffers)

        self._watch(module, named.path, living, gone)

    def watch_optimizer(self, optimizer: Optimizer, names: OptimizedNames) -> None:
        """Take the state of an optimizer when it goes, and the parameters that no module holds."""
        parts: list[Any] = [optimizer.state, optimizer.param_groups]
        living = _of_optimizer(names)
        gone: Callable[[], Iterable[Held]] | None = None
        if not _leads_to(parts, optimizer):

            def gone() -> Iterable[Held]:
                return held_by_optimizer(parts[0], parts[1], names)

            def loaded(loaded: Optimizer) -> None:
                parts[:] = loaded.state, loaded.param_groups

            if "_optimizer_load_state_dict_post_hooks" in vars(optimizer):
                self._handles.append(optimizer.register_load_state_dict_post_hook(loaded))
        self._watch(optimizer, type(optimizer).__name__, living, gone)

    def _watch(
        self,
        what: Any,
        name: str,
        of_living: Callable[[Any], Iterable[Held]],
        of_gone: Callable[[], Iterable[Held]] | None,
    ) -> None:
        number, watched = id(what), self._watched

        def went(_: object) -> None:
            item = watched.pop(number, None)
            if item is None or os.getpid() != self._process:
                return
            if item.of_gone is None:
                self.unseen.append(name)
            else:
                self._take(item.of_gone())

        watched[number] = _Watched(weakref.ref(what, went), of_living, of_gone)

    def _take(self, held: Iterable[Held]) -> None:
        with Silence(self.failures.append):
            wanted = (one for one in held if self.wants(one.module, one.name))
            self.taker.take(Moment.END, self.step_now(), wanted)

    def finish(self) -> None:
        """The end has come: take what still lives, and let go."""
        for number in list(self._watched):
            item = self._watched.pop(number, None)
            living = None if item is None else item.reference()
            if item is not None and living is not None:
                self._take(item.of_living(living))
        self.forget()

    def forget(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()


def _of_optimizer(names: OptimizedNames) -> Callable[[Optimizer], Iterable[Held]]:
    return lambda optimizer: held_by_optimizer(optimizer.state, optimizer.param_groups, names)


def held_by_optimizer(
    state: Mapping[Any, Any], groups: Iterable[Mapping[str, Any]], names: OptimizedNames
) -> Iterator[Held]:
    """The state of an optimizer, and those of its parameters that no module holds."""
    called: dict[int, tuple[str, str]] = {}
    for number, group in enumerate(groups):
        for place, parameter in enumerate(group["params"]):
            by_place = "", f"{names.optimizer}param_groups[{number}].params[{place}]"
            called[id(parameter)] = owner = names.owners.get(id(parameter), by_place)
            if id(parameter) not in names.held_by_modules:
                yield Held(*owner, Role.PARAM, Standing.TRAINED, parameter)
    for key, values in state.items():
        owner = called.get(id(key), ("", "")) if isinstance(key, torch.Tensor) else ("", str(key))
        if isinstance(values, Mapping) and owner[1]:
            for inner, tensor in tensors_in(dict(values), ""):
                name = f"{owner[1]}|{inner.removeprefix('.')}"
                yield Held(owner[0], name, Role.STATE, Standing.TRAINED, tensor)


def _leads_to(holds: Iterable[Any], holder: object) -> bool:
    """Whether what is held leads back to the object that holds it, as far as Python can tell."""
    waiting, seen = list(holds), set[int]()
    while waiting:
        item = waiting.pop()
        if item is holder or len(seen) > _MOST_VISITED:
            return True
        # By its type: what an object itself says of its class may raise.
        if id(item) in seen or issubclass(type(item), (type, types.ModuleType, str, int, float)):
            continue
        seen.add(id(item))
        if issubclass(type(item), torch.Tensor) and _has_graph(item):
            return True  # what a graph keeps alive, Python does not tell
        waiting.extend(_referents(item))
    return False


def _has_graph(tensor: torch.Tensor) -> bool:
    try:
        return tensor.grad_fn is not None
    except (
        RuntimeError
    ):  # a view that was written to in a way that autograd forbids, as FSDP1's parameters are
        return True


def _referents(item: object) -> Iterable[object]:
    """What an object leads to; a function does not lead to all that its file names."""
    if type(item) is types.FunctionType:
        return (item.__closure__, item.__defaults__, item.__kwdefaults__, item.__dict__)
    if type(item) is dict and "__builtins__" in item:
        return ()
    return gc.get_referents(item)
