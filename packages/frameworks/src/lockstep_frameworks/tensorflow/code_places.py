"""Where TensorFlow code stands in what the user wrote, rather than in what AutoGraph made of it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.util import tf_stack

from lockstep.plugin import own_folders
from lockstep.recorder import frame_of, frames_here, innermost_frames
from lockstep.recordings import Frame

HIDDEN = (str(Path(tf.__file__).parent) + os.sep,)
_GENERATED = "__autograph_generated_file"


def stack_here() -> tuple[Frame, ...]:
    """Where this code stands in what the user wrote, rather than in what AutoGraph made of it."""
    return frames_here(HIDDEN) if tf.executing_eagerly() else graph_stack(tf_stack.extract_stack())


_stacks: dict[tuple[Frame, ...], tuple[Frame, ...]] = {}


def graph_stack(summary: Iterable[Any]) -> tuple[Frame, ...]:
    """The frames of a stack that TensorFlow has led back through AutoGraph, innermost first; of equal ones the same."""
    found = innermost_frames(
        [
            frame_of(one.filename, one.lineno or 0, one.name)
            for one in reversed(list(summary))
            if not one.filename.startswith((*own_folders(), "<frozen ", *HIDDEN))
            and _GENERATED not in one.filename
        ]
    )
    return _stacks.setdefault(found, found)
