"""Operators of JAX are known by what they compute; JAX itself is not needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockstep.core.operators import Family, canonical_name, family_of, operator_of


@pytest.mark.parametrize(
    ("op", "family"),
    [
        ("jax.dot_general", Family.BILINEAR),
        ("jax.conv_general_dilated.HWIO", Family.BILINEAR),
        ("jax.conv_general_dilated", Family.BILINEAR),
        ("jax.reduce_sum", Family.SUM),
        ("jax.scatter-add", Family.SUM),
        ("jax.broadcast_in_dim", Family.MOVEMENT),
        ("jax.scan.stack", Family.MOVEMENT),
        ("jax.select_n", Family.MOVEMENT),
        ("jax.something_else", Family.UNKNOWN),
    ],
)
def test_primitives_have_the_family_of_what_they_compute(op: str, family: Family) -> None:
    assert family_of(op) is family


def test_filters_are_known_by_the_order_of_their_axes() -> None:
    last, first = (operator_of(f"jax.conv_general_dilated.{order}") for order in ("HWIO", "OIHW"))
    assert last.product is not None
    assert last.product.filters_last
    assert first.name == canonical_name("torch.nn.functional.conv2d")


def test_comparing_does_not_load_jax() -> None:
    code = "import sys, lockstep, lockstep.cli.main; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
