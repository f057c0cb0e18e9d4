"""Collect tensors, arrays, modes and settings that a script's own variables lead to at the end of a training.

Variables of the functions that hold the training's loop are gone when the process ends, so these are looked at when
each of the functions returns. Variables of files are looked at when the recording is closed. Of everything there is
kept what `StateTaker` keeps, and nothing is kept alive.
"""

from __future__ import annotations

import json
import os
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import Module
from torch.optim.optimizer import Optimizer

from lockstep.capture.ends.function_ends import (
    FunctionEnds,
    Variables,
    name_of,
    variables_of,
)
from lockstep.capture.ends.holdings import Known, Walk
from lockstep.capture.ends.instances import attributes_of, forget_classes, module_of
from lockstep.capture.modules.process_modules import NamedModule
from lockstep.capture.patching.callers import without_us
from lockstep.capture.silence import Silence
from lockstep.capture.source_code.user_code import is_of_the_user
from lockstep.capture.tensors.state_taker import Held, StateTaker
from lockstep.core.site import Role
from lockstep.core.states import HeldSetting, Moment, Standing
from lockstep.store.encoding import Row

_LEAST_BYTES = 1 << 30
_TIMES_THE_TRAINING = 8
"""Bytes of tensors that are digested at a look, in those of what is trained: copies, means and states of it are each as
large. At least a gibibyte, which takes less than a second."""

_MAIN = "__main__"


