"""What precision_tool's calls record in scripts of TensorFlow 1: the member `frameworks` does it."""

from __future__ import annotations

from typing import Any

from lockstep.capture.process.environment import module_of_member


def precision_face() -> Any:
    """Return what records a session of TensorFlow 1 as precision_tool's calls ask; the member `frameworks` has it.

    Raises
    ------
    UsageError
        If TensorFlow or the member is not installed.
    """
    name = "lockstep_frameworks.tensorflow.precision_data"
    return module_of_member("frameworks", name, "precision_tool in a script of TensorFlow 1").FACE


__all__ = ["precision_face"]
