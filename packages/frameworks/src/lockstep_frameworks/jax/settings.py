"""Settings of an equation as plain values: its parameters, and the numbers that stand in it."""

from __future__ import annotations

import enum
from typing import Any

import jax
import numpy as np

from lockstep_frameworks.jax.programs import Constant, Operation
from lockstep_frameworks.tensorflow.attributes import constant_of

_LEFT_OUT = frozenset(
    """
    sharding out_sharding in_shardings out_shardings weak_type name jaxpr call_jaxpr branches cond_jaxpr body_jaxpr
    jvp_jaxpr_fun fwd bwd out_trees symbolic_zeros ctx_mesh
    """.split()  # noqa: SIM905
)
"""Parameters that say nothing of what is computed, or hold programs."""


def settings_of(step: Operation) -> dict[str, Any]:
    """Return the plain settings of an operation."""
    found = {
        name: plain
        for name, value in step.equation.params.items()
        if name not in _LEFT_OUT and (plain := _plain(value)) is not None
    }
    if "precision" in step.equation.params and "precision" not in found:
        found["precision"] = str(jax.config.jax_default_matmul_precision or "default")
    for index, atom in enumerate(step.inputs):
        if isinstance(atom, Constant) and (number := constant_of(atom.value)) is not None:
            found[f"args.{index}"] = number
    return found


_SPATIAL = {3: "W", 4: "HW", 5: "DHW"}
_KNOWN_ORDERS = frozenset({"OIW", "OIHW", "OIDHW", "HWIO", "DHWIO"})
"""Orders of filters that `jax_names.csv` has; convolutions of the backward have others."""


def operator_name(step: Operation) -> str:
    """Return the name of an operation's primitive, of a convolution with the order of its filters' axes."""
    numbers = step.equation.params.get("dimension_numbers")
    order = getattr(numbers, "rhs_spec", None)
    if order is None or len(order) not in _SPATIAL:
        return f"jax.{step.name}"
    letters = dict(zip(order, f"OI{_SPATIAL[len(order)]}", strict=True))
    told = "".join(letters[axis] for axis in range(len(order)))
    return f"jax.{step.name}.{told}" if told in _KNOWN_ORDERS else f"jax.{step.name}"


def _plain(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, (np.dtype, np.generic)):
        return str(value)
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return str(value)
    if isinstance(value, (tuple, list)):
        inside = [_plain(one) for one in value]
        return None if None in inside else inside
    if type(value).__module__.startswith("jax") and type(value).__name__.endswith("Numbers"):
        return str(value)
    return None
