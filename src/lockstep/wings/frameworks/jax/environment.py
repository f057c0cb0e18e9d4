"""JAX as it is installed: versions, and whether its trainings can be recorded."""

from __future__ import annotations

import jax

from lockstep.wings.frameworks.recording import packages_of, why_too_old

_OLDEST = (0, 10)
"""The first release whose jaxprs were read here."""


def packages() -> dict[str, str]:
    """Names and versions of the packages that compute, JAX first."""
    return packages_of(jax, "jaxlib", "flax", "optax", "equinox")


def why_unsupported() -> str:
    """Why trainings of this release cannot be recorded, with what to do; "" where they can."""
    return why_too_old(jax, _OLDEST)


def seed(number: int) -> None:
    """Do nothing: JAX draws from keys that the script makes."""
