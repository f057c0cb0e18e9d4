"""JAX as it is installed: versions, and whether its trainings can be recorded."""

from __future__ import annotations

import jax

from lockstep_frameworks.recording import packages_of, why_too_old

_OLDEST = (0, 10)
"""The first release whose jaxprs were read here."""


def packages() -> dict[str, str]:
    """Names and versions of the packages that compute, JAX first."""
    return packages_of(jax, "jaxlib", "flax", "optax", "equinox")


_FLAGS = (
    "jax_default_matmul_precision", "jax_enable_x64", "jax_numpy_dtype_promotion", "jax_default_prng_impl",
    "jax_threefry_partitionable",
)  # fmt: skip
"""Flags that say how numbers are computed."""


def numerics() -> dict[str, str]:
    """Return the flags of JAX that say how numbers are computed, as they are now."""
    values = {name: getattr(jax.config, name, None) for name in _FLAGS}
    return {name: "default" if one is None else str(one) for name, one in values.items()}


def why_unsupported() -> str:
    """Why trainings of this release cannot be recorded, with what to do; "" where they can."""
    return why_too_old(jax, _OLDEST)


def seed(number: int) -> None:
    """Do nothing: JAX draws from keys that the script makes."""
