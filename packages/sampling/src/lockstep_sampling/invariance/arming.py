"""Test the modules of a command in its own process, each at its first call, and end the process after that."""

from __future__ import annotations

import functools
import json
import os
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.nn import Module
from torch.optim.optimizer import register_optimizer_step_post_hook

from lockstep.errors import LockstepError
from lockstep.recorder import Patch
from lockstep_sampling.invariance.asked_command import VARIABLE, Request, written_by
from lockstep_sampling.invariance.cached_places import Begun
from lockstep_sampling.invariance.first_calls import NotTestedError, tested, unwrapped
from lockstep_sampling.invariance.module_arguments import goes_on
from lockstep_sampling.invariance.running import caller_place
from lockstep_sampling.invariance.wording import json_of_places

_MORE_CALLS = 32
"""Calls without a new module after which a command that trains nothing is ended."""


@dataclass(slots=True)
class ModuleCalls:
    """Each module that the script itself calls is tested at its first call with two rows or more.

    request: What was asked for.
    write: Takes what was found of a module.
    end: Ends the process.
    """

    request: Request
    write: Callable[[Mapping[str, Any]], None]
    end: Callable[[], None]
    _known: dict[int, Module] = field(default_factory=dict)
    _gone_on: set[int] = field(default_factory=set)
    _begun: weakref.WeakKeyDictionary[Module, Begun | None] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _numbers: weakref.WeakKeyDictionary[Module, int] = field(
        default_factory=weakref.WeakKeyDictionary
    )
    _refused: set[tuple[int, str]] = field(default_factory=set)
    _idle: int = 0
    _has_found: bool = False
    _inside: threading.local = field(default_factory=threading.local)

    def listen(self) -> Callable[[], None]:
        """Begin; returns what takes it back."""
        patch = Patch(Module, "__call__", self._wrapped)
        patch.put()
        handle = register_optimizer_step_post_hook(lambda *_: self._stepped())

        def stop() -> None:
            handle.remove()
            patch.take_back()

        return stop

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(module: Module, *args: Any, **kwargs: Any) -> Any:
            if getattr(self._inside, "is_on", False):
                return original(module, *args, **kwargs)
            self._inside.is_on = True
            try:
                self._look_at_cache(module, args, kwargs)
                self._look_at(module, args, kwargs)
                return original(module, *args, **kwargs)
            finally:
                self._inside.is_on = False

        return call

    def _look_at(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        is_known = id(module) in self._known
        if is_known and not self._goes_on(module, args, kwargs):
            self._pass_over()
            return
        about = self._about(module, goes_on=id(module) in self._gone_on)
        try:
            found = tested(module, args, kwargs, self.request)
        except NotTestedError as error:
            if is_known and not error.is_final:  # a later one may have more rows
                self._gone_on.discard(id(module))
                self._pass_over()
                return
            self._idle = 0
            if (id(module), str(error)) not in self._refused:
                self._refused.add((id(module), str(error)))
                self.write({**about, "not_tested": str(error)})
            if error.is_final:
                self._known[id(module)] = module
            return
        self._known[id(module)] = module
        if found["after_earlier_calls"]:
            self._gone_on.add(id(module))
        self._has_found, self._idle = True, 0
        self.write({**about, **found})

    def _about(self, module: Module, *, goes_on: bool) -> dict[str, Any]:
        file, line = caller_place()
        return {
            "number": self._numbers.setdefault(module, len(self._numbers)),
            "model": type(unwrapped(module)).__name__,
            "file": file,
            "line": line,
            "is_training": module.training,
            "after_earlier_calls": goes_on,
        }

    def _look_at_cache(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compare the first call of a module that goes on with one call of all tokens; nothing is said if it cannot."""
        begun = self._begun.get(module)
        if begun is None and module in self._begun:
            return
        with suppress(
            Exception
        ):  # an argument that cannot be copied, or the model's own of all tokens
            if not goes_on(args, kwargs):
                self._begun[module] = Begun.of(unwrapped(module), args, kwargs)
                return
            self._begun[module] = None
            if begun is not None:
                inner = unwrapped(module)
                found = begun.displaced_in(inner, args, kwargs, seed=self.request.seed)
                if found is not None:
                    about = self._about(module, goes_on=True)
                    self.write({**about, **json_of_places(found)})
                    self._has_found = True

    def _pass_over(self) -> None:
        self._idle += 1
        if self._has_found and self._idle > _MORE_CALLS:
            self.end()

    def _goes_on(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a call is the first of its module that goes on with what earlier calls left, as in a cache."""
        if id(module) in self._gone_on:
            return False
        with suppress(Exception):  # an argument that cannot be copied
            if goes_on(args, kwargs):
                self._gone_on.add(id(module))
                return True
        return False

    def _stepped(self) -> None:
        """A step of training has called what it calls."""
        if self._has_found:
            self.end()


def arm_from_environment() -> None:
    """Arm as `lockstep invariance -- CMD` asked for; does nothing where it did not."""
    text = os.environ.get(VARIABLE)
    if text:
        request = Request(**json.loads(text))
        ModuleCalls(request, functools.partial(_write, Path(request.folder)), _end).listen()


def _write(folder: Path, found: Mapping[str, Any]) -> None:
    """Append what was found to the file of this process."""
    try:
        with written_by(folder, os.getpid()).open("a") as file:
            file.write(json.dumps(found) + "\n")
    except OSError as error:
        raise LockstepError(f"{folder}: cannot be written ({error})") from error


def _end() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # past handlers of the script, which would save what it has not trained


__all__ = ["ModuleCalls", "arm_from_environment"]
