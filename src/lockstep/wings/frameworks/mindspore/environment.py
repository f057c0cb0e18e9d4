"""MindSpore as it is installed: versions, and whether its trainings can be recorded."""

from __future__ import annotations

import random
import re
from importlib import metadata

import mindspore
import numpy as np

_OLDEST = (2, 10)
"""The first release that hands operators over as they are dispatched (`mindspore.utils.ms_dispatch`)."""


def packages() -> dict[str, str]:
    """Names and versions of the packages that compute, MindSpore first."""
    found = {"mindspore": str(mindspore.__version__)}
    for name in ("numpy", "ml_dtypes"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def why_unsupported() -> str:
    """Why trainings of this release cannot be recorded, with what to do; "" where they can."""
    numbers = tuple(map(int, re.findall(r"\d+", str(mindspore.__version__))[:2]))
    if numbers < _OLDEST:
        oldest = ".".join(map(str, _OLDEST))
        return (
            f"it is {mindspore.__version__}, and {oldest} is the oldest release that can be; install"
            f" mindspore>={oldest}"
        )
    return ""


def seed(number: int) -> None:
    """Fix Python's, NumPy's and MindSpore's random numbers."""
    random.seed(number)
    np.random.seed(number)
    mindspore.set_seed(number)
