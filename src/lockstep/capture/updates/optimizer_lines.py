"""Follow the optimizers of a training after its recorded steps, also where it goes on with ones that are made anew.

A script that resumes in its own process throws model and optimizer away and makes both again. An optimizer goes on with
the training of an earlier one if it holds one of its parameters, or as many of the same shapes at the same places, and
the earlier one steps no more. A copy that is trained between the steps of another is none.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch.optim.optimizer import Optimizer

MOST_RETURNS = 8
"""Times that an earlier optimizer steps again, until none made later is taken to go on with a training."""


class Successions(Protocol):
    """Hears which optimizer goes on with the training of an earlier one."""

    def goes_on(self, earlier: int, optimizer: Optimizer) -> None:
        """An optimizer steps for the first time; `earlier` is the identity of the one that it follows."""

    def went_back(self, later: int) -> None:
        """The earlier optimizer steps again, so that the one of this identity went on with nothing."""


@dataclass(slots=True)
class _Follower:
    """One optimizer of a line: its parameters and steps."""

    number: int
    optimizer: weakref.ref[Optimizer]
    shapes: list[list[torch.Size]]
    parameters: list[weakref.ref[torch.Tensor]]
    steps: int = 0


@dataclass(slots=True)
class _Line:
    """Optimizers of which each goes on with the training of the one before."""

    followers: list[_Follower] = field(default_factory=list)


class OptimizerLines:
    """Counts the steps of a training after the last recorded one, and tells which optimizers go on with it.

    Steps of a compiled optimizer are not counted: a number that changes would have it compiled anew.

    counted: The optimizer that has just ended the last recorded step.
    every: All optimizers of the process.
    successions: Hears of those that go on with another's training.
    """

    def __init__(
        self, counted: Optimizer, every: Iterable[Optimizer], successions: Successions
    ) -> None:
        others = [optimizer for optimizer in every if optimizer is not counted]
        self._lines = [_Line([_follower(optimizer)]) for optimizer in (counted, *others)]
        self._successions = successions
        self._beside: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._returns = 0
        self._here = os.getpid(), threading.get_ident()

    @property
    def steps(self) -> int:
        """How many steps of the training there were so far."""
        return sum(follower.steps for follower in self._lines[0].followers)

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer of the process has made a step."""
        if torch.compiler.is_compiling():
            return
        for line in self._lines:
            for place, follower in enumerate(line.followers):
                if follower.optimizer() is optimizer:
                    follower.steps += 1
                    self._go_back(line, place)
                    return
        if optimizer not in self._beside and self._here == (os.getpid(), threading.get_ident()):
            self._begins(optimizer)

    def _go_back(self, line: _Line, place: int) -> None:
        """An optimizer steps: those that seemed to follow it are beside."""
        later = line.followers[place + 1 :]
        if not later:
            return
        del line.followers[place + 1 :]
        self._returns += 1
        for follower in later:
            optimizer = follower.optimizer()
            if optimizer is not None:
                self._beside.add(optimizer)
            self._successions.went_back(follower.number)

    def _begins(self, optimizer: Optimizer) -> None:
        """An optimizer that was made later steps for the first time."""
        new = _follower(optimizer)
        line = None if self._returns >= MOST_RETURNS else self._line_of(new)
        if line is None:
            self._beside.add(optimizer)
            return
        new.steps = 1
        earlier = line.followers[-1].number
        line.followers.append(new)
        self._successions.goes_on(earlier, optimizer)

    def _line_of(self, new: _Follower) -> _Line | None:
        """The line that an optimizer goes on with, the one with the fewest followers first."""
        held = {id(one()) for one in new.parameters}
        lines = sorted(self._lines, key=lambda line: len(line.followers))
        for line in lines:
            if any(id(one()) in held for one in line.followers[-1].parameters if one() is not None):
                return line
        return next((line for line in lines if line.followers[-1].shapes == new.shapes), None)


def _follower(optimizer: Optimizer) -> _Follower:
    groups = [group["params"] for group in optimizer.param_groups]
    with torch._C.DisableTorchFunctionSubclass():  # asking a tensor runs no code of the script's
        shapes = [[parameter.shape for parameter in group] for group in groups]
    parameters = [weakref.ref(parameter) for group in groups for parameter in group]
    return _Follower(id(optimizer), weakref.ref(optimizer), shapes, parameters)
