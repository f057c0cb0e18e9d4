"""Small trainings of JAX with one thing wrong: jax_training.py MODE [FAULT].

MODE is hand (a network of plain arrays, trained by SGD) or linen (a module of flax, trained by AdamW of optax). Prints
the bits of each loss, and a digest of all parameters after the last step.
"""

from __future__ import annotations

import hashlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

MODE = sys.argv[1]
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(4, 5)).astype("f4"), (np.arange(4) % 3).astype("i4")


def loss_of(logits: jax.Array, y: jax.Array) -> jax.Array:
    """Mean cross entropy."""
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], axis=1).mean()


def hand() -> Any:
    """Two layers of plain arrays, and SGD by hand."""
    params = {
        "fc1": {"kernel": RANDOM.normal(size=(5, 8)), "bias": np.zeros(8)},
        "fc2": {"kernel": RANDOM.normal(size=(8, 3)), "bias": np.zeros(3)},
    }
    params = jax.tree.map(lambda one: jnp.asarray(one, "float32"), params)
    rate = 0.2 if FAULT == "rate" else 0.1

    def loss(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        h = x @ params["fc1"]["kernel"] + params["fc1"]["bias"]
        h = jax.nn.gelu(h, approximate=FAULT != "gelu")
        return loss_of(h @ params["fc2"]["kernel"] + params["fc2"]["bias"], y)

    @jax.jit
    def step(params: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - rate * g, params, gradients), value

    return step, params


def linen() -> Any:
    """A module of flax and an optimizer of optax."""
    import flax.linen as nn
    import optax

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x: jax.Array) -> jax.Array:
            x = nn.Dense(8, name="fc1")(x)
            x = nn.LayerNorm(epsilon=1e-3 if FAULT == "epsilon" else 1e-6, name="norm")(x)
            return nn.Dense(3, name="fc2")(nn.gelu(x))

    model = Net()
    params = model.init(jax.random.key(0), X)
    optimizer = optax.adamw(1e-2, b1=0.8 if FAULT == "b1" else 0.9)

    @jax.jit
    def step(state: Any, x: jax.Array, y: jax.Array) -> Any:
        params, kept = state
        value, gradients = jax.value_and_grad(lambda p: loss_of(model.apply(p, x), y))(params)
        updates, kept = optimizer.update(gradients, kept, params)
        return (optax.apply_updates(params, updates), kept), value

    return step, (params, optimizer.init(params))


def main() -> None:
    step, state = {"hand": hand, "linen": linen}[MODE]()
    for _ in range(3):
        state, value = step(state, X, Y)
        print("loss", np.asarray(value).tobytes().hex())
    bits = b"".join(np.asarray(one).tobytes() for one in jax.tree.leaves(state))
    print("state", hashlib.sha256(bits).hexdigest())


main()