class Outside:
    """Looks at what the script holds.

    save: "stats", "sketch" or "tensors", as for contents; no tensor is kept whole.
    kept: Gives what is kept of a text.
    step_now: How many steps have ended.
    wants: Whether a tensor is wanted, by the path of its module and its name.
    """

    def __init__(
        self,
        save: str,
        kept: Callable[[str], str],
        step_now: Callable[[], int],
        wants: Callable[[str, str], bool],
    ) -> None:
        self._taker = StateTaker(save, kept)
        self._kept, self._step_now, self._wants = kept, step_now, wants
        self._ends = FunctionEnds()
        self._settings: dict[str, HeldSetting] = {}
        self._cuts: list[str] = []
        self._failures: list[Exception] = []
        self._loops: set[tuple[int, types.CodeType]] | None = None
        self._modules: list[tuple[weakref.ref[Module], NamedModuleName]] = []
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._tensors: list[tuple[weakref.ref[torch.Tensor], str]] = []
        self._numbers_before: dict[int, dict[str, object]] = {}
        self._most_bytes = _LEAST_BYTES
        self._files: set[str] = set()
        self._made_before: set[int] = set()
        self._process = os.getpid()

    def first(self) -> None:
        """The first recorded step has ended, and is not the last: note which functions run."""
        self._loops = {(id(frame), frame.f_code) for frame in _functions()}
        self._files |= _files_of_functions()

    def begin(self, modules: Sequence[NamedModule], optimizers: Iterable[Optimizer]) -> None:
        """The last recorded step has ended: wait for the functions that run since the first one to return."""
        self._files |= _files_of_functions() | {module_of(type(one.module)) for one in modules}
        self._modules = [(weakref.ref(one.module), (one.path, one.left_out)) for one in modules]
        self._optimizers = [weakref.ref(one) for one in optimizers]
        self._made_before = {id(one.module) for one in modules if one.standing is Standing.BEFORE}
        self._tensors = [
            (weakref.ref(one.tensor), one.name) for module in modules for one in module.held()
        ]
        self._numbers_before = {
            id(one.module): {
                name: value
                for name, value in attributes_of(one.module)
                if type(value) in (int, float)
            }
            for one in modules
        }
        held = sum(_size_bytes(one.tensor) for module in modules for one in module.held())
        self._most_bytes = max(_LEAST_BYTES, _TIMES_THE_TRAINING * held)
        for frame in _functions():
            if self._loops is None or (id(frame), frame.f_code) in self._loops:
                self._watch(frame)

    def _watch(self, frame: types.FrameType) -> None:
        name = name_of(frame.f_code)

        def returned(variables: Variables) -> None:
            if os.getpid() == self._process:
                self._look(_as_roots(f"{name}.", variables))

        if not self._ends.watch(frame, returned):
            self._cuts.append(f"the variables of {name}, of which no end is heard in this Python")

    def finish(self) -> None:
        """The end has come: look at what functions that still run, and files, lead to."""
        running = list(_functions())
        waited = [frame for frame in running if self._ends.waits_for(frame)]
        roots = [
            root
            for frame in waited
            for root in _as_roots(f"{name_of(frame.f_code)}.", variables_of(frame))
        ]
        unheard = self._ends.unheard
        for frame in waited:
            unheard.remove(name_of(frame.f_code))
        self._cuts += [f"the variables of {name}, which did not return" for name in unheard]
        self._look([*roots, *_of_files(self._files), *self._of_training()])
        self._failures += self._ends.failures
        self.forget()

    def forget(self) -> None:
        """Wait for nothing any more."""
        self._ends.stop()
        self._modules.clear()
        self._optimizers.clear()
        self._tensors.clear()

    def rows(self) -> tuple[list[Row], list[Row]]:
        """Rows of `schema.STATES` and of `schema.HELD_SETTINGS`."""
        settings: list[Row] = [
            (self._kept(one.path), _as_json(one.value), one.moves)
            for one in self._settings.values()
        ]
        return self._taker.rows(Moment.END), settings

    @property
    def not_seen(self) -> str:
        """Words about variables that were not looked at, "" if all were."""
        if self._failures:
            error = self._failures[0]
            return f"{type(error).__name__}: {error}"
        more = f", and {len(self._cuts) - 1} more" if len(self._cuts) > 1 else ""
        return f"{self._kept(self._cuts[0])}{more}" if self._cuts else ""

    # --- a look ---------------------------------------------------------------------------------

    def _look(self, roots: Iterable[tuple[str, object]]) -> None:
        seen: dict[int, object] = {}
        with Silence(self._failures.append):
            found = Walk(self._known(), seen).through(roots)
            if found.cut:
                self._cuts.append(found.cut)
            for one in found.settings:
                self._settings.setdefault(one.path, one)
            self._taker.take(Moment.END, self._step_now(), list(self._chosen(found.tensors)))
        forget_classes()

    def _chosen(self, tensors: list[tuple[str, torch.Tensor]]) -> Iterator[Held]:
        """Those that are wanted, as far as there are not too many bytes of them."""
        told, counted, left = self._told(), set[int](), self._most_bytes
        for path, tensor in tensors:
            if not self._wants("", path):
                continue
            size = 0 if id(tensor) in counted else _size_bytes(tensor)
            if size > left:
                self._cuts.append(f"{path} of {size} bytes, as there is too much")
                continue
            counted.add(id(tensor))
            left -= size
            standing = Standing.TRAINED if id(tensor) in told else Standing.OUTSIDE
            yield Held("", self._kept(path), Role.STATE, standing, tensor)

    def _known(self) -> Known:
        names = dict(self._names())
        told = frozenset((*self._told(), *(id(one) for one in self._living_optimizers())))
        return Known(told, names, self._numbers_before)

    def _told(self) -> frozenset[int]:
        parameters = (
            id(parameter)
            for optimizer in self._living_optimizers()
            for group in optimizer.param_groups
            for parameter in group["params"]
        )
        return frozenset((*(identity for identity, _ in self._names()), *parameters))

    def _names(self) -> Iterator[tuple[int, str]]:
        """Identities and names of parameters and buffers, also of those whose module is gone."""
        for reference, name in self._tensors:
            tensor = reference()
            if tensor is not None:
                yield id(tensor), name
        for module, (path, left_out) in self._living_modules():
            for tensors in (module._parameters, module._buffers):
                for key, tensor in tensors.items():
                    name = f"{path}.{key}" if path else key
                    if tensor is not None and name not in left_out:
                        yield id(tensor), name

    def _living_modules(self) -> Iterator[tuple[Module, NamedModuleName]]:
        for reference, name in self._modules:
            module = reference()
            if module is not None:
                yield module, name

    def _living_optimizers(self) -> Iterator[Optimizer]:
        return (one for reference in self._optimizers if (one := reference()) is not None)

    def _of_training(self) -> Iterator[tuple[str, object]]:
        """Modules and optimizers of the training, which no variable may lead to."""
        for module, (path, _) in self._living_modules():
            if (
                id(module) not in self._made_before
            ):  # what a process has left of those is left to chance
                yield path or "model", module
        for number, optimizer in enumerate(self._living_optimizers()):
            yield f"optimizer_{number}" if number else "optimizer", optimizer


