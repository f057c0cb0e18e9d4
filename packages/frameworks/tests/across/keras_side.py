"""The Keras side of a pair: keras_side.py MODEL FOLDER [FAULT], from converted weights where there are any."""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

MODEL, FOLDER = sys.argv[1], Path(sys.argv[2])
FAULT = sys.argv[3] if len(sys.argv) > 3 else ""
layers = keras.layers


def convolutional() -> keras.Model:
    """Two convolutions, a normalisation and a head; a stride pads both sides as PyTorch does."""
    second = [layers.ZeroPadding2D(1, name="pad"), layers.Conv2D(8, 3, strides=2, name="c2")]
    if FAULT == "same":
        second = [layers.Conv2D(8, 3, strides=2, padding="same", name="c2")]
    turned = [] if FAULT == "flatten" else [layers.Permute((3, 1, 2), name="turn")]
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, padding="same", name="c1"),
            layers.BatchNormalization(name="bn"),
            layers.LeakyReLU(0.1, name="act"),
            *second,
            *turned,
            layers.Flatten(name="flat"),
            layers.Dense(3, name="head"),
        ],
        name="net",
    )


def recurrent() -> keras.Model:
    """An LSTM."""
    return keras.Sequential(
        [
            keras.Input((6, 3)),
            layers.LSTM(5, name="lstm", return_sequences=True),
            layers.Lambda(lambda sequence: sequence[:, -1], name="last"),
            layers.Dense(3, name="head"),
        ],
        name="net",
    )


def spoiled(name: str, value: np.ndarray) -> np.ndarray:
    """A weight, carried over wrongly."""
    if FAULT == "hwio" and name.endswith("c1.kernel"):
        return value.transpose(1, 0, 2, 3)
    if FAULT == "gates" and name.endswith("kernel") and "lstm" in name:
        first, forget, *rest = np.split(value, 4, axis=1)
        return np.concatenate([forget, first, *rest], axis=1)
    if FAULT == "forget" and name.endswith("bias") and "lstm" in name:
        return value + np.repeat([0, 1, 0, 0], len(value) // 4)
    return value


def main() -> None:
    keras.utils.set_random_seed(0)
    model = {"convolutional": convolutional, "recurrent": recurrent}[MODEL]()
    converted = FOLDER / f"{MODEL}-converted.npz"
    if converted.exists():
        given = dict(np.load(converted))
        for one in model.weights:
            name = one.path.replace("/", ".")
            if name in given:
                one.assign(spoiled(name, given[name]))
    batch = np.load(FOLDER / f"{MODEL}-batch.npz")
    x = batch["x"].transpose(0, 2, 3, 1) if MODEL == "convolutional" else batch["x"]
    optimizer = keras.optimizers.Adam(1e-2)
    with tf.GradientTape() as tape:
        logits = model(tf.constant(np.ascontiguousarray(x)), training=True)
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(tf.constant(batch["y"]), logits)
        )
    optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)


main()
