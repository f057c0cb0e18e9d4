"""What this wing registers: the frameworks that it records."""

from __future__ import annotations

from lockstep.hookspecs import Framework, hookimpl


@hookimpl
def lockstep_frameworks() -> list[Framework]:
    """TensorFlow 2, with Keras 3."""
    return [Framework("TensorFlow", "tensorflow", "lockstep.wings.frameworks.tensorflow.arming")]
