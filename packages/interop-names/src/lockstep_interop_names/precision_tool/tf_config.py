"""precision_tool's calls in a script of TensorFlow 1; each records into `precision_data` in the current folder."""

from __future__ import annotations

from typing import Any

from lockstep.recorder import precision_face

__all__ = ["sess_dump", "session_dump_config"]

FACE = precision_face()  # from the start: a script makes its configuration after its graph


def session_dump_config(
    session_config: Any = None, action: str | None = None, dump_layer: str | None = None
) -> Any:
    """Return the configuration of a session for the training under test.

    Parameters
    ----------
    session_config
        A tf.ConfigProto, which is changed as `tf.Session` will get it; None for a new one.
    action
        "dump" records the first steps with all tensors, into `precision_data/npu/debug_0`, and takes Grappler's
        fusion off; "overflow" records numbers about the tensors of each step, into `precision_data/overflow/dump`;
        "fusion_off" takes fusion off and records nothing.
    dump_layer
        Operators to record, by parts of their names with spaces between; None for all.

    Raises
    ------
    UsageError
        If the action is another.
    """
    return FACE.configured(session_config, action, dump_layer)


def sess_dump(sess: Any) -> Any:
    """Record the first steps of the reference with all tensors, into `precision_data/tf/dump`; returns the session."""
    FACE.dump()
    return sess
