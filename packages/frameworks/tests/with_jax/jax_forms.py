"""Forms in which a step of a JAX training is written: jax_forms.py MODE [FAULT].

All train the same two layers. Prints the bits of each loss, and a digest of all parameters after the last step.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

MODE = sys.argv[1]
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(4, 6)).astype("f4"), (np.arange(4) % 3).astype("i4")
LAYERS = RANDOM.normal(size=(3, 6, 6)).astype("f4") * 0.4
SLOPE = 0.3 if FAULT == "slope" else 0.1
HEAD = {"kernel": RANDOM.normal(size=(6, 3)).astype("f4"), "bias": np.zeros(3, "f4")}

Params = Any


def cross_entropy(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean over the batch."""
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()


def layer(h: jax.Array, kernel: jax.Array) -> jax.Array:
    """A product and a leaky rectifier."""
    h = h @ kernel
    return jnp.where(h > 0, h, SLOPE * h)


def one_by_one(params: Params, x: jax.Array) -> jax.Array:
    """The layers in a loop of Python."""
    for kernel in params["layers"]:
        x = layer(x, kernel)
    return x


def scanned(params: Params, x: jax.Array) -> jax.Array:
    """The layers in a loop of JAX."""
    return jax.lax.scan(lambda h, kernel: (layer(h, kernel), None), x, params["layers"])[0]


def rematerialised(params: Params, x: jax.Array) -> jax.Array:
    """The layers in a loop of JAX, computed again in the backward."""
    body = jax.checkpoint(lambda h, kernel: (layer(h, kernel), None))
    return jax.lax.scan(body, x, params["layers"])[0]


@jax.custom_vjp
def scaled(x: jax.Array) -> jax.Array:
    """Twice the input."""
    return 2 * x


def _scaled_backward(kept: None, g: jax.Array) -> tuple[jax.Array]:
    return (g * (3 if FAULT == "custom" else 2),)


scaled.defvjp(lambda x: (2 * x, None), _scaled_backward)


def branched(params: Params, x: jax.Array) -> jax.Array:
    """A branch, a loop that ends by a condition, and a gradient of its own."""
    x = one_by_one(params, x)
    x = jax.lax.cond(x.sum() < 1e6, lambda x: x * 0.5, lambda x: x, x)
    factor = jax.lax.while_loop(lambda v: v < 2.0, lambda v: v * 1.5, jnp.float32(0.7))
    return scaled(x) * factor


def called_back(params: Params, x: jax.Array) -> jax.Array:
    """A callback into Python in the middle, and one that prints."""
    x = one_by_one(params, x)
    jax.debug.callback(lambda: print("called"))
    kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return x + jax.pure_callback(lambda x: np.ones_like(x), kind, jax.lax.stop_gradient(x))


def loss_of(params: Params, x: jax.Array, y: jax.Array) -> jax.Array:
    """Loss of the network of this mode."""
    bodies: dict[str, Callable[..., jax.Array]] = {
        "scan": scanned, "remat": rematerialised, "branches": branched, "callback": called_back,
    }  # fmt: skip
    x = bodies.get(MODE, one_by_one)(params, x)
    return cross_entropy(x @ params["head"]["kernel"] + params["head"]["bias"], y)


OPTIMIZER = optax.adam(2e-2 if FAULT == "rate" else 1e-2)


def update(params: Params, kept: Any, gradients: Params) -> Any:
    """New parameters and states."""
    updates, kept = OPTIMIZER.update(gradients, kept, params)
    return optax.apply_updates(params, updates), kept


def whole(params: Params, kept: Any, x: jax.Array, y: jax.Array) -> Any:
    """A step in one function."""
    value, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return (*update(params, kept, gradients), value)


def in_parts(differentiate: Any, update: Any) -> Any:
    """A step of two functions."""

    def step(params: Params, kept: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradients = differentiate(params, x, y)
        return (*update(params, kept, gradients), value)

    return step


@partial(jax.jit, static_argnames=("name",), static_argnums=(1, 5))
def static(
    kept: Any,
    scale: float,
    params: Params,
    x: jax.Array,
    y: jax.Array,
    mode: str = "",
    *,
    name: str,
) -> Any:
    """A step with arguments that are part of the program, of which one is left out."""
    assert (name, mode) == ("static", "")
    return whole(params, kept, x * scale, y)


def looped(params: Params, kept: Any, x: jax.Array, y: jax.Array) -> Any:
    """Two steps in a loop of JAX."""

    def body(state: Any, _: None) -> Any:
        *state, value = whole(*state, x, y)
        return tuple(state), value

    (params, kept), values = jax.lax.scan(body, (params, kept), None, length=2)
    return params, kept, values[-1]


class Trainer:
    """A step that is a method."""

    @partial(jax.jit, static_argnums=0)
    def step(self, params: Params, kept: Any, x: jax.Array, y: jax.Array) -> Any:
        """One step."""
        return whole(params, kept, x, y)


def step_of_mode() -> Any:
    """The step of this mode."""
    gradient = jax.value_and_grad(loss_of)
    return {
        "eager": in_parts(gradient, update),
        "split": in_parts(jax.jit(gradient), update),
        "jits": in_parts(jax.jit(gradient), jax.jit(update, donate_argnums=(0, 1))),
        "donate": jax.jit(whole, donate_argnums=(0, 1)),
        "static": lambda p, k, x, y: static(k, 1.0, p, x, y, name="static"),
        "method": Trainer().step,
        "looped": jax.jit(looped),
    }.get(MODE, jax.jit(whole))


def main() -> None:
    params = jax.tree.map(jnp.asarray, {"layers": LAYERS, "head": HEAD})
    if MODE not in ("scan", "remat"):
        params["layers"] = list(params["layers"])
    kept, step = OPTIMIZER.init(params), step_of_mode()
    for _ in range(3):
        params, kept, value = step(params, kept, X, Y)
        print("loss", np.asarray(value).tobytes().hex())
    bits = b"".join(np.asarray(one).tobytes() for one in jax.tree.leaves(params))
    print("state", hashlib.sha256(bits).hexdigest())


main()
