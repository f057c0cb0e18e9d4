"""A tap with its parts, each of which looks at TensorFlow through it."""

from __future__ import annotations

from lockstep_frameworks.recording import FrameworkRecording
from lockstep_frameworks.tensorflow.gradients import Gradients
from lockstep_frameworks.tensorflow.graph_looks import GraphLooks
from lockstep_frameworks.tensorflow.layers import Layers
from lockstep_frameworks.tensorflow.optimizers import Optimizers
from lockstep_frameworks.tensorflow.session_gradients import SessionGradients
from lockstep_frameworks.tensorflow.sessions import Sessions
from lockstep_frameworks.tensorflow.tap import Tap


def tap_of(recording: FrameworkRecording) -> Tap:
    """Return the tap whose looks go into a recording."""
    tap = Tap(recording)
    late = (Layers(tap), Optimizers(tap))
    tap.attach(Gradients(tap), GraphLooks(tap), late, Sessions(recording, SessionGradients()))
    return tap


__all__ = ["tap_of"]
