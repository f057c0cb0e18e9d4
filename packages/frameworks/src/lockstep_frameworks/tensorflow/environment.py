"""TensorFlow as it is installed: versions, and whether its trainings can be recorded."""

from __future__ import annotations

import tensorflow as tf

from lockstep_frameworks.recording import packages_of, why_too_old

_OLDEST = (2, 16)
"""The first release whose Keras is Keras 3, which layers and optimizers are read by."""


def packages() -> dict[str, str]:
    """Names and versions of the packages that compute, TensorFlow first."""
    return packages_of(tf, "keras")


def why_unsupported() -> str:
    """Why trainings of this release cannot be recorded, with what to do; "" where they can."""
    return why_too_old(tf, _OLDEST)


def seed(number: int) -> None:
    """Fix TensorFlow's random numbers, and take deterministic operators."""
    tf.random.set_seed(number)
    tf.config.experimental.enable_op_determinism()
