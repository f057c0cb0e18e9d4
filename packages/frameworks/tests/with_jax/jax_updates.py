"""A training of JAX with something wrong in its update or its loss: jax_updates.py FORM [FAULT].

FORM says where `jax.jit` stands: whole, donate, jits (gradient and update each), split (the gradient alone), eager or
scan (whole, over layers); nnx, loose (the same without `jit`), eqx and filter (by `equinox.filter_jit`) are modules. An
optimizer may follow: eager-sgd. Prints the bits of each loss.
"""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

FORM, _, OPTIMIZER_NAME = sys.argv[1].partition("-")
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(4, 6)).astype("f4"), (np.arange(4) % 6).astype("i4")


def optimizer() -> optax.GradientTransformation:
    """The optimizer of this form, with what is wrong inside of it."""
    if OPTIMIZER_NAME == "sgd":
        return optax.sgd(1e-2, 0.9)
    epsilon = (
        {"eps": 1e-12, "eps_root": 1e-6}
        if FAULT == "root"
        else {"eps": 1e-3 if FAULT == "eps" else 1e-8}
    )
    if OPTIMIZER_NAME == "adamw" and FAULT != "coupled":
        return optax.adamw(1e-2, weight_decay=0.1, **epsilon)
    adam = optax.adam(1e-2, **epsilon)
    return optax.chain(optax.add_decayed_weights(0.1), adam) if OPTIMIZER_NAME else adam


OPTIMIZER = optimizer()
DECAY = 0.4  # a new value of an average is made of the parameter more than of the old one


def normal(*shape: int) -> Any:
    """Weights by chance."""
    return jnp.asarray(RANDOM.normal(size=shape) * 0.4, "float32")


def net() -> Any:
    """Three layers of one shape, as the module or tree of this form."""
    kernels = {name: normal(6, 6) for name in ("a", "b", "c")}
    bias = jnp.full(6, 0.1, "float32")
    if FORM in ("nnx", "loose"):
        from flax import nnx

        class Net(nnx.Module):
            def __init__(self) -> None:
                for name, one in kernels.items():
                    setattr(self, name, nnx.Param(one))
                self.bias = nnx.Param(bias)

        return Net()
    if FORM in ("eqx", "filter"):
        import equinox as eqx

        class Module(eqx.Module):
            a: jax.Array
            b: jax.Array
            c: jax.Array
            bias: jax.Array

        return Module(**kernels, bias=bias)
    return {**kernels, "bias": bias}


def parts(params: Any) -> Any:
    """Kernels and bias, of whatever they lie in."""
    if isinstance(params, dict):
        return params["a"], params["b"], params["c"], params["bias"]
    values = (getattr(params, name) for name in ("a", "b", "c", "bias"))
    return tuple(one if isinstance(one, jax.Array) else one.get_value() for one in values)


