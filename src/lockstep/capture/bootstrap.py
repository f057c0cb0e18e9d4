"""Arming the recorder in a process of a recorded command, right after its `import torch`."""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import sys

from lockstep.capture.environment import VARIABLE, request_from
from lockstep.capture.recorder import Recorder, active_recorder
from lockstep.capture.setup import seed_everything


def arm_from_environment() -> None:
    """Arm as `lockstep record` asked for; does nothing where it did not."""
    text = os.environ.get(VARIABLE)
    if not text or active_recorder() is not None:
        return
    directory, options = request_from(text)
    if options.seed is not None:
        seed_everything(options.seed)
    Recorder(directory, options, wait_for_optimizer=True).arm()
    if _first_time():
        atexit.register(_finish)
        os.register_at_fork(after_in_child=_after_fork)


def _first_time(_state: list[bool] = []) -> bool:  # noqa: B006 - one flag for the life of the process
    if _state:
        return False
    _state.append(True)
    return True


def _finish() -> None:
    recorder = active_recorder()
    if recorder is not None:
        recorder.finish(interrupted=getattr(sys, "last_value", None) is not None)


def _after_fork() -> None:
    """A forked child starts anew: what the parent has open is the parent's."""
    recorder = active_recorder()
    if recorder is None:
        return
    recorder.abandon_in_child()
    arm_from_environment()
    # Children of multiprocessing leave through os._exit, past atexit.
    multiprocessing.util.Finalize(None, _finish, exitpriority=100)
