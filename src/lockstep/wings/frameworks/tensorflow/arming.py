"""Arming the recorder in a process of a recorded command, right after its `import tensorflow`."""

from __future__ import annotations

from lockstep.capture.command.environment import UNWRITTEN, Reached, leave_note, leave_trace
from lockstep.capture.user_notes import warn
from lockstep.core.text import listed
from lockstep.wings.frameworks.recording import FrameworkRecording, asked, not_possible
from lockstep.wings.frameworks.tensorflow.environment import packages, seed, why_unsupported

_armed: list[FrameworkRecording] = []


def arm_from_environment() -> None:
    """Arm as `lockstep record` asked for; does nothing where it did not."""
    request = asked()
    if request is None or _armed:
        return
    directory, options = request
    impossible = not_possible(options)
    why = why_unsupported()
    if impossible:
        why = f"{listed(impossible, 3)} cannot be kept to in a TensorFlow training; leave it out"
    if why:
        leave_note(directory, UNWRITTEN, why)
        warn(f"TensorFlow is not recorded: {why}")
        return
    leave_trace(
        directory,
        Reached.FRAMEWORK,
        "TensorFlow was imported, and the process did not end by itself",
    )
    if options.seed is not None:
        seed(options.seed)
    from lockstep.wings.frameworks.tensorflow.tap import Tap  # an old release has not all of it

    recording = FrameworkRecording(directory, options, packages(), "TensorFlow")
    tap = Tap(recording)
    _armed.append(recording)
    recording.ended = tap.remove
    recording.step_done = tap.step_ended
    tap.install()
    recording.listen_for_the_end()
