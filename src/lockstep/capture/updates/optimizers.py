"""The optimizers of a process: the inputs and results of each, and the end of the step."""

from __future__ import annotations

import functools
import gc
import sys
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lockstep.capture.calls.open_call import OpenCall
from lockstep.capture.patching.patches import Patch
from lockstep.capture.patching.untraced import untraced
from lockstep.capture.rows.session import Session
from lockstep.capture.silence import Silence
from lockstep.capture.steps import End
from lockstep.capture.updates.inner_steps import is_inner_step
from lockstep.capture.updates.optimizer_lines import OptimizerLines, Successions
from lockstep.capture.updates.parameter_groups import (
    held_by,
    name_by_place,
    optimizer_name,
    parameters_of,
    plain_options,
)
from lockstep.capture.updates.step_hooks import StepHook, give_back_places, steps_here
from lockstep.capture.updates.trainers import Trainers
from lockstep.devices.methods import item


class StepCounter(Protocol):
    """Counts steps; `Recorder` is the real one."""

    @property
    def session(self) -> Session | None:
        """The session, while a step is open."""

    def optimizer_created(self) -> None:
        """A training may begin."""

    def begin(self) -> Session | None:
        """The training comes in sight: open the step if it is to be recorded."""

    def is_certain(self) -> None:
        """The step that is open is one: backward or an optimizer is at work."""

    def optimizer_called(self, optimizer: Optimizer, name: str) -> None:
        """An optimizer begins a step that is recorded."""

    def stop_before_backward(self) -> None:
        """Backward, or an update without one, is about to begin: the process may be asked to end here."""

    def update_skipped(self) -> None:
        """A gradient scaler found inf or NaN, so an optimizer left everything as it was."""

    def loss_scaled(self, factor: float) -> None:
        """The factor that a gradient scaler has put into the loss of this step."""

    def optimizers_stepped(self, by: End) -> None:
        """All optimizers have stepped that take part, or one has for the second time."""

    def another_trains(self) -> None:
        """A thread trains something else than what is recorded."""

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed."""


class Bodies(Protocol):
    """Records what optimizers of a script's own call; `RecordedBodies` is the real one."""

    def begin(self, first: OpenCall) -> None:
        """A step begins that updates a parameter by this call first."""

    def end(self) -> None:
        """The step has ended, or another begins within."""


class UpdateHearer(Protocol):
    """Hears of each update of the training, recorded or not."""

    def updated(self, optimizer: Optimizer) -> None:
        """An optimizer has made its step."""

    def update_skipped(self, optimizer: Optimizer) -> None:
        """A gradient scaler has left an optimizer's step out."""

    def loss_scaled(self, scaler: Any) -> None:
        """A gradient scaler has put its factor into the loss of this step."""


@dataclass(slots=True)
class _Update:
    """A step of an optimizer that has begun, with the calls that record it."""

    optimizer: Optimizer
    has_closure: bool
    calls: list[tuple[OpenCall, torch.Tensor]] = field(default_factory=list)


