"""MindSpore as it is installed: versions, and whether its trainings can be recorded."""

from __future__ import annotations

import mindspore

from lockstep_frameworks.recording import packages_of, why_too_old

_OLDEST = (2, 10)
"""The first release that hands operators over as they are dispatched (`mindspore.utils.ms_dispatch`)."""


def packages() -> dict[str, str]:
    """Names and versions of the packages that compute, MindSpore first."""
    return packages_of(mindspore)


def why_unsupported() -> str:
    """Why trainings of this release cannot be recorded, with what to do; "" where they can."""
    return why_too_old(mindspore, _OLDEST)


def seed(number: int) -> None:
    """Fix MindSpore's random numbers."""
    mindspore.set_seed(number)
