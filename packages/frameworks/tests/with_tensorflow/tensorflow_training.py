"""Small trainings of TensorFlow with one thing wrong: tensorflow_training.py MODEL eager|function|fit|jit [FAULT].

Prints a digest of all weights after the last step.
"""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

MODEL, MODE = sys.argv[1:3]
FAULT = sys.argv[3] if len(sys.argv) > 3 else ""
if FAULT == "grappler":  # no fault: the passes that round in another order are off
    tf.config.optimizer.set_experimental_options(
        {"arithmetic_optimization": False, "constant_folding": False}
    )
layers = keras.layers
keras.utils.set_random_seed(0)


class Gelu(layers.Layer):
    """The gelu with its error function, or with tanh."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return keras.ops.gelu(x, approximate=FAULT == "gelu")


class Half(layers.Layer):
    """Does nothing, or rounds to bfloat16 on the way."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        kind = tf.bfloat16 if FAULT == "bfloat16" else tf.float32
        return tf.cast(tf.cast(x + 1.0, kind), tf.float32)


@tf.custom_gradient
def scaled(x: tf.Tensor) -> tuple[tf.Tensor, object]:
    """Twice its input; its gradient may be a third."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return upstream * (3.0 if FAULT == "custom_gradient" else 2.0)

    return x * 2.0, gradient


class Scaled(layers.Layer):
    """Calls a function with a gradient of its own."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return scaled(x)


class Loop(layers.Layer):
    """Squashes its input three times, in a loop of the graph."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        def squash(number: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            wrong = tf.cast(number == 2, tf.float32) if FAULT == "loop" else tf.constant(0.0)
            return number + 1, tf.tanh(value) * (1.0 + 0.01 * wrong)

        return tf.while_loop(lambda number, _: number < 3, squash, (tf.constant(0), x))[1]


class Log(layers.Layer):
    """A logarithm that must not see zero."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return tf.math.log(tf.nn.relu(x) + (0.0 if FAULT == "log" else 1.0))


def convolutional() -> keras.Model:
    """Convolutions, a normalisation and a head."""
    epsilon = 1e-5 if FAULT == "epsilon" else 1e-3
    momentum = 0.9 if FAULT == "momentum" else 0.99
    second = [layers.Conv2D(8, 3, strides=2, padding="same", name="c2")]
    if FAULT == "same":  # pads both sides, as a framework does whose "same" is another
        second = [layers.ZeroPadding2D(1, name="pad"), layers.Conv2D(8, 3, strides=2, name="c2")]
    flat = [layers.Permute((3, 1, 2), name="turn")] if FAULT == "flatten" else []
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", name="c1"),
            layers.BatchNormalization(name="bn", epsilon=epsilon, momentum=momentum),
            layers.LeakyReLU(0.3 if FAULT == "slope" else 0.1, name="act"),
            *second,
            Gelu(name="gelu"),
            Half(name="half"),
            *flat,
            layers.Flatten(name="flat"),
            layers.Dense(3, name="head"),
        ]
    )


def special() -> keras.Model:
    """A loop, a gradient of its own and a logarithm."""
    return keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, name="first"),
            Loop(name="loop"),
            Scaled(name="scaled"),
            Log(name="log"),
            layers.Dense(3, name="head"),
        ]
    )


def recurrent() -> keras.Model:
    """An LSTM."""
    return keras.Sequential(
        [keras.Input((4, 3)), layers.LSTM(5, name="lstm"), layers.Dense(3, name="head")]
    )


def spoiled(model: keras.Model) -> None:
    """Weights that were carried over wrongly."""
    if FAULT == "hwio":
        kernel = model.get_layer("c1").kernel
        value = kernel.numpy()
        kernel.assign(value.transpose(1, 0, 2, 3))
    if FAULT in ("gates", "forget"):
        cell = model.get_layer("lstm").cell
        first, forget, *rest = np.split(cell.kernel.numpy(), 4, axis=1)
        if FAULT == "gates":
            cell.kernel.assign(np.concatenate([forget, first, *rest], axis=1))
        else:
            cell.bias.assign(cell.bias.numpy() * 2)


def main() -> None:
    model = {"convolutional": convolutional, "special": special, "recurrent": recurrent}[MODEL]()
    random = np.random.default_rng(0)
    for one in model.trainable_variables:  # whatever layers there are beside
        if len(one.shape) > 1:
            one.assign(random.normal(size=one.shape) * 0.3)
    spoiled(model)
    optimizer = keras.optimizers.Adam(1e-2, epsilon=1e-3 if FAULT == "adam" else 1e-7)
    loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    x = random.normal(size=(20, *model.input_shape[1:])).astype("f4")
    y = random.integers(0, 3, 20)
    if MODE == "fit":
        model.compile(optimizer=optimizer, loss=loss_of)
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    else:

        def step(x: tf.Tensor, y: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        run = {"eager": step, "function": tf.function(step)}.get(MODE) or tf.function(
            step, jit_compile=True
        )
        for first in range(0, 20, 4):
            run(tf.constant(x[first : first + 4]), tf.constant(y[first : first + 4]))
    bits = b"".join(one.numpy().tobytes() for one in model.weights)
    print("weights", hashlib.sha256(bits).hexdigest())


main()
