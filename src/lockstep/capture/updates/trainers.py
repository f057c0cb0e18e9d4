"""Choose the thread whose training is recorded, if several train models of their own.

One training is recorded: that of the thread which comes first. A thread counts as training something else where it
calls a model, or an optimizer, of whose parameters the recorded training has none. Threads that share its parameters
(replicas, a forward beside the main thread) or that train nothing (a teacher, loaders) are part of it.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable

import torch
from torch.optim.optimizer import Optimizer


class _Thread:
    """Stands for a thread for as long as that lives."""

    def __init__(self) -> None:
        self.made: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self.against: weakref.ref[_Thread] | None = None


class Trainers:
    """Tells the recorded training from those of other threads.

    optimizers: Gives every optimizer of the process.
    found_another: Is told of each thread that trains something else.
    """

    def __init__(
        self, optimizers: Callable[[], list[Optimizer]], found_another: Callable[[], None]
    ) -> None:
        self._optimizers = optimizers
        self._found_another = found_another
        self._local = threading.local()
        self._lock = threading.RLock()
        self._owner: weakref.ref[_Thread] | None = None
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._called: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()
        self._makers: weakref.WeakKeyDictionary[Optimizer, weakref.ref[_Thread]]
        self._makers = weakref.WeakKeyDictionary()

    def _here(self) -> _Thread:
        here: _Thread | None = getattr(self._local, "thread", None)
        if here is None:
            here = self._local.thread = _Thread()
        return here

    @property
    def _owning(self) -> _Thread | None:
        return None if self._owner is None else self._owner()

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the recorded training, as far as is known."""
        owner = self._owner
        return owner is not None and owner() is getattr(self._local, "thread", owner)

    @property
    def another_lives(self) -> bool:
        """Whether what is recorded is of another thread, which lives."""
        return self._owning not in (None, self._here())

    @property
    def is_another(self) -> bool:
        """Whether this thread trains something else than what is recorded."""
        here, owning = self._here(), self._owning
        if owning is None or owning is here:
            return False
        if here.against is not None and here.against() is owning:
            return True
        return bool(here.made) and not self._is_ours(set(here.made))

    def made(self, optimizer: Optimizer) -> None:
        """This thread has made an optimizer."""
        here = self._here()
        here.made.add(optimizer)
        self._makers[optimizer] = weakref.ref(here)

    def calls(self, module: torch.nn.Module, *, trains: bool) -> bool:
        """A module is called outside of all others; tells whether that is of the recorded training."""
        with self._lock:
            if self._is_mine(take=trains) or self._is_ours(self._holding(module.parameters())):
                if trains and not self.another_lives:
                    self._called.add(module)
                return True
        return False

    def uses(self, tensors: Iterable[torch.Tensor]) -> bool:
        """An operator builds on leaves outside of all modules; tells whether that is of the recorded training."""
        with self._lock:
            return self._is_mine(take=True) or self._is_ours(self._holding(tensors))

    def steps(self, optimizer: Optimizer) -> bool:
        """An optimizer begins a step; tells whether it is of the recorded training, which is this thread's then."""
        with self._lock:
            if not (self._is_mine(take=True) or self._is_ours({optimizer})):
                return False
            self._owner = weakref.ref(self._here())
            self._stepped.add(optimizer)
            return True

    def _is_mine(self, *, take: bool) -> bool:
        """Whether no other thread has the recorded training; this one takes it, where it trains."""
        here, owning = self._here(), self._owning
        if owning is None and take:
            self._owner = weakref.ref(here)
        return owning is None or owning is here

    def _is_ours(self, theirs: set[Optimizer]) -> bool:
        """Whether a thread that uses some optimizers, or what they hold, is of the training of another thread."""
        with self._lock:
            here, owning = self._here(), self._owning
            if owning is None or (here.against is not None and here.against() is owning):
                return owning is None
            ours = self._ours(owning)
            if theirs and not ours:
                # That thread only looked at something: no optimizer holds what it called.
                self._owner = weakref.ref(here)
            if not theirs or not ours or theirs & ours:
                return True
            here.against = weakref.ref(owning)
        self._found_another()
        return False

    def _holding(self, tensors: Iterable[torch.Tensor]) -> set[Optimizer]:
        wanted = {id(tensor) for tensor in tensors}
        return {one for one in self._optimizers() if wanted & _held_by(one)}

    def _ours(self, owning: _Thread) -> set[Optimizer]:
        """Optimizers that a thread has made or used, or that hold what it calls."""
        called = {id(one) for module in list(self._called) for one in module.parameters()}
        return {
            one
            for one in self._optimizers()
            if one in owning.made or one in self._stepped or called & _held_by(one)
        }

    def taking_part(self) -> list[Optimizer]:
        """Optimizers that may be of the recorded training: not those of another thread alone."""
        every = self._optimizers()
        owning = self._owning
        others = {one for one in every if owning and self._maker(one) not in (None, owning)}
        if owning is not None and others:
            with self._lock:
                others -= self._ours(owning)
        return [one for one in every if one not in others]

    def _maker(self, optimizer: Optimizer) -> _Thread | None:
        """The thread that made an optimizer, where it lives."""
        maker = self._makers.get(optimizer)
        return None if maker is None else maker()


def _held_by(optimizer: Optimizer) -> set[int]:
    return {id(one) for group in optimizer.param_groups for one in group["params"]}
