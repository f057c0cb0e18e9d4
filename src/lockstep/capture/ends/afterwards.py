"""Keep a training's losses after its recorded steps, and its state at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch.optim.optimizer import Optimizer

from lockstep.capture.ends.losses_after_steps import LaterLosses
from lockstep.capture.ends.made_anew import MadeAnew
from lockstep.capture.ends.outside import Outside
from lockstep.capture.ends.states_at_deletion import (
    LastStates,
    OptimizedNames,
    held_by_optimizer,
)
from lockstep.capture.modules.process_modules import NamedModule
from lockstep.capture.recording.rank_recording import Tables
from lockstep.capture.tensors.state_taker import StateTaker
from lockstep.core.states import Moment, Standing
from lockstep.store import schema
from lockstep.store.encoding import Row

Owners = dict[int, tuple[str, str]]
"""Path and full name of each parameter and buffer that is known, by identity."""


class Afterwards:
    """Keeps losses and states once the recorded steps are over.

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
        self._step_now, self._wants = step_now, wants
        self._losses = LaterLosses(step_now)
        self._last = LastStates(self._taker, step_now, wants)
        self._anew = MadeAnew(lambda: LastStates(StateTaker(save, kept), step_now, wants))
        self._outside = Outside(save, kept, step_now, wants)
        self._began = False

    def begin(
        self,
        modules: Sequence[NamedModule],
        optimizers: Sequence[Optimizer],
        owners: Owners,
    ) -> None:
        """The last recorded step has ended: take what there is now, and wait for what goes."""
        called = self._take(Moment.LAST, modules, optimizers, owners)
        for named in modules:
            self._last.watch_module(named)
        for optimizer, names in zip(optimizers, called, strict=True):
            self._last.watch_optimizer(optimizer, names)
        self._anew.begin(optimizers, called)
        self._outside.begin(modules, optimizers)
        self._began = True

    def first(
        self,
        modules: Sequence[NamedModule],
        optimizers: Sequence[Optimizer],
        owners: Owners,
    ) -> None:
        """The first recorded step has ended, and is not the last: take what there is now."""
        self._take(Moment.FIRST, modules, optimizers, owners, counted=False)
        self._outside.first()

    def _take(
        self,
        moment: Moment,
        modules: Sequence[NamedModule],
        optimizers: Sequence[Optimizer],
        owners: Owners,
        *,
        counted: bool = True,
    ) -> list[OptimizedNames]:
        """Take what there is now; gives what parameters of each optimizer are called.

        `counted` tells whether the step that has ended is counted already.
        """
        by_module = frozenset(id(held.tensor) for named in modules for held in named.held())
        called = [
            OptimizedNames(owners, by_module, f"{number}." if number else "")
            for number in range(len(optimizers))
        ]
        held = [one for named in modules for one in named.held()]
        for optimizer, names in zip(optimizers, called, strict=True):
            held += held_by_optimizer(optimizer.state, optimizer.param_groups, names)
        wanted = (one for one in held if self._wants(one.module, one.name))
        self._taker.take(moment, self._step_now() + (not counted), wanted)
        return called

    def goes_on(self, earlier: int, optimizer: Optimizer) -> None:
        """The training goes on with an optimizer that was made anew; `earlier` is the identity of the one before."""
        self._anew.goes_on(earlier, optimizer)

    def went_back(self, later: int) -> None:
        """An optimizer did not go on with the training."""
        self._anew.went_back(later)

    def listen(self) -> None:
        """Keep the losses from now on; all other taps are out."""
        if self._began:
            self._losses.listen()

    def recorded(self) -> Tables:
        """Tables of the recorded steps."""
        return {schema.STATES_FILE: (schema.STATES, self._taker.rows(Moment.FIRST, Moment.LAST))}

    def finish(self) -> tuple[Tables, str]:
        """The end has come: its tables, and why something is not in them, or ""."""
        self._losses.stop()
        if not self._began:
            return {}, "recording stopped before"
        self._outside.finish()
        self._last.finish()
        every = [self._last, *self._anew.finish()]
        held, settings = self._outside.rows()
        tables: Tables = {
            schema.END_FILE: (schema.STATES, _end_rows([last.taker for last in every])),
            schema.LOSSES_FILE: (schema.LOSSES, self._losses.rows()),
            schema.HELD_FILE: (schema.STATES, held),
            schema.HELD_SETTINGS_FILE: (schema.HELD_SETTINGS, settings),
        }
        return tables, next(filter(None, map(_why_not_all, every)), "")

    @property
    def not_seen(self) -> str:
        """Words about values of variables that were not looked at, "" if all were."""
        return self._outside.not_seen

    def forget(self) -> None:
        """Listen no more, and let go."""
        self._losses.stop()
        self._last.forget()
        self._anew.forget()
        self._outside.forget()


def _end_rows(takers: Sequence[StateTaker]) -> list[Row]:
    """The states at the end, those of the last model by their names; the others are of models it replaced."""
    rows: list[Row] = []
    names: set[tuple[object, object]] = set()
    for number in reversed(range(len(takers))):
        taken = takers[number].rows(Moment.END)
        replaced = f" (model {number + 1}, made anew later)"
        for row in taken:
            told = dict(zip(schema.STATES, row, strict=True))
            if (told["role"], told["name"]) in names:
                told.update(name=f"{told['name']}{replaced}", standing=Standing.REPLACED.value)
            rows.append(tuple(told.values()))
        names.update((row[_ROLE], row[_NAME]) for row in taken)
    return rows


_ROLE, _NAME = (list(schema.STATES).index(column) for column in ("role", "name"))


def _why_not_all(last: LastStates) -> str:
    if last.failures:
        error = last.failures[0]
        return f"{type(error).__name__}: {error}"
    if last.unseen:
        return f"{last.unseen[0] or 'the model'} went before the process ended, and its tensors lead back to it"
    return ""


def owners_of(owned: Iterable[tuple[torch.Tensor, str, str]]) -> Owners:
    """Path and full name by identity."""
    return {id(tensor): (path, name) for tensor, path, name in owned}
