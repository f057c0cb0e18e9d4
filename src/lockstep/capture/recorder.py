"""The recorder: which step it is, when taps go in and come out, and where rows go.

A step runs from the first tapped call that builds a graph to the optimizer step that ends it. It ends when every live
optimizer has stepped, or when one steps for the second time; a gradient scaler that leaves the optimizer out ends it
too. Between chosen steps nothing is installed but one hook on optimizers.
"""

from __future__ import annotations

import functools
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from lockstep.capture import setup
from lockstep.capture.interception import Taps, wrap_compile
from lockstep.capture.leaves import argument_tensors, plain, plain_arguments, plain_attributes
from lockstep.capture.names import ModuleNames, class_name
from lockstep.capture.options import SiteFilter, StepSelection, parse_ranks
from lockstep.capture.session import OpenCall, Place, Session, quiet
from lockstep.core.errors import CaptureError
from lockstep.core.manifest import Event, NotSeen, Options, OptimizerSetup, RankManifest, StepSummary
from lockstep.core.site import CallKind, Phase
from lockstep.store.writer import RankWriter

_original_optimizer_init = torch.optim.Optimizer.__init__
_original_compile = torch.compile
_original_scaler_step = torch.amp.GradScaler.step
_IN_PLACE_RESULTS = frozenset({"torch.Tensor.__setitem__", "torch.Tensor.__delitem__"})
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
    """

    def __init__(
        self, directory: Path, options: Options, *, model: torch.nn.Module | None = None, wait_for_optimizer: bool
    ) -> None:
        self._directory = directory
        self._options = options
        self._selection = StepSelection.parse(options.steps)
        self._ranks = parse_ranks(options.ranks)
        self._sites = SiteFilter(tuple(options.only), tuple(options.skip))
        self._wait_for_optimizer = wait_for_optimizer
        self._model = model
        self._names = ModuleNames(model)
        self._taps = Taps(self, options.level)
        self._session: Session | None = None
        self._manifest: RankManifest | None = None
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._updates: list[tuple[OpenCall, torch.Tensor]] = []
        self._handles: list[Any] = []
        self._hooked: set[int] = set()
        self._step = 0
        self._open = False
        self._after_backward = False
        self._in_optimizer = 0
        self._local = threading.local()
        self._seen_once: set[str] = set()
        self._finished = False

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
            raise CaptureError("a recording is already running in this process; stop it before starting another")
        _active = self
        torch.optim.Optimizer.__init__ = _optimizer_init  # type: ignore[method-assign]
        torch.amp.GradScaler.step = _scaler_step  # type: ignore[method-assign]
        torch.compile = wrap_compile(_original_compile, lambda: _active._taps if _active is not None else None)
        self._handles.append(register_optimizer_step_pre_hook(self._before_optimizer))
        self._handles.append(register_optimizer_step_post_hook(self._after_optimizer))
        if not self._wait_for_optimizer:
            for item in gc.get_objects():
                if issubclass(type(item), torch.optim.Optimizer):
                    self._optimizers.add(item)
            self._install_if_chosen()
            self._begin_step_if_chosen()

    def finish(self, *, interrupted: bool = False) -> None:
        """Close the recording; safe to call twice."""
        if self._finished:
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
        """End the step that is open, if one is; for loops without a torch optimizer."""
        if self._open:
            self._end_step(complete=True)
            self._advance()

    def _disarm(self) -> None:
        global _active
        self._taps.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if _active is self:
            _active = None
            torch.optim.Optimizer.__init__ = _original_optimizer_init  # type: ignore[method-assign]
            torch.amp.GradScaler.step = _original_scaler_step  # type: ignore[method-assign]
            torch.compile = _original_compile
        self._names.forget()
        self._model = None

    def _close_session(self) -> None:
        if self._session is None or self._manifest is None:
            return
        writer = self._session.writer
        writer.flush()
        writer.drain()
        self._manifest.state = "complete"
        self._manifest.stopped_because = writer.failure
        self._write_manifest()
        writer.close()
        self._session = None

    # --- steps ---------------------------------------------------------------------------------------------------

    def optimizer_created(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer was made."""
        self._optimizers.add(optimizer)
        self._install_if_chosen()

    def _install_if_chosen(self) -> None:
        if self._step in self._selection and not self._finished:
            self._taps.install()

    def _begin_step_if_chosen(self) -> bool:
        """Open the step if it is a chosen one of a chosen rank; returns whether one is open."""
        if self._open:
            return True
        if self._step not in self._selection or _is_data_worker():
            return False
        session = self._session or self._open_session()
        if session is None or session.writer.failure:
            self._stop_early()
            return False
        self._open, self._after_backward = True, False
        session.begin_step(self._step)
        if self._manifest is not None:
            self._manifest.steps.append(StepSummary(self._step))
        return True

    def _open_session(self) -> Session | None:
        rank, world_size = setup.rank_and_world_size()
        if self._ranks is not None and rank not in self._ranks:
            return None
        self._manifest = setup.rank_manifest(rank, world_size, self._options)
        try:
            directory = setup.claim_rank_directory(self._directory, rank)
        except OSError as error:
            self._warn(f"{error.strerror}: {self._directory}; nothing is recorded, the training goes on")
            return None
        self._manifest.rank = directory.name
        writer = RankWriter(directory, max_bytes=self._options.max_bytes)
        self._session = Session(
            writer,
            save=self._options.save,
            sites=self._sites,
            names=self._names,
            operators=self._options.level != "module",
            parameter_name=self._parameter_name,
        )
        self._write_manifest()
        if self._model is not None:
            with quiet():
                self._adopt(self._session, self._model)
        return self._session

    def _parameter_name(self, tensor: torch.Tensor) -> str | None:
        for optimizer in list(self._optimizers):
            for group_number, group in enumerate(optimizer.param_groups):
                for number, parameter in enumerate(group["params"]):
                    if parameter is tensor:
                        self._hook_parameter(tensor)
                        return f"param_groups[{group_number}].params[{number}]"
        return None

    def _adopt(self, session: Session, module: torch.nn.Module) -> None:
        session.adopt(module)
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
        self._places().clear()
        if session is None or manifest is None:
            return
        summary = manifest.steps[-1]
        summary.complete, summary.calls = complete, session.call_count
        with quiet():
            session.end_step()
        manifest.events, manifest.not_seen = session.events, session.not_seen
        self._write_manifest()

    def _advance(self) -> None:
        self._step += 1
        if self._session is not None and self._session.writer.failure:
            self._stop_early()
        elif not self._selection.any_from(self._step):
            self.finish()
            if self._options.exit_after:
                raise SystemExit(0)
        elif self._step in self._selection:
            self._taps.install()
        else:
            self._taps.remove()

    def _stop_early(self) -> None:
        if not self._finished:
            if self._session is not None:
                self._warn(f"recording stopped: {self._session.writer.failure}; the training goes on")
            self.finish(interrupted=True)

    def _warn(self, sentence: str) -> None:
        print(f"lockstep: {sentence}", file=sys.stderr, flush=True)

    def _write_manifest(self) -> None:
        if self._session is not None and self._manifest is not None:
            self._session.writer.write_manifest(setup.as_json(self._manifest))

    # --- what the taps report ------------------------------------------------------------------------------------

    def module_call(
        self, call: Callable[..., Any], module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a module call and what is inside of it."""
        backward, grad = _in_backward(), torch.is_grad_enabled()
        places = self._places()
        if self._passes(backward, grad) or not (self._open or (grad and self._ready_to_begin())):
            return call(module, *args, **kwargs)
        session = self._session
        assert session is not None
        place = places[-1] if places else None
        compiled = _is_compiled(module)
        with quiet():
            path = self._path_of(session, module, place)
            opened = session.begin(
                CallKind.MODULE,
                place,
                class_name(module),
                argument_tensors(args, kwargs),
                plain_attributes(module),
                path=path,
                module_class=class_name(module),
                grad=grad,
                recomputed=backward,
            )
        if compiled:
            self._note_once(f"inside of {path or class_name(module)}", "compiled: recorded at its boundary only")
        places.append(Place(opened.id, path, opened.module_class, module))
        try:
            if compiled:
                result = self._taps.call_untapped(lambda: call(module, *args, **kwargs))
            else:
                result = call(module, *args, **kwargs)
        except BaseException:
            _pop_to(places, opened.id)
            with quiet():
                session.abandon(opened)
            raise
        _pop_to(places, opened.id)
        self._end(session, opened, result, module)
        return result

    def operator_call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, bool]:
        """Record a call of the torch API."""
        backward, grad = _in_backward(), torch.is_grad_enabled()
        places = self._places()
        place = places[-1] if places else None
        if self._passes(backward, grad) or (place is not None and place.opaque) or self._in_optimizer:
            return function(*args, **kwargs), True
        tensors = argument_tensors(args, kwargs)
        if not self._open and not (grad and _uses_parameter(name, tensors) and self._ready_to_begin()):
            return function(*args, **kwargs), True
        session = self._session
        assert session is not None
        opened = self._begin_operator(session, place, name, tensors, args, kwargs, grad, backward)
        with self._operator_place(opened, place):
            result = function(*args, **kwargs)
        deals = bool(tensors) and name in _IN_PLACE_RESULTS or _has_tensor(result)
        if not deals:
            session.retract(opened)
            return result, name in _IN_PLACE_RESULTS
        self._end(session, opened, result, None)
        return result, True

    def custom_function_call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record a custom autograd function as one operator; modules called inside are recorded on their own."""
        backward, grad = _in_backward(), torch.is_grad_enabled()
        places = self._places()
        if self._passes(backward, grad) or not self._open:
            return function(*args, **kwargs)
        session = self._session
        assert session is not None
        place = places[-1] if places else None
        tensors = argument_tensors(args, kwargs)
        opened = self._begin_operator(session, place, name, tensors, args, kwargs, grad, backward)
        path, module_class = (place.path, place.module_class) if place else ("", "")
        places.append(Place(opened.id, path, module_class, place.module if place else None, opaque=True))
        try:
            result = function(*args, **kwargs)
        finally:
            _pop_to(places, opened.id)
        self._end(session, opened, result, None)
        return result

    def aten_call(
        self, name: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Record one aten operator."""
        if not self._open or self._session is None:
            return function(*args, **kwargs)
        backward = _in_backward()
        phase = Phase.BACKWARD if backward else Phase.OPTIMIZER if self._in_optimizer else Phase.FORWARD
        places = self._places()
        place = places[-1] if places else None
        tensors = argument_tensors(args, kwargs)
        with quiet():
            opened = self._session.begin(
                CallKind.OPERATOR,
                place,
                name,
                tensors,
                plain_arguments(args, kwargs),
                path=place.path if place else "",
                module_class=place.module_class if place else "",
                grad=False,
                phase=phase,
            )
        result = function(*args, **kwargs)
        with quiet():
            self._session.end(opened, result)
        return result

    def backward_call(self, losses: list[torch.Tensor], run: Callable[[], Any]) -> Any:
        """Record the loss, run the autograd engine, settle gradients of which some parts did not come."""
        nested = _in_backward()
        if self._open and self._session is not None and not nested:
            with quiet():
                for tensor in losses:
                    self._session.loss(tensor)
        result = run()
        if self._open and self._session is not None and not nested:
            with quiet():
                self._session.pending.settle()
            self._after_backward = True
        return result

    def _begin_operator(
        self,
        session: Session,
        place: Place | None,
        name: str,
        tensors: list[tuple[str, torch.Tensor]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        grad: bool,
        backward: bool,
    ) -> OpenCall:
        between = self._after_backward and place is None and not grad
        with quiet():
            return session.begin(
                CallKind.OPERATOR,
                place,
                name,
                tensors,
                plain_arguments(args, kwargs),
                path=place.path if place else "",
                module_class=place.module_class if place else "",
                grad=grad,
                phase=Phase.BACKWARD if between else Phase.FORWARD,
                recomputed=backward,
            )

    def _operator_place(self, opened: OpenCall, place: Place | None) -> Any:
        if self._options.level != "aten":
            return _NOTHING
        return _Inside(self._places(), Place(opened.id, opened.path, opened.module_class, None))

    def _end(self, session: Session, opened: OpenCall, result: Any, module: torch.nn.Module | None) -> None:
        if not self._open:
            return
        with quiet():
            own = [] if module is None else module._buffers.items()
            buffers = [
                (f"{opened.path}.{name}" if opened.path else name, tensor)
                for name, tensor in own
                if tensor is not None
            ]
            session.end(opened, result, buffers=buffers)
        if session.writer.failure:
            self._stop_early()

    def _passes(self, backward: bool, grad: bool) -> bool:
        """Whether calls are none of ours now: tracing, transforms, the backward of a custom function."""
        return (
            self._finished
            or (backward and not grad)
            or torch._C._functorch.peek_interpreter_stack() is not None
            or torch._C._get_tracing_state() is not None
        )

    def _ready_to_begin(self) -> bool:
        if self._wait_for_optimizer and not len(self._optimizers):
            return False
        return self._begin_step_if_chosen()

    def _path_of(self, session: Session, module: torch.nn.Module, place: Place | None) -> str:
        path = self._names.path_of(module)
        if path is not None:
            return path
        if place is not None and place.module is not None:
            path = self._names.name_child(module, place.module, place.path)
            return path
        self._adopt(session, module)
        return self._names.path_of(module) or ""

    def _places(self) -> list[Place]:
        places: list[Place] | None = getattr(self._local, "places", None)
        if places is None:
            places = self._local.places = []
        return places

    def _note_once(self, what: str, reason: str) -> None:
        if what not in self._seen_once and self._session is not None:
            self._seen_once.add(what)
            self._session.not_seen.append(NotSeen(what, reason))

    # --- gradients and optimizers --------------------------------------------------------------------------------

    def _accumulated(self, parameter: torch.Tensor) -> None:
        if self._open and self._session is not None:
            with quiet():
                self._session.accumulated(parameter)

    def _before_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._optimizers.add(optimizer)
        self._in_optimizer += 1 if not _has_closure(args, kwargs) else 0
        if not self._open or self._session is None or self._updates:
            return
        session, name = self._session, _optimizer_name(optimizer)
        with quiet():
            for group_number, group in enumerate(optimizer.param_groups):
                for number, parameter in enumerate(group["params"]):
                    if parameter.grad is None and not _has_closure(args, kwargs):
                        continue
                    session.adopt_parameter(parameter, f"param_groups[{group_number}].params[{number}]")
                    opened = session.before_update(optimizer, name, group, parameter)
                    if opened is not None:
                        self._updates.append((opened, parameter))
        self._note_optimizer(optimizer, name)

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        self._in_optimizer = 0
        if self._open and self._session is not None:
            with quiet():
                for opened, parameter in self._updates:
                    self._session.after_update(optimizer, opened, parameter)
        self._updates.clear()
        again = optimizer in self._stepped
        self._stepped.add(optimizer)
        self._count_step(again)

    def _count_step(self, again: bool) -> None:
        if again or all(optimizer in self._stepped for optimizer in self._optimizers):
            self._stepped.clear()
            if self._open:
                self._end_step(complete=True)
            self._advance()

    def scaler_skipped(self, optimizer: torch.optim.Optimizer) -> None:
        """A gradient scaler found an overflow and left the optimizer out: the step ends without an update."""
        if self._open and self._session is not None and self._manifest is not None:
            self._session.events.append(Event("skipped_step", self._step, "the gradient scaler found inf or NaN"))
            self._manifest.steps[-1].skipped = True
        again = optimizer in self._stepped
        self._stepped.add(optimizer)
        self._count_step(again)

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


class _Inside:
    """Context that keeps a place on the stack."""

    def __init__(self, places: list[Place], place: Place) -> None:
        self._places, self._place = places, place

    def __enter__(self) -> None:
        self._places.append(self._place)

    def __exit__(self, *exception: object) -> None:
        _pop_to(self._places, self._place.call_id)


class _Nothing:
    def __enter__(self) -> None: ...

    def __exit__(self, *exception: object) -> None: ...


_NOTHING = _Nothing()


def active_recorder() -> Recorder | None:
    """The recorder at work in this process, if any."""
    return _active


@functools.wraps(_original_optimizer_init)
def _optimizer_init(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
    _original_optimizer_init(self, *args, **kwargs)
    if _active is not None:
        _active.optimizer_created(self)


@functools.wraps(_original_scaler_step)
def _scaler_step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if not hasattr(optimizer, "register_step_post_hook"):
        return _original_scaler_step(self, optimizer, *args, **kwargs)
    steps: list[None] = []
    handle = optimizer.register_step_post_hook(lambda *_: steps.append(None))
    try:
        result = _original_scaler_step(self, optimizer, *args, **kwargs)
    finally:
        handle.remove()
    if not steps and _active is not None:
        _active.scaler_skipped(optimizer)
    return result


def _pop_to(places: list[Place], call_id: int) -> None:
    while places and places[-1].call_id >= call_id:
        places.pop()


def _in_backward() -> bool:
    return bool(torch._C._current_graph_task_id() != -1)


def _is_data_worker() -> bool:
    return torch.utils.data.get_worker_info() is not None


def _is_compiled(module: torch.nn.Module) -> bool:
    if getattr(module, "_compiled_call_impl", None) is not None:
        return True
    return type(module).__name__ == "OptimizedModule" and type(module).__module__.startswith("torch._dynamo")


def _uses_parameter(name: str, tensors: list[tuple[str, torch.Tensor]]) -> bool:
    """Whether a call outside of any module starts to build a graph on a parameter: a model made of plain functions."""
    return name != "torch.Tensor.detach" and any(
        tensor.requires_grad and tensor.is_leaf for _, tensor in tensors
    )


def _has_closure(args: Any, kwargs: Any) -> bool:
    return bool(kwargs.get("closure")) or any(callable(value) for value in args[1:])


def _has_tensor(result: Any) -> bool:
    if isinstance(result, torch.Tensor):
        return True
    return isinstance(result, (tuple, list)) and any(_has_tensor(item) for item in result[:4])


def _optimizer_name(optimizer: torch.optim.Optimizer) -> str:
    kind = type(optimizer)
    package = "torch.optim" if kind.__module__.startswith("torch.optim.") else kind.__module__
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"
