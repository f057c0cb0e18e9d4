"""The recorder: which step it is, when taps go in and come out, and where rows go.

A step runs from the first tapped call that builds a graph to the optimizer step that ends it. It ends when every live
optimizer has stepped, or when one steps for the second time; a gradient scaler that leaves the optimizer out ends it
too. Between chosen steps nothing is installed but one hook on optimizers.
"""

from __future__ import annotations

import functools
import gc
import sys
import traceback
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    _global_optimizer_post_hooks,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lockstep.capture import setup
from lockstep.capture.calls import Calls
from lockstep.capture.interception import CompiledCodeGate, Patch, Taps, wrap_compile
from lockstep.capture.leaves import plain
from lockstep.capture.names import ModuleNames
from lockstep.capture.options import SiteFilter, StepSelection, parse_ranks
from lockstep.capture.quiet import quiet
from lockstep.capture.session import OpenCall, Place, Session
from lockstep.core.errors import CaptureError
from lockstep.core.manifest import (
    Event,
    NotSeen,
    Options,
    OptimizerSetup,
    RankManifest,
    StepSummary,
)
from lockstep.store.writer import RankWriter

_active: Recorder | None = None


class Recorder:
    """Records the training of this process.

    Parameters
    ----------
    directory
        The recording; the rank's part is made inside when the first step begins.
    options
        What to record.
    model
        The model whose paths are plain, where the caller has it at hand.
    wait_for_optimizer
        Whether steps begin only once an optimizer exists (zero-code runs), or right away.

    Attributes
    ----------
    directory
        As given.
    began
        Whether a step was begun, so that there is a directory of this rank.
    other_rank
        Whether a step was left out because this rank was not asked for.
    optimizer_seen
        Whether an optimizer was made.
    taps
        What is patched while a step is recorded.
    """

    def __init__(
        self,
        directory: Path,
        options: Options,
        *,
        model: torch.nn.Module | None = None,
        wait_for_optimizer: bool,
    ) -> None:
        self.directory = directory
        self.began = self.other_rank = self.optimizer_seen = False
        self._options = options
        self._selection = StepSelection.parse(options.steps)
        self._ranks = parse_ranks(options.ranks)
        self._sites = SiteFilter(tuple(options.only), tuple(options.skip))
        self._wait_for_optimizer = wait_for_optimizer
        self._model = model
        self._names = ModuleNames(model)
        self._calls = Calls(self, options.level)
        self.taps = self._calls.taps
        self._session: Session | None = None
        self._manifest: RankManifest | None = None
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._idle: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._from_before: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._running: list[_RunningUpdate] = []
        self._handles: list[Any] = []
        self._hooked: set[int] = set()
        self._step = 0
        self._open = False
        self._ended_by_optimizer = False
        self._failure = ""
        self._hooks_are_untraced = False
        self._seen_once: set[str] = set()
        self._finished = False
        self._patches = [
            Patch(torch.optim.Optimizer, "__init__", _wrap_optimizer_init),
            Patch(torch.amp.GradScaler, "step", _wrap_scaler_step),
            Patch(torch, "compile", lambda original: wrap_compile(original, _taps_now)),
            *CompiledCodeGate(_taps_now).patches(),
        ]

    @property
    def steps_counted(self) -> int:
        """How many steps have ended, recorded or not."""
        return self._step

    # --- life ----------------------------------------------------------------------------------------------------

    def arm(self) -> None:
        """Begin to listen for optimizers, and record as soon as the first chosen step begins.

        Raises
        ------
        CaptureError
            If another recorder is at work in this process.
        """
        global _active
        if _active is not None:
            raise CaptureError(
                "a recording is already running in this process; stop it before starting another"
            )
        _active = self
        try:
            self._arm()
        except BaseException:
            self._finished = True
            self._disarm()
            raise

    def _arm(self) -> None:
        for patch in self._patches:
            patch.put()
        self._hook_optimizers()
        if not self._wait_for_optimizer:
            self._find_optimizers()
            self._install_if_chosen()
            self.begin()

    def _hook_optimizers(self) -> None:
        before, after = self._before_optimizer, self._after_optimizer
        self._hooks_are_untraced = "torch._dynamo" in sys.modules
        if self._hooks_are_untraced:
            # Where an optimizer's step is compiled, its graph breaks at the hooks.
            before, after = torch.compiler.disable(before), torch.compiler.disable(after)
        self._handles.append(register_optimizer_step_pre_hook(before))
        self._handles.append(register_optimizer_step_post_hook(after))

    def compiler_loaded(self) -> None:
        """Something was compiled: hooks must not be traced."""
        if not (self._hooks_are_untraced or self._finished or self._running):
            for handle in self._handles[:2]:
                handle.remove()
            del self._handles[:2]
            self._hook_optimizers()

    def _find_optimizers(self) -> None:
        """Those made before; one that only wraps another never steps by itself."""
        gc.collect()
        for item in gc.get_objects():
            if issubclass(type(item), torch.optim.Optimizer) and "param_groups" in vars(item):
                self._optimizers.add(item)
                self._from_before.add(item)

    def finish(self, *, interrupted: bool = False) -> None:
        """Close the recording; safe to call twice."""
        if self._finished:
            self._remove_handles()
            self.taps.remove()
            return
        self._finished = True
        if self._open:
            self._end_step(complete=not interrupted)
        self._disarm()
        self._close_session()

    def abandon_in_child(self) -> None:
        """After a fork: forget everything the parent holds, write nothing."""
        self._finished = True
        self._open = False
        self._disarm()
        self._session = None

    def end_step_by_hand(self) -> None:
        """End the step, for loops without a torch optimizer."""
        if self._ended_by_optimizer:
            self._ended_by_optimizer = False
            return
        if self._open:
            self._end_step(complete=True)
        if not self._finished:
            self._advance()

    def _disarm(self) -> None:
        global _active
        self.taps.remove()
        self._remove_handles()
        if _active is self:
            _active = None
            for patch in self._patches:
                patch.take_back()
        self._names.forget()
        self._model = None

    def _remove_handles(self) -> None:
        """Remove all hooks, save the one that torch stands at if others come after it."""
        stays = []
        for handle in self._handles:
            hooks = list(_global_optimizer_post_hooks) if self._running else []
            if handle.id in hooks[:-1]:
                stays.append(handle)
            else:
                handle.remove()
        self._handles = stays

    def _close_session(self) -> None:
        if self._session is None or self._manifest is None:
            return
        writer = self._session.writer
        writer.flush()
        writer.drain()
        self._manifest.state = "complete"
        self._manifest.stopped_because = writer.failure or self._failure
        self._manifest.unmatched = self._sites.unmatched()
        self._write_manifest()
        writer.close()
        if self._manifest.stopped_because:
            self._warn(f"recording stopped: {self._manifest.stopped_because}; the training goes on")
        self._session = None

    # --- steps ---------------------------------------------------------------------------------------------------

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made."""
        self.optimizer_seen = True
        self._optimizers.add(optimizer)
        self._install_if_chosen()

    def _install_if_chosen(self) -> None:
        if self._step in self._selection and not (self._finished or self.other_rank):
            self.taps.install()

    @property
    def session(self) -> Session | None:
        """The session, while a step is open."""
        return self._session if self._open and not self._failure else None

    def begin(self) -> Session | None:
        """The training comes in sight: open the step if it is to be recorded."""
        if self._wait_for_optimizer and not len(self._optimizers):
            return None
        if self._open or self._finished:
            return self.session
        if self._step not in self._selection or self._is_other_rank() or _is_data_worker():
            return None
        session = self._session or self._open_session()
        if session is None or session.writer.failure or self._manifest is None:
            self._stop_early()
            return None
        self._open, self._calls.after_backward = True, False
        self._manifest.steps.append(StepSummary(self._step))
        with quiet(self.fail):
            session.begin_step(self._step)
            if self._model is not None and self._names.path_of(self._model) is None:
                session.adopt(self._model)
            self._hook_parameters(session)
        return self.session

    def _open_session(self) -> Session | None:
        rank, world_size = setup.rank_and_world_size()
        self._manifest = setup.rank_manifest(rank, world_size, self._options)
        try:
            directory = setup.claim_rank_directory(self.directory, self._manifest)
        except OSError as error:
            self._warn(
                f"{error.strerror}: {self.directory}; nothing is recorded, the training goes on"
            )
            return None
        self.began = True
        writer = RankWriter(directory, max_bytes=self._options.max_bytes)
        self._session = Session(
            writer,
            save=self._options.save,
            sites=self._sites,
            names=self._names,
            operators=self._options.level != "module",
            parameter_name=self._parameter_name,
            fail=self.fail,
        )
        return self._session

    def _parameter_name(self, tensor: torch.Tensor) -> str | None:
        for optimizer in list(self._optimizers):
            for group_number, group in enumerate(optimizer.param_groups):
                for number, parameter in enumerate(group["params"]):
                    if parameter is tensor:
                        self._hook_parameter(tensor)
                        return f"param_groups[{group_number}].params[{number}]"
        return None

    def path_of(self, session: Session, module: torch.nn.Module, place: Place | None) -> str:
        """Path of a module; its tree is recorded where it is met for the first time."""
        path = self._names.path_of(module)
        if path is None:
            if place is not None and place.module is not None:
                session.adopt_child(module, place.module, place.path)
            else:
                session.adopt(module)
            self._hook_parameters(session)
            path = self._names.path_of(module) or ""
        return path

    def _hook_parameters(self, session: Session) -> None:
        for tensor, _, _ in list(session.names.owners.values()):
            self._hook_parameter(tensor)

    def _hook_parameter(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._hooked or not (tensor.requires_grad and tensor.is_leaf):
            return
        self._hooked.add(id(tensor))
        self._handles.append(tensor.register_post_accumulate_grad_hook(self._accumulated))

    def _end_step(self, *, complete: bool) -> None:
        session, manifest = self._session, self._manifest
        self._open = False
        self._stepped.clear()
        self._calls.leave_all_places()
        if session is None or manifest is None:
            return
        summary = manifest.steps[-1]
        summary.complete = complete and not (self._failure or session.writer.failure)
        summary.calls = session.call_count
        with quiet(self.fail):
            session.end_step()
        manifest.events, manifest.not_seen = session.events, session.not_seen
        self._write_manifest()

    def _advance(self) -> None:
        self._step += 1
        if self._failure or (self._session is not None and self._session.writer.failure):
            self._stop_early()
        elif not self._selection.any_from(self._step):
            self.finish()
            if self._options.exit_after:
                raise SystemExit(0)
        elif self._step in self._selection:
            self._install_if_chosen()
        else:
            self.taps.remove()

    def _stop_early(self) -> None:
        if not self._finished:
            self.finish(interrupted=True)

    def _is_other_rank(self) -> bool:
        """Whether this rank was not asked for; it still counts steps where it has to end with the others."""
        if self._ranks is not None and not self.began and not self.other_rank:
            self.other_rank = setup.rank_and_world_size()[0] not in self._ranks
            if self.other_rank and self._options.exit_after:
                self.taps.remove()
            elif self.other_rank:
                self.finish()
        return self.other_rank

    def _warn(self, sentence: str) -> None:
        print(f"lockstep: {sentence}", file=sys.stderr, flush=True)

    def _write_manifest(self) -> None:
        if self._session is not None and self._manifest is not None:
            self._session.writer.write_manifest(setup.as_json(self._manifest))

    def note_once(self, what: str, reason: str) -> None:
        """Something is not seen."""
        if what not in self._seen_once and self._session is not None:
            self._seen_once.add(what)
            self._session.not_seen.append(NotSeen(what, reason))

    def note_autocast(self) -> None:
        """A call runs under autocast."""
        if self._manifest is not None:
            setup.note_autocast(self._manifest)

    def fail(self, error: Exception) -> None:
        """The recorder's own work failed: stop recording, let the training go on."""
        if not self._failure:
            at = traceback.extract_tb(error.__traceback__)[-1:]
            where = "".join(f" ({Path(frame.filename).name}:{frame.lineno})" for frame in at)
            self._failure = f"{type(error).__name__}: {error}{where}"

    # --- gradients and optimizers --------------------------------------------------------------------------------

    def _accumulated(self, parameter: torch.Tensor) -> None:
        session = self.session
        if session is not None:
            with quiet(self.fail):
                session.accumulated(parameter)

    @property
    def in_optimizer(self) -> bool:
        """Whether an optimizer is at work."""
        return bool(self._running)

    @property
    def optimizer_has_closure(self) -> bool:
        """Whether that optimizer calls the model itself."""
        return any(update.has_closure for update in self._running)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizers.add(optimizer)
        update = _RunningUpdate(optimizer, _has_closure(args, kwargs))
        self._running = [other for other in self._running if other.optimizer is not optimizer]
        self._running.append(update)
        session = self.session
        if session is None:
            return
        name = _optimizer_name(optimizer)
        with quiet(self.fail):
            for group_number, group in enumerate(optimizer.param_groups):
                for number, parameter in enumerate(group["params"]):
                    if parameter.grad is None and not update.has_closure:
                        continue
                    session.adopt_parameter(
                        parameter, f"param_groups[{group_number}].params[{number}]"
                    )
                    opened = session.before_update(
                        optimizer, name, group, parameter, with_gradient=not update.has_closure
                    )
                    if opened is not None:
                        update.calls.append((opened, parameter))
            self._note_optimizer(optimizer, name)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        update = next((item for item in self._running if item.optimizer is optimizer), None)
        session = self.session
        if session is not None and update is not None:
            with quiet(self.fail):
                for opened, parameter in update.calls:
                    session.after_update(optimizer, opened, parameter)
        try:
            self._count_step(optimizer)
        finally:
            self._running = [other for other in self._running if other is not update]

    def _count_step(self, optimizer: torch.optim.Optimizer) -> None:
        """End the step when all optimizers have stepped that take part in it.

        One that steps a second time ends it too; those that it did not wait for are idle from then on.
        """
        again = optimizer in self._stepped
        self._stepped.add(optimizer)
        missing = {
            other
            for other in self._optimizers
            if other not in self._stepped and self._takes_part(other)
        }
        if again:
            self._idle.update(missing)
        if again or not missing:
            self._stepped.clear()
            self._ended_by_optimizer = True
            if self._open:
                self._end_step(complete=True)
            if not self._finished:
                self._advance()

    def _takes_part(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether steps wait for an optimizer.

        They do not for one that was left behind by an earlier training: it was there when recording
        began, and no parameter of it has been met.
        """
        if optimizer in self._idle:
            return False
        return optimizer not in self._from_before or any(
            self._names.owner_of(parameter) is not None
            for group in optimizer.param_groups
            for parameter in group["params"]
        )

    def scaler_found_overflow(
        self, optimizer: torch.optim.Optimizer, *, optimizer_was_called: bool
    ) -> None:
        """A gradient scaler found an overflow: the step has no effect, or no update at all."""
        session = self.session
        if session is not None and self._manifest is not None:
            detail = "the gradient scaler found inf or NaN"
            session.events.append(Event("skipped_step", self._step, detail))
            self._manifest.steps[-1].skipped = True
        if not optimizer_was_called:
            self._count_step(optimizer)

    def _note_optimizer(self, optimizer: torch.optim.Optimizer, name: str) -> None:
        if self._manifest is None:
            return
        groups = [
            {key: plain(value) for key, value in group.items() if key != "params"}
            for group in optimizer.param_groups
        ]
        number = len({item.index for item in self._manifest.optimizers if item.step == self._step})
        self._manifest.optimizers.append(OptimizerSetup(number, self._step, name, groups))
        setup.note_run_state(self._manifest)


@dataclass(slots=True)
class _RunningUpdate:
    """A call of an optimizer that has begun, with the calls that record it."""

    optimizer: torch.optim.Optimizer
    has_closure: bool
    calls: list[tuple[OpenCall, torch.Tensor]] = field(default_factory=list)


def active_recorder() -> Recorder | None:
    """The recorder at work in this process, if any."""
    return _active


def _taps_now() -> Taps | None:
    return None if _active is None else _active.taps


def _wrap_optimizer_init(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if _active is not None:
            _active.optimizer_created(self)

    return init


def _wrap_scaler_step(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if _active is None or not hasattr(optimizer, "register_step_post_hook"):
            return original(self, optimizer, *args, **kwargs)
        called: list[None] = []

        def after(*_: Any) -> None:
            called.append(None)
            # Fused optimizers are called in any case, and leave the parameters as they are.
            if _active is not None and _overflow_in(self, optimizer):
                _active.scaler_found_overflow(optimizer, optimizer_was_called=True)

        handle = optimizer.register_step_post_hook(after)
        try:
            result = original(self, optimizer, *args, **kwargs)
        finally:
            handle.remove()
        if not called and _active is not None:
            _active.scaler_found_overflow(optimizer, optimizer_was_called=False)
        return result

    return step


def _overflow_in(scaler: Any, optimizer: torch.optim.Optimizer) -> bool:
    found = scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"]
    return any(bool(value.item()) for value in found.values())


def _is_data_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None


def _has_closure(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("closure")) or any(callable(value) for value in args[1:])


def _optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    kind = type(optimizer)
    package = "torch.optim" if kind.__module__.startswith("torch.optim.") else kind.__module__
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"