def loss_of(params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
    """Cross entropy and a penalty."""
    a, b, c, bias = parts(params)
    if FAULT == "frozen":
        b = jax.lax.stop_gradient(b)
    if FORM == "scan":
        h, _ = jax.lax.scan(lambda h, one: (jnp.tanh(h @ one + bias), None), x, jnp.stack([a, b]))
        return optax.softmax_cross_entropy_with_integer_labels(h @ c, y).mean()
    h = jnp.tanh(x @ a)
    side = jnp.tanh(h @ b + bias)
    h = h + (jax.lax.stop_gradient(side) if FAULT == "stop" else side)
    value = optax.softmax_cross_entropy_with_integer_labels(h @ c, y).mean()
    return value if FAULT == "term" else value + 1e-3 * (c * c).sum()


def updates_of(params: Any, kept: Any, gradients: Any) -> Any:
    """What is added to the parameters, and the new states."""
    if FAULT == "scaled":
        gradients = jax.tree.map(lambda one: one * 1.001, gradients)
    if FAULT == "leaf":
        leaves, tree = jax.tree.flatten(gradients)
        gradients = jax.tree.unflatten(tree, [leaves[0] * 1.001, *leaves[1:]])
    if FAULT == "clip":  # a norm that is a hair below what it is
        norm = optax.tree.norm(gradients)
        gradients = jax.tree.map(lambda one: one * (0.999 * norm / norm), gradients)
    if FAULT == "reset":
        kept = OPTIMIZER.init(params)
    return OPTIMIZER.update(gradients, kept, params)


def applied(params: Any, updates: Any) -> Any:
    """New parameters."""
    leaves, tree = jax.tree.flatten(params)
    own = jax.tree.leaves(updates)
    if FAULT == "left out":
        own[1] = jnp.zeros_like(own[1])
    if FAULT == "kept":
        new = [leaves[0], leaves[1], *(p + u for p, u in zip(leaves[2:], own[2:], strict=True))]
        return jax.tree.unflatten(tree, new)
    if FAULT == "layer":
        own[2] = own[2] * 0.9
    factor = {"half": 0.5, "twice": 2.0}.get(FAULT)
    new = [p + (u if factor is None else factor * u) for p, u in zip(leaves, own, strict=True)]
    if FAULT == "swapped":
        new[0], new[1] = new[1], new[0]
    if FAULT == "crossed":
        new[0], new[1] = leaves[0] + own[1], leaves[1] + own[0]
    return jax.tree.unflatten(tree, new)


def update(params: Any, kept: Any, gradients: Any) -> Any:
    """New parameters and states."""
    updates, kept = updates_of(params, kept, gradients)
    return applied(params, updates), kept


def whole(params: Any, kept: Any, x: jax.Array, y: jax.Array) -> Any:
    """A step in one function."""
    value, gradients = jax.value_and_grad(loss_of)(params, x, y)
    return (*update(params, kept, gradients), value)


@jax.jit
def averaged(ema: Any, params: Any, kept: Any, x: jax.Array, y: jax.Array) -> Any:
    """A step that returns an average of the parameters first."""
    new, kept, value = whole(params, kept, x, y)
    decay = 0.41 if FAULT == "decay" else DECAY
    source = params if FAULT == "late" else new
    ema = jax.tree.map(lambda old, now: decay * old + (1 - decay) * now, ema, source)
    return ema, new, kept, value


def in_parts(differentiate: Any, update: Any) -> Any:
    """A step of two functions."""

    def step(params: Any, kept: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradients = differentiate(params, x, y)
        return (*update(params, kept, gradients), value)

    return step


def nnx_step() -> Any:
    """The step of a module of NNX, which changes it in place."""
    from flax import nnx

    def step(model: Any, kept: Any, x: jax.Array, y: jax.Array) -> Any:
        value, gradients = nnx.value_and_grad(loss_of)(model, x, y)
        params = nnx.state(model, nnx.Param)
        new, kept = update(params, kept, gradients)
        nnx.update(model, new)
        return kept, value

    whole_step = step if FORM == "loose" else nnx.jit(step)

    def stepped(params: Any, kept: Any, x: jax.Array, y: jax.Array) -> Any:
        kept, value = whole_step(params, kept, x, y)
        return params, kept, value

    return stepped


def filtered() -> Any:
    """The step under `equinox.filter_jit`, which hands leaves over by their numbers."""
    import equinox as eqx

    return eqx.filter_jit(whole)


def step_of_form() -> Any:
    """The step of this form."""
    gradient = jax.value_and_grad(loss_of)
    return {
        "eager": lambda: in_parts(gradient, update),
        "split": lambda: in_parts(jax.jit(gradient), update),
        "jits": lambda: in_parts(jax.jit(gradient), jax.jit(update)),
        "donate": lambda: jax.jit(whole, donate_argnums=(0, 1)),
        "nnx": nnx_step,
        "loose": nnx_step,
        "filter": filtered,
    }.get(FORM, lambda: jax.jit(whole))()


def states_of(params: Any) -> Any:
    """First states of the optimizer."""
    if FORM not in ("nnx", "loose"):
        return OPTIMIZER.init(params)
    from flax import nnx

    return OPTIMIZER.init(nnx.state(params, nnx.Param))


def main() -> None:
    params = net()
    kept, step, ema = states_of(params), step_of_form(), params
    for _ in range(3):
        if FORM == "ema":
            ema, params, kept, value = averaged(ema, params, kept, X, Y)
        else:
            params, kept, value = step(params, kept, X, Y)
        if FAULT == "outside":
            params = jax.tree.map(lambda one: one * (1 + 1e-4), params)
        if FAULT == "reset outside":
            kept = states_of(params)
        print("loss", np.asarray(value).tobytes().hex())


main()
