"""Arming the recorder in a process of a recorded command, right after its `import jax`."""

from __future__ import annotations

from lockstep_frameworks.jax.environment import packages, seed, why_unsupported
from lockstep_frameworks.recording import FrameworkRecording, arm

_armed: list[FrameworkRecording] = []


def arm_from_environment() -> None:
    """Arm as `lockstep record` asked for; does nothing where it did not."""
    if _armed:
        return
    recording = arm("JAX", packages(), why_unsupported(), seed)
    if recording is not None:
        from lockstep_frameworks.jax.tap import Tap  # an old release has not all of it

        tap = Tap(recording)
        _armed.append(recording)
        recording.without_step = "no call of a function under jax.jit or jax.grad took a gradient"
        recording.ended = tap.remove
        tap.install()