def script_variables() -> list[tuple[str, object]]:
    """Return what the script's variables hold now by their paths: of functions that run, then of its files."""
    of_functions = [
        root
        for frame in _functions()
        for root in _as_roots(f"{name_of(frame.f_code)}.", variables_of(frame))
    ]
    return [*of_functions, *_of_files(_files_of_functions())]


def _size_bytes(tensor: torch.Tensor) -> int:
    """How much there is to read of a tensor; 0 of one that is recorded by its shape alone, as a sparse one."""
    try:
        return tensor.nbytes
    except (RuntimeError, NotImplementedError):  # a layout without strides
        return 0


NamedModuleName = tuple[str, frozenset[str]]
"""Path of a module, and full names of its tensors that are told elsewhere."""


def _functions() -> Iterator[types.FrameType]:
    """Functions of the script that run in this thread, the innermost first."""
    for frame in without_us(sys._getframe(1)):
        if frame.f_code.co_name != "<module>" and _is_of_script(frame):
            yield frame


def _files_of_functions() -> set[str]:
    """Modules that the functions of the script are in which run in this thread."""
    names = {
        frame.f_globals.get("__name__")
        for frame in without_us(sys._getframe(1))
        if _is_of_script(frame)
    }
    return {name for name in names if type(name) is str}


def _is_of_script(frame: types.FrameType) -> bool:
    return frame.f_globals.get("__name__") == _MAIN or is_of_the_user(
        str(Path(frame.f_code.co_filename).absolute())
    )


def _as_roots(prefix: str, variables: Variables) -> list[tuple[str, object]]:
    return [
        (f"{prefix}{name}", value) for name, value in variables.items() if not _is_pythons(name)
    ]


def _is_pythons(name: object) -> bool:
    return type(name) is not str or (name.startswith("__") and name.endswith("__"))


def _of_files(names: Iterable[str]) -> Iterator[tuple[str, object]]:
    """Variables of the script, and of files of the user's that it reaches.

    names: Modules that the training is known to run code of. What no name in these leads to, as other files of tests in
        the same process, is none of the training's.
    """
    waiting, reached = [_MAIN, *sorted(names)], dict[str, types.ModuleType]()
    while waiting:
        name = waiting.pop()
        module = sys.modules.get(name)
        if name in reached or type(module) is not types.ModuleType or not _is_of_user(name, module):
            continue
        reached[name] = module
        waiting += [_home_of(value) for value in list(module.__dict__.values())]
    for name, module in sorted(reached.items(), key=lambda item: (item[0] != _MAIN, item[0])):
        yield from _as_roots("" if name == _MAIN else f"{name}.", dict(module.__dict__))


def _is_of_user(name: str, module: types.ModuleType) -> bool:
    file = module.__dict__.get("__file__")
    return name == _MAIN or (type(file) is str and is_of_the_user(file))


def _home_of(value: Any) -> str:
    """The name of the module that a value is, or that its function or class was made in; "" where that is not told."""
    kind = type(value)
    if kind is types.ModuleType:
        found: object = value.__dict__.get("__name__")
    elif kind is types.FunctionType:
        found = value.__module__
    else:
        found = module_of(value if issubclass(kind, type) else kind)
    return found if type(found) is str else ""


def _as_json(value: object) -> str:
    return json.dumps(value)
