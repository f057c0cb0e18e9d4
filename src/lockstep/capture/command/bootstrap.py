"""Arming the recorder in a process of a recorded command, right after its `import torch`."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.optim.optimizer import register_optimizer_step_post_hook

from lockstep.capture.command.rank_places import RankPlaces
from lockstep.capture.command.tracebacks import show_tracebacks_without_us
from lockstep.capture.patching.untraced import untraced
from lockstep.capture.process.environment import (
    ARMED,
    LEFT_OUT,
    TRAINED,
    UNRECORDED_CHILD,
    VARIABLE,
    Reached,
    leave_note,
    leave_trace,
    module_from_sources,
    request_from,
)
from lockstep.capture.process.lineage import count_forks
from lockstep.capture.process.process_ends import Endings, uncaught
from lockstep.capture.recorder import Recorder, active_recorder
from lockstep.capture.settings.setup import note_seed_at_import, seed_everything
from lockstep.devices.emulation.mode import Emulation
from lockstep.devices.emulation.profiles import device_of

_emulation: Emulation | None = None
_armed: Recorder | None = None
_registered = False


def arm_from_environment() -> None:
    """Arm as `lockstep record` asked for; does nothing where it did not."""
    global _armed, _emulation, _registered
    text = os.environ.get(VARIABLE)
    if not text or active_recorder() is not None:
        return
    directory, options = request_from(text)
    if not _registered:
        if options.seed is None:
            note_seed_at_import()
        else:
            seed_everything(options.seed)
    device = device_of(options)
    # A forked child has it already, on the stack that came along.
    if device and _emulation is None:
        _emulation = Emulation(device, training_only=True)
        _emulation.start()
    _armed = Recorder(directory, options, wait_for_optimizer=True)
    for name in options.loads:
        module_from_sources(name).begin(_armed)
    _armed.arm()
    leave_trace(directory, Reached.TORCH)
    if not _registered:
        _registered = True
        if options.places:
            RankPlaces(directory).start()
        show_tracebacks_without_us()
        atexit.register(_finish)
        Endings(_finish_recorder, _save).listen()
        count_forks()
        os.register_at_fork(after_in_child=_after_fork)
        _finish_with_multiprocessing()
        # A child of multiprocessing drops the finalizers of its parent when it starts.
        multiprocessing.util.register_after_fork(
            _finish, lambda _finish: _finish_with_multiprocessing()
        )


def _finish_with_multiprocessing() -> None:
    """Children of multiprocessing leave through os._exit, past atexit."""
    multiprocessing.util.Finalize(None, _finish, exitpriority=100)


def _finish() -> None:
    """The process ends: a step that is open will not be ended by its optimizer any more."""
    global _emulation
    _finish_recorder(uncaught())
    if _emulation is not None:
        _emulation.stop()
        _emulation = None


def _save() -> None:
    if _armed is not None:
        _armed.save()


def _finish_recorder(ended_by: str) -> None:
    global _armed
    if _armed is None:
        return
    with _no_interrupt():
        _armed.finish(interrupted=True, ended_by=ended_by)
        if not _armed.began:
            leave_trace(_armed.directory, *_reached(_armed))
        if _armed.steps_left_out:
            leave_note(_armed.directory, LEFT_OUT, str(_armed.steps_left_out))
        if _armed.records_apart:
            leave_note(_armed.directory, TRAINED, str(_armed.steps_counted))
    _armed = None


def _reached(recorder: Recorder) -> tuple[Reached, str]:
    if recorder.other_rank:
        return Reached.OTHER_RANK, ""
    if recorder.steps_counted:
        return Reached.STEPS, str(recorder.steps_counted)
    return (Reached.OPTIMIZER if recorder.optimizer_seen else Reached.UNTRAINED), ""


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Keep a second Ctrl-C from cutting off what the first one left to be written."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _after_fork() -> None:
    """A forked child starts anew: what the parent has open is the parent's.

    Where the parent has written, the child cannot: the threads of the table writer did not come
    along with the fork, and to wait for them would be to wait for ever.
    """
    global _armed
    recorder, _armed = _armed, None
    if request := os.environ.get(VARIABLE):
        leave_note(request_from(request)[0], ARMED, str(os.getpid()))
    if recorder is None:
        return
    may_be_left = recorder.may_be_left
    recorder.abandon_in_child()
    if may_be_left:
        arm_from_environment()
    else:
        _note_first_update(recorder.directory)


def _note_first_update(directory: Path) -> None:
    """Let `lockstep record` say that a child trains which could not be recorded."""

    def note(*_: object) -> None:
        handle.remove()
        leave_note(directory, UNRECORDED_CHILD)

    handle = register_optimizer_step_post_hook(untraced(note))
