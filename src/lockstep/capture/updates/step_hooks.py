"""Hooks at the steps of all optimizers, which may come and go while other threads make theirs.

torch goes through its hooks without a lock: where one is added or taken away meanwhile, by another thread or by a hook,
it ends that step of the training with an error. What stands at a place may be exchanged. So a hook whose place cannot
be given back yet leaves a function there that does nothing, and the place is given back later.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

from torch.utils.hooks import RemovableHandle

_Hook = Callable[..., None]

_left: list[StepHook] = []

_stepping: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


class StepHook:
    """A hook at the steps of all optimizers.

    register: torch's function that puts it in place.
    hook: What is called.
    """

    def __init__(self, register: Callable[[Any], RemovableHandle], hook: _Hook) -> None:
        self._handle = register(hook)
        hooks = self._handle.hooks_dict_ref()
        assert hooks is not None, "torch keeps its hooks for as long as it is loaded"
        self._hooks: MutableMapping[int, _Hook] = hooks

    def put_first(self) -> None:
        """Have it called before all others that are there."""
        in_order: Any = self._hooks  # an OrderedDict
        in_order.move_to_end(self._handle.id, last=False)

    def exchange(self, hook: _Hook) -> None:
        """Call something else at the same place."""
        self._hooks[self._handle.id] = hook

    def take_away(self, *, called_now: bool = False) -> None:
        """Call nothing any more.

        called_now: Whether this thread may be inside of a hook of an optimizer.
        """
        is_last = self._handle.id == list(self._hooks)[-1]
        if others_step() or (called_now and not is_last):
            self.exchange(_nothing)
            _left.append(self)
        else:
            self._handle.remove()


def steps_here() -> None:
    """Note that this thread makes steps of optimizers."""
    _stepping.add(threading.current_thread())


def others_step() -> bool:
    """Whether another thread lives that makes steps of optimizers."""
    here = threading.current_thread()
    return any(one is not here and one.is_alive() for one in list(_stepping))


def give_back_places() -> None:
    """Take away what was left of hooks, if no other thread may go through them; not to be called inside of a hook."""
    if not others_step():
        while _left:
            _left.pop()._handle.remove()


def _nothing(*_: Any) -> None:
    """Stand where a hook was."""