class Optimizers:
    """Listens to every optimizer of the process.

    steps: Is told when a step ends.
    is_known: Whether a parameter belongs to a module that was met.

    trainers: Tells the recorded training from those of other threads.
    hearer: Hears of each update, until `count_no_more`; None for nobody.
    bodies: Records what a step calls; None for nobody.
    """

    def __init__(self, steps: StepCounter, is_known: Callable[[torch.Tensor], bool]) -> None:
        self._steps = steps
        self._is_known = is_known
        self._all: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._in_order: weakref.WeakKeyDictionary[Optimizer, None] = weakref.WeakKeyDictionary()
        self.trainers = Trainers(lambda: list(self._all), steps.another_trains)
        self._stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._ever_stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._idle: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._from_before: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._running: list[_Update] = []
        self._places: dict[int, _Place] = {}
        self._hooks: list[StepHook] = []
        self._are_untraced = self._collected = False
        self._lines: OptimizerLines | None = None
        self._behind: StepHook | None = None
        self.hearer: UpdateHearer | None = None
        self.bodies: Bodies | None = None
        self._patches = [
            Patch(Optimizer, "__init__", self._wrap_init),
            Patch(torch.amp.GradScaler, "step", self._wrap_scaler_step),
        ]

    def __len__(self) -> int:
        return len(self._all)

    @property
    def at_work(self) -> bool:
        """Whether an optimizer is inside of its step."""
        return bool(self._running)

    @property
    def has_closure(self) -> bool:
        """Whether that optimizer calls the model itself."""
        return any(update.has_closure for update in self._running)

    # --- life ---------------------------------------------------------------------------------

    def listen(self) -> None:
        """Begin to listen."""
        for patch in self._patches:
            patch.put()
        self._hook()

    def stop(self) -> None:
        """Stop listening."""
        self._patches[0].take_back()
        for hook in self._hooks:
            hook.take_away(called_now=self.at_work)
        self._hooks = []
        if not self.at_work:
            self._hear_no_more()

    def count_on(self, successions: Successions) -> None:
        """Go on counting steps, by those of the optimizer that has just ended one and of those that follow it."""
        if self._running:
            counted = self._running[-1].optimizer
            self._lines = OptimizerLines(counted, self.taking_part(), successions)

    @property
    def counted_on(self) -> int:
        """How many steps there were since `count_on`, 0 where they are not counted."""
        return 0 if self._lines is None else self._lines.steps

    def taking_part(self) -> list[Optimizer]:
        """The optimizers of the recorded training, in the order in which they were made."""
        taking_part = set(self.trainers.taking_part())
        return [optimizer for optimizer in self._in_order if optimizer in taking_part]

    def count_no_more(self) -> int | None:
        """How many steps there were since `count_on`, None where it was not counted."""
        lines, self._lines = self._lines, None
        self._hear_no_more()
        return lines.steps if lines is not None else None

    def _hear_no_more(self) -> None:
        self._patches[1].take_back()
        if self._behind is not None:
            self._behind.take_away(called_now=self.at_work)
        self._behind = None
        if not self.at_work:
            give_back_places()

    def _made_a_step(self, optimizer: Optimizer, *_: Any) -> None:
        steps_here()
        if (self._lines is None and self.hearer is None) or is_inner_step(optimizer):
            return
        if self.hearer is not None and not torch.compiler.is_compiling():
            self.hearer.updated(optimizer)
        if self._lines is not None:
            self._lines.stepped(optimizer)

    def _left_out(self, optimizer: Optimizer) -> None:
        """A scaler has left the step of an optimizer out: it counts as one."""
        if self.hearer is not None:
            self.hearer.update_skipped(optimizer)
        if self._hooks:
            self._steps.update_skipped()
            self._count(optimizer, End.UPDATE_SKIPPED)
        elif self._lines is not None:
            self._lines.stepped(optimizer)

    def found(self, optimizers: Iterable[Optimizer]) -> None:
        """Those made before; one that only wraps another never steps by itself."""
        for optimizer in optimizers:
            if "param_groups" in vars(optimizer):
                self._add(optimizer)
                self._from_before.add(optimizer)

    def _add(self, optimizer: Optimizer) -> None:
        self._all.add(optimizer)
        self._in_order.setdefault(optimizer)

    def compiler_loaded(self) -> None:
        """Something was compiled: from here on the hooks might be traced, and must not be."""
        if self._behind is not None and self._hooks and not (self._are_untraced or self.at_work):
            for hook, called in zip([*self._hooks, self._behind], self._called(), strict=True):
                hook.exchange(called)

    def _called(self) -> list[Callable[..., None]]:
        """What is called before a step, behind it, and to count on."""
        self._are_untraced = "torch._dynamo" in sys.modules
        called: list[Callable[..., None]] = [self._before, self._after, self._made_a_step]
        # Where an optimizer's step is compiled, its graph breaks at the hooks.
        return [untraced(hook) for hook in called] if self._are_untraced else called

    def _hook(self) -> None:
        """Put the hooks in place; while torch goes through them none may be added, so what counts on is there, too.

        It comes first: another one may end the training.
        """
        before, after, count = self._called()
        self._hooks = [
            StepHook(register_optimizer_step_pre_hook, before),
            StepHook(register_optimizer_step_post_hook, after),
        ]
        self._behind = StepHook(register_optimizer_step_post_hook, count)
        self._behind.put_first()

    def trained_now(self) -> list[torch.Tensor]:
        """Return the optimizers' parameters, without those left by an earlier training of this process."""
        every = self.trainers.taking_part()
        begun = [item for item in every if item not in self._from_before or not item.state]
        return held_by(begun or every)

    def identities(self) -> frozenset[int]:
        """Return the tensors that the optimizers hold, by identity."""
        return frozenset(map(id, held_by(self.trainers.taking_part())))

    def idle_identities(self) -> frozenset[int]:
        """Return the tensors that only optimizers hold which have never stepped, by identity."""
        every = self.trainers.taking_part()
        stepping = [one for one in every if one in self._ever_stepped]
        idle = [one for one in every if one not in self._ever_stepped]
        return frozenset(map(id, held_by(idle))) - frozenset(map(id, held_by(stepping)))

    def parameter_name(self, tensor: torch.Tensor) -> str | None:
        """Name of a parameter by its place in an optimizer, or None."""
        found = self._place_of(tensor)
        if found is None:
            # Asked once for each parameter that no module has: looking through all each time takes the square.
            self._places = {
                id(parameter): (weakref.ref(optimizer), group_number, number)
                for optimizer in reversed(list(self._all))
                for group_number, group in enumerate(optimizer.param_groups)
                for number, parameter in enumerate(group["params"])
            }
            found = self._place_of(tensor)
        return None if found is None else name_by_place(*found)

    def _place_of(self, tensor: torch.Tensor) -> tuple[int, int] | None:
        """Group and number of a parameter where it was when last looked for; None where it is not there now."""
        optimizer_of, group_number, number = self._places.get(id(tensor), _NOWHERE)
        optimizer = optimizer_of()
        if optimizer is None or group_number >= len(optimizer.param_groups):
            return None
        parameters = optimizer.param_groups[group_number]["params"]
        if number < len(parameters) and parameters[number] is tensor:
            return group_number, number
        return None

    # --- steps --------------------------------------------------------------------------------

    def forget_stepped(self) -> None:
        """A step has ended: none has stepped in the next one."""
        self._stepped.clear()

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        steps_here()
        self._add(optimizer)
        if is_inner_step(optimizer) or not self.trainers.steps(optimizer):
            return
        self._ever_stepped.add(optimizer)
        update = _Update(optimizer, _has_closure(args, kwargs))
        self._running = [other for other in self._running if other.optimizer is not optimizer]
        self._running.append(update)
        session = self._steps.session
        if session is None and (update.has_closure or self._has_gradients(optimizer)):
            session = self._steps.begin()
        if session is None:
            return
        self._steps.stop_before_backward()
        op = optimizer_name(optimizer)
        with Silence(self._steps.fail):
            self._steps.is_certain()
            stack = session.rows.stack_here()
            options = [plain_options(group) for group in optimizer.param_groups]
            for name, number, parameter in parameters_of(optimizer):
                if parameter.grad is None and not update.has_closure:
                    continue
                session.parameters.adopt_parameter(parameter, name)
                opened = session.updates.before_update(
                    optimizer,
                    op,
                    options[number],
                    parameter,
                    stack=stack,
                    with_gradient=not update.has_closure,
                )
                if opened is not None:
                    update.calls.append((opened, parameter))
            self._steps.optimizer_called(optimizer, op)
            self._begin_body(update, op)

    def _begin_body(self, update: _Update, op: str) -> None:
        """Have the calls of the step recorded where its class is the script's own, and calls no model."""
        if self.bodies is None:
            return
        self.bodies.end()
        own = not (op.startswith("torch.optim.") or update.has_closure)
        if own and update.calls:
            self.bodies.begin(update.calls[0][0])

    def _has_gradients(self, optimizer: Optimizer) -> bool:
        """Whether an update is at hand: nothing else of its step is seen where `torch.func` gives the gradients."""
        with Silence(self._steps.fail):
            return any(parameter.grad is not None for _, _, parameter in parameters_of(optimizer))
        return False

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if is_inner_step(optimizer):
            return
        update = next((item for item in self._running if item.optimizer is optimizer), None)
        if update is None and self.trainers.is_another:
            return
        session = self._steps.session
        if self.bodies is not None:
            self.bodies.end()
        if session is not None and update is not None:
            with Silence(self._steps.fail):
                for opened, parameter in update.calls:
                    session.updates.after_update(optimizer, opened, parameter)
        try:
            self._count(optimizer, End.ALL_STEPPED)
        except Exception as error:  # of ours: it must not reach the training
            self._steps.fail(error)
        finally:
            self._running = [other for other in self._running if other is not update]

    def _count(self, optimizer: Optimizer, by: End) -> None:
        """End the step when all have stepped that take part, by this one.

        One that steps a second time ends it too; those that it did not wait for are idle from then
        on.
        """
        again = optimizer in self._stepped
        self._stepped.add(optimizer)
        missing = self._missing()
        if missing and not (again or self._collected):
            self._collected = True
            gc.collect()  # one that the script let go of may still lie in a reference cycle
            missing = self._missing()
        if again:
            self._idle.update(missing)
        if again or not missing:
            self._stepped.clear()
            self._steps.optimizers_stepped(End.STEPPED_TWICE if again else by)

    def _missing(self) -> set[Optimizer]:
        """Those that have to step before the step ends."""
        if len(self._stepped) == len(self._all):
            return set()
        waiting = [other for other in self.trainers.taking_part() if other not in self._stepped]
        return {other for other in waiting if self._takes_part(other)}

    def _takes_part(self, optimizer: Optimizer) -> bool:
        """Whether steps wait for an optimizer.

        They do not for one that was left behind by an earlier training: it was there when recording
        began, and no parameter of it has been met.
        """
        if optimizer in self._idle:
            return False
        return optimizer not in self._from_before or any(
            self._is_known(parameter) for _, _, parameter in parameters_of(optimizer)
        )

    # --- patches ------------------------------------------------------------------------------

    def _wrap_init(self, original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def init(optimizer: Optimizer, *args: Any, **kwargs: Any) -> None:
            original(optimizer, *args, **kwargs)
            if self._hooks:
                try:
                    self._add(optimizer)
                    self.trainers.made(optimizer)
                    self._steps.optimizer_created()
                except Exception as error:  # of ours: it must not reach the training
                    self._steps.fail(error)

        return init

    def _wrap_scaler_step(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            counted = self._hooks or self._lines is not None
            listened = counted and not self.trainers.is_another
            if not listened or not hasattr(optimizer, "register_step_post_hook"):
                return original(scaler, optimizer, *args, **kwargs)
            called: list[None] = []
            if self._steps.session is not None and scaler.is_enabled():
                self._steps.loss_scaled(float(scaler.get_scale()))
            if self.hearer is not None and scaler.is_enabled():
                self.hearer.loss_scaled(scaler)

            def after(*_: Any) -> None:
                called.append(None)
                # Fused optimizers are called in any case, and leave the parameters as they are.
                if self._steps.session is not None and _overflow_in(scaler, optimizer):
                    self._steps.update_skipped()

            handle = optimizer.register_step_post_hook(after)
            try:
                result = original(scaler, optimizer, *args, **kwargs)
            finally:
                handle.remove()
            if not called:
                self._left_out(optimizer)
            return result

        return step


_Place = tuple[Callable[[], Optimizer | None], int, int]
"""Where a parameter is held: its optimizer as long as that lives, its group and its number there."""

_NOWHERE: _Place = (lambda: None, 0, 0)


def _has_closure(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("closure")) or any(callable(value) for value in args[1:])


def _overflow_in(scaler: Any, optimizer: Optimizer) -> bool:
    if not scaler.is_enabled():
        return False  # it has no state then
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(item(value)) for value in found.values())
