"""Arming the recorder in a process of a recorded command, right after its `import mindspore`."""

from __future__ import annotations

from lockstep_frameworks.mindspore.environment import packages, seed, why_unsupported
from lockstep_frameworks.recording import FrameworkRecording, arm

_armed: list[FrameworkRecording] = []


def arm_from_environment() -> None:
    """Arm as `lockstep record` asked for; does nothing where it did not."""
    if _armed:
        return
    recording = arm("MindSpore", packages(), why_unsupported(), seed)
    if recording is not None:
        from lockstep_frameworks.mindspore.tap import Tap  # an old release has not all of it

        tap = Tap(recording)
        _armed.append(recording)
        recording.without_step = "no optimizer of mindspore.nn or mindspore.mint updated parameters"
        recording.ended, recording.step_done = tap.remove, tap.step_ended
        tap.install()
