"""TensorFlow as it is installed: versions, and whether its trainings can be recorded."""

from __future__ import annotations

import random
import re
from importlib import metadata

import numpy as np
import tensorflow as tf

_OLDEST = (2, 16)
"""The first release whose Keras is Keras 3, which layers and optimizers are read by."""


def packages() -> dict[str, str]:
    """Names and versions of the packages that compute, TensorFlow first."""
    found = {"tensorflow": str(tf.__version__)}
    for name in ("keras", "numpy", "ml_dtypes"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def why_unsupported() -> str:
    """Why trainings of this release cannot be recorded, with what to do; "" where they can."""
    numbers = tuple(map(int, re.findall(r"\d+", str(tf.__version__))[:2]))
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return f"it is {tf.__version__}, and {oldest} is the oldest release that can be; install tensorflow>={oldest}"
    return ""


def seed(number: int) -> None:
    """Fix Python's, NumPy's and TensorFlow's random numbers, and take deterministic operators."""
    random.seed(number)
    np.random.seed(number)
    tf.random.set_seed(number)
    tf.config.experimental.enable_op_determinism()
