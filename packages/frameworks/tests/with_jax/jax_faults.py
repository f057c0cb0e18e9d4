"""A training with mistakes that ports to JAX make: jax_faults.py [MISTAKE]. Prints the bits of each loss."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec

MISTAKE = sys.argv[1] if len(sys.argv) > 1 else ""
if MISTAKE == "precision":
    jax.config.update("jax_default_matmul_precision", "BF16_BF16_F32")


class Net(nn.Module):
    """A convolution, normalisations, dropout and a head."""

    @nn.compact
    def __call__(self, x: jax.Array, key: jax.Array) -> jax.Array:
        padding = "SAME" if MISTAKE == "padding" else ((1, 1), (1, 1))
        fan = "fan_out" if MISTAKE == "fan" else "fan_in"
        x = nn.Conv(4, (3, 3), strides=2, padding=padding, name="conv")(x)
        momentum = 0.9 if MISTAKE == "momentum" else 0.99
        x = nn.BatchNorm(use_running_average=False, momentum=momentum, name="bn")(x)
        first, second = jax.random.split(key)
        x = x * jax.random.bernoulli(first, 0.9, x.shape) / 0.9
        x = nn.gelu(x, approximate=MISTAKE != "gelu").reshape(len(x), -1)
        x = nn.LayerNorm(epsilon=1e-3 if MISTAKE == "epsilon" else 1e-6, name="ln")(x)
        init = nn.initializers.variance_scaling(1.0, fan, "normal")
        x = nn.Dense(8, kernel_init=init, name="fc")(x)
        target = x.mean(0)
        x = x - (target if MISTAKE == "stop_gradient" else jax.lax.stop_gradient(target))
        x = x * jax.random.bernoulli(first if MISTAKE == "key" else second, 0.9, x.shape) / 0.9
        return nn.Dense(3, name="head")(x)


def optimizer() -> optax.GradientTransformation:
    """Clipping, decay of kernels, and momentum."""
    mask = None if MISTAKE == "mask" else partial(jax.tree.map, lambda one: one.ndim > 1)
    parts = [optax.clip_by_global_norm(0.5), optax.add_decayed_weights(0.1, mask)]
    return optax.chain(*(parts[::-1] if MISTAKE == "order" else parts), optax.sgd(0.1, 0.9))


MODEL, OPTIMIZER = Net(), optimizer()
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(4, 6, 6, 2)).astype("f4"), np.arange(4) % 3


def loss_of(params: Any, stats: Any, x: Any, y: Any, key: Any) -> Any:
    """Mean cross entropy, and the running statistics."""
    logits, new = MODEL.apply(
        {"params": params, "batch_stats": stats}, x, key, mutable=["batch_stats"]
    )
    return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean(), new["batch_stats"]


@partial(jax.jit, donate_argnums=(0, 1, 2) if MISTAKE == "donated" else ())
def step(params: Any, stats: Any, kept: Any, x: Any, y: Any, key: Any) -> Any:
    """One step."""
    (value, stats), gradients = jax.value_and_grad(loss_of, has_aux=True)(params, stats, x, y, key)
    updates, kept = OPTIMIZER.update(gradients, kept, params)
    return optax.apply_updates(params, updates), stats, kept, value


def on_two_devices(params: Any, x: Any, y: Any) -> Any:
    """Loss of a linear model over two devices, averaged over the axis of the data."""
    mesh = Mesh(np.array(jax.devices()).reshape(2, 1), ("data", "model"))
    axis = "model" if MISTAKE == "axis" else "data"

    @partial(
        jax.shard_map, mesh=mesh, in_specs=(PartitionSpec(), PartitionSpec("data"), PartitionSpec("data")),
        out_specs=PartitionSpec(), check_vma=False,
    )  # fmt: skip
    def mean_loss(kernel: Any, x: Any, y: Any) -> Any:
        logits = x.reshape(len(x), -1) @ kernel
        value = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
        return jax.lax.pmean(value, axis)

    return mean_loss(params["kernel"], x, y)


@jax.jit
def sharded_step(params: Any, x: Any, y: Any) -> Any:
    """One step by SGD."""
    value, gradients = jax.value_and_grad(on_two_devices)(params, x, y)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value


def main() -> None:
    if len(jax.devices()) == 2:
        params = {"kernel": jnp.asarray(RANDOM.normal(size=(72, 3)), "float32")}
        for _ in range(3):
            params, value = sharded_step(params, X, Y)
            print("loss", np.asarray(value).tobytes().hex())
        return
    state = MODEL.init(jax.random.key(1), X, jax.random.key(2))
    params, stats = state["params"], state["batch_stats"]
    kept = OPTIMIZER.init(params)
    for number in range(3):
        before = params
        params, stats, kept, value = step(params, stats, kept, X, Y, jax.random.key(number))
        print("loss", np.asarray(value).tobytes().hex())
        if MISTAKE == "donated":
            print(jax.tree.map(lambda new, old: new - old, params, before))


main()
