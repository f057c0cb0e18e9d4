"""The JAX side of a pair: jax_models.py MODEL OPTIMIZER FOLDER [FAULT], from converted weights where there are any."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

MODEL, OPTIMIZER, FOLDER = sys.argv[1], sys.argv[2], Path(sys.argv[3])
FAULT = sys.argv[4] if len(sys.argv) > 4 else ""


class Mlp(nnx.Module):
    """Two layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.fc1 = nnx.Linear(5, 8, rngs=rngs)
        self.fc2 = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.fc2(nnx.gelu(self.fc1(x), approximate=FAULT == "gelu"))


class Cnn(nnx.Module):
    """Two convolutions and a head; a stride pads both sides as PyTorch does."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        pad = "SAME" if FAULT == "same" else ((1, 1), (1, 1))
        self.c1 = nnx.Conv(3, 4, (3, 3), padding=((1, 1), (1, 1)), rngs=rngs)
        self.c2 = nnx.Conv(4, 8, (3, 3), strides=2, padding=pad, rngs=rngs)
        self.head = nnx.Linear(128, 3, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        x = nnx.leaky_relu(self.c1(x), 0.1)
        x = nnx.leaky_relu(self.c2(x), 0.1)
        return self.head(x.transpose(0, 3, 1, 2).reshape(len(x), -1))


class Block(nnx.Module):
    """Attention with two heads, and two layers."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.ln1 = nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.ln2 = nnx.LayerNorm(8, epsilon=1e-6 if FAULT == "epsilon" else 1e-5, rngs=rngs)
        self.qkv, self.proj = nnx.Linear(8, 24, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)
        self.up, self.down = nnx.Linear(8, 16, rngs=rngs), nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        b, t, c = x.shape
        parts = jnp.split(self.qkv(self.ln1(x)), 3, axis=2)
        q, k, v = (one.reshape(b, t, 2, 4).transpose(0, 2, 1, 3) for one in parts)
        weights = q @ k.swapaxes(2, 3) / (1.0 if FAULT == "scale" else math.sqrt(4))
        weights = jnp.where(jnp.tril(jnp.ones((t, t), bool)), weights, -jnp.inf)
        mixed = (nnx.softmax(weights) @ v).transpose(0, 2, 1, 3).reshape(b, t, c)
        x = x + self.proj(mixed)
        return x + self.down(nnx.gelu(self.up(self.ln2(x))))


class Gpt(nnx.Module):
    """One block over embedded tokens."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.embed, self.position = nnx.Embed(11, 8, rngs=rngs), nnx.Embed(6, 8, rngs=rngs)
        self.block, self.ln = Block(rngs), nnx.LayerNorm(8, epsilon=1e-5, rngs=rngs)
        self.head = nnx.Linear(8, 11, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.head(self.ln(self.block(self.embed(x) + self.position(jnp.arange(6)))))


def converted(model: Any) -> None:
    """Take over the weights of the other side."""
    file = FOLDER / f"{MODEL}-converted.npz"
    if file.exists():
        state, given = nnx.state(model, nnx.Param), np.load(file)
        flat = nnx.to_flat_state(state)
        for path, one in flat:
            one.set_value(jnp.asarray(given[".".join(map(str, path))]))
        nnx.update(model, state)


model = {"mlp": Mlp, "cnn": Cnn, "gpt": Gpt}[MODEL](nnx.Rngs(0))
converted(model)
RATE = 0.2 if FAULT == "rate" else 0.1
DECAY = 1e-1 if FAULT == "decay" else 1e-2
optimizer = nnx.Optimizer(
    model,
    optax.sgd(RATE) if OPTIMIZER == "sgd" else optax.adamw(1e-2, weight_decay=DECAY),
    wrt=nnx.Param,
)


@nnx.jit
def step(model: Any, optimizer: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """One step."""

    def loss_of(model: Any) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()

    value, gradients = nnx.value_and_grad(loss_of)(model)
    optimizer.update(model, gradients)
    return value


batch = np.load(FOLDER / f"{MODEL}-batch.npz")
x = batch["x"].transpose(0, 2, 3, 1) if MODEL == "cnn" else batch["x"]
for _ in range(3):
    print("loss", np.asarray(step(model, optimizer, x, batch["y"])).tobytes().hex())
