"""Arming the recorder in a process of a recorded command, right after its `import tensorflow`."""

from __future__ import annotations

from lockstep_frameworks.recording import FrameworkRecording, arm
from lockstep_frameworks.tensorflow.environment import packages, seed, why_unsupported

_armed: list[FrameworkRecording] = []


def arm_from_environment() -> None:
    """Arm as `lockstep record` asked for; does nothing where it did not."""
    if _armed:
        return
    recording = arm("TensorFlow", packages(), why_unsupported(), seed)
    if recording is not None:
        # an old release has not all of it
        from lockstep_frameworks.tensorflow.assembled_tap import tap_of

        tap = tap_of(recording)
        _armed.append(recording)
        recording.without_step = (
            "no optimizer of Keras applied gradients that a tf.GradientTape gave, and no session"
            " updated a variable"
        )
        recording.ended, recording.step_done = tap.remove, tap.step_ended
        tap.install()
