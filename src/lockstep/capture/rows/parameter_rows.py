"""Rows of modules and parameters: what each is called, and its numbers before the first step."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Sequence

import torch
from torch.nn.parameter import is_lazy

from lockstep.capture.calls.call_places import Place
from lockstep.capture.calls.leaves import plain_attributes
from lockstep.capture.modules.module_paths import Adopted, ModuleNames, class_name, is_wrapper
from lockstep.capture.rows.gaps import Gaps, gap_of
from lockstep.capture.rows.rows import Rows
from lockstep.capture.settings.wrapper_options import wrapper_options
from lockstep.capture.tensors.contents import Contents
from lockstep.core.selection import SiteFilter
from lockstep.core.site import CallKind, Phase, Role
from lockstep.devices.methods import numel


class ParameterRows:
    """Names modules and parameters as they are met, and records their trees and initial numbers.

    rows, contents: Take what is recorded.
    names: Names of modules and parameters.
    sites: Which sites are wanted.
    gaps: Takes what is not seen.
    watch_parameters, trained, for_rules: See `Session`.

    wrappers: Settings of wrappers, by name.
    """

    def __init__(
        self,
        rows: Rows,
        contents: Contents,
        names: ModuleNames,
        sites: SiteFilter,
        gaps: Gaps,
        *,
        watch_parameters: Callable[[Sequence[torch.Tensor] | None], None],
        trained: Callable[[], frozenset[int]],
        for_rules: bool,
    ) -> None:
        self._rows, self._contents, self.names = rows, contents, names
        self._sites, self._gaps = sites, gaps
        self._watch_parameters, self._trained = watch_parameters, trained
        self._for_rules = for_rules
        self._init_done: set[int] = set()
        self._has_begun = False
        self.wrappers: dict[str, str] = {}

    def start_anew(self) -> None:
        """Nothing of what was recorded counts."""
        self.names.start_anew()
        self._init_done.clear()
        self._has_begun = False

    def adopt(self, module: torch.nn.Module) -> None:
        """Record the tree of a root module met for the first time: its shape and its initial parameters."""
        self._describe(self.names.adopt(module))

    def adopt_child(self, module: torch.nn.Module, parent: torch.nn.Module, path: str) -> None:
        """Record a module that appeared inside a running one, whose path is given."""
        self._describe(self.names.adopt_child(module, parent, path))

    def path_of(self, module: torch.nn.Module, place: Place | None) -> str:
        """Path of a module; its tree is recorded where it is met for the first time."""
        path = self.names.path_of(module)
        if path is None:
            if place is not None and place.module is not None:
                self.adopt_child(module, place.module, place.path)
            else:
                self.adopt(module)
            self._watch_parameters(None)
            path = self.names.path_of(module) or ""
        return path

    def _describe(self, adopted: Adopted) -> None:
        own = (_own_tensors(module) for _, module in adopted.modules)
        self._contents.expect(itertools.chain.from_iterable(own))
        for path, child in adopted.modules:
            count = sum(numel(tensor) for tensor in _own_tensors(child))
            if not is_wrapper(child):
                settings = json.dumps(plain_attributes(child))
                self._rows.add_module((path, class_name(child), count, child.training, settings))
            self._initial(path, child)
            self._gaps.add(gap_of(child))
            self.wrappers.update(wrapper_options(child))

    def adopt_parameter(self, tensor: torch.Tensor, name: str | None) -> bool:
        """Name a parameter that is met outside of its module, as its module does, or by its optimizer.

        `name` is that by its optimizer, None where none holds it. Returns whether it has a name now.
        """
        if self.names.owner_of(tensor) is not None:
            return True
        holder = self.names.holder_of(tensor)
        if holder is not None and self.names.path_of(holder) is None:
            self.adopt(holder)
        elif holder is not None:
            self.names.refresh()
        elif name is not None:
            self._adopt_alone(tensor, name)
            return True
        elif tensor.requires_grad and not self._trained():
            # Without any optimizer, a leaf that takes a gradient is what the script trains.
            self._adopt_alone(tensor, self.names.name_for_alone())
            return True
        else:
            return False
        self._watch_parameters(None)
        return True

    def _adopt_alone(self, tensor: torch.Tensor, name: str) -> None:
        self.names.own(tensor, name)
        call = self._rows.plain_call(CallKind.INIT, Phase.INIT, "", "torch.nn.Parameter", ())
        self._rows.add_record(
            call, Phase.INIT, Role.PARAM, 0, name, self._contents.entering(tensor)
        )
        self._rows.add_call(call)
        self._watch_parameters([tensor])

    def _initial(self, path: str, module: torch.nn.Module) -> None:
        tensors: list[tuple[Role, str, torch.Tensor]] = [
            (Role.PARAM, name, tensor)
            for name, tensor in module._parameters.items()
            if tensor is not None
        ]
        tensors += [
            (Role.BUFFER, name, tensor)
            for name, tensor in module._buffers.items()
            if tensor is not None
        ]
        fresh = [
            item for item in tensors if id(item[2]) not in self._init_done and not is_lazy(item[2])
        ]
        if not fresh:
            return
        if not self._sites.wants(path, class_name(module)):
            for _, _, tensor in fresh:
                self._contents.note(tensor)
            return
        stack = self._made_at(module, fresh)
        call = self._rows.plain_call(
            CallKind.INIT, Phase.INIT, path, class_name(module), (), stack=stack
        )
        for index, (role, name, tensor) in enumerate(fresh):
            self._init_done.add(id(tensor))
            full = f"{path}.{name}" if path else name
            self._rows.add_record(
                call, Phase.INIT, role, index, full, self._contents.entering(tensor)
            )
        self._rows.add_call(call)

    def _made_at(
        self, module: torch.nn.Module, tensors: Sequence[tuple[Role, str, torch.Tensor]]
    ) -> int:
        """Number of the stack at which a module's buffers were registered; -1 where it begins with parameters too."""
        if any(role is not Role.BUFFER for role, _, _ in tensors):
            return -1
        told = self.names.made_at(module, (name for _, name, _ in tensors))
        return -1 if told is None else self._rows.stack_told(told, -1)

    def remember(self) -> None:
        """A step begins: parameters are what they are before it."""
        for tensor, path, name in list(self.names.owners.values()):
            if not self._sites.wants(path, name) or self._for_rules:
                self._contents.note(tensor)
            elif self._has_begun:
                self._contents.of(tensor, source=True)
            else:
                self._contents.entering(tensor)
        self._has_begun = True


def _own_tensors(module: torch.nn.Module) -> Iterator[torch.Tensor]:
    """A module's own parameters and buffers that have elements by now."""
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None and not is_lazy(tensor):
            yield tensor
