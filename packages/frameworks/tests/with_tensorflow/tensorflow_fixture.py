"""One step of a small network: tensorflow_fixture.py eager|function [slope|adam].

`fixtures/tensorflow` holds recordings of it as `small.py`, made by `lockstep record --steps 0 --save sketch`.
"""

import sys

import keras
import numpy as np
import tensorflow as tf

MODE = sys.argv[1]
FAULT = sys.argv[2] if len(sys.argv) > 2 else ""
keras.utils.set_random_seed(0)
random = np.random.default_rng(0)
model = keras.Sequential(
    [
        keras.Input((4, 4, 2)),
        keras.layers.Conv2D(2, 3, padding="same", name="c1"),
        keras.layers.BatchNormalization(name="bn"),
        keras.layers.LeakyReLU(0.3 if FAULT == "slope" else 0.1, name="act"),
        keras.layers.Flatten(name="flat"),
        keras.layers.Dense(2, name="head"),
    ]
)
optimizer = keras.optimizers.Adam(1e-2, epsilon=1e-3 if FAULT == "adam" else 1e-7)
loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def step(x: tf.Tensor, y: tf.Tensor) -> None:
    """One update."""
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)


x = tf.constant(random.normal(size=(4, 4, 4, 2)).astype("f4"))
(tf.function(step) if MODE == "function" else step)(x, tf.constant([0, 1, 1, 0]))
