"""A step that is recorded, beside one whose gradients are not: jax_unseen.py MODE [FAULT]. Prints the bits of losses.

MODE is pmap, inside (of a shard_map), vjp, forward (mode of differentiation), average (by a function of its own),
eager average or none.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

MODE = sys.argv[1]
RATE = 0.2 if sys.argv[2:] else 0.1
RANDOM = np.random.default_rng(0)
W = jnp.asarray(RANDOM.normal(size=(6, 3)), "float32")
X, Y = RANDOM.normal(size=(4, 6)).astype("f4"), (np.arange(4) % 3).astype("i4")


def loss_of(w: Any, x: Any, y: Any) -> Any:
    """Mean cross entropy."""
    return optax.softmax_cross_entropy_with_integer_labels(x @ w, y).mean()


@jax.jit
def step(w: Any, x: Any, y: Any) -> Any:
    """The step that is recorded."""
    value, gradient = jax.value_and_grad(loss_of)(w, x, y)
    return w - 0.1 * gradient, value


@jax.jit
def average(kept: Any, w: Any) -> Any:
    """An average of parameters."""
    return (1 - RATE) * kept + RATE * w


def on_each(w: Any, x: Any, y: Any) -> Any:
    """A step of one device."""
    gradient = jax.grad(loss_of)(w, x, y)
    return w - RATE * jax.lax.pmean(gradient, "data")


def inside(w: Any, x: Any, y: Any) -> Any:
    """A step inside of a `shard_map`."""
    mesh, parts = Mesh(np.array(jax.devices()), ("data",)), PartitionSpec("data")
    specs = {"in_specs": (PartitionSpec(), parts, parts), "out_specs": PartitionSpec()}
    return jax.jit(jax.shard_map(on_each, mesh=mesh, check_vma=False, **specs))(w, x, y)


def pulled_back(w: Any, x: Any, y: Any) -> Any:
    """A step by `jax.vjp`, without `jax.jit`."""
    _, pull = jax.vjp(lambda w: loss_of(w, x, y), w)
    return w - RATE * pull(jnp.float32(1))[0]


def unseen(other: Any, w: Any) -> Any:
    """What is done beside the step."""
    if MODE == "pmap":
        mapped = partial(jax.pmap, axis_name="data", devices=jax.devices()[:1])(on_each)
        return mapped(other[None], X[None], Y[None])[0]
    if MODE == "average":
        return average(other, w)
    if MODE == "eager average":
        return (1 - RATE) * other + RATE * w
    if MODE == "forward":
        return other - RATE * jax.jacfwd(loss_of)(other, X, Y)
    steps = {"inside": inside, "vjp": pulled_back}
    return steps[MODE](other, X, Y) if MODE in steps else other


def main() -> None:
    w = other = W
    for _ in range(3):
        w, value = step(w, X, Y)
        other = unseen(other, w)
        print("loss", np.asarray(value).tobytes().hex(), np.asarray(other).tobytes().hex())


main()
