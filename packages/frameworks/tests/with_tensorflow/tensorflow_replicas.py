"""Two replicas of MirroredStrategy on two logical CPUs: tensorflow_replicas.py fit [FAULT], in the second one alone."""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

FAULT = sys.argv[2] if len(sys.argv) > 2 else ""


class Act(keras.layers.Layer):
    """A leaky ReLU whose slope may be another in the second replica."""

    def call(self, x: tf.Tensor) -> tf.Tensor:
        replica = tf.distribute.get_replica_context()
        number = tf.get_static_value(replica.replica_id_in_sync_group) if replica else 0
        return tf.nn.leaky_relu(x, 0.3 if FAULT and number == 1 else 0.1)


def main() -> None:
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
    keras.utils.set_random_seed(0)
    with tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"]).scope():
        model = keras.Sequential(
            [
                keras.Input((6,)),
                keras.layers.Dense(5, name="first"),
                Act(name="act"),
                keras.layers.Dense(3, name="head"),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(optimizer=keras.optimizers.SGD(0.1, momentum=0.9), loss=loss)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(24, 6)).astype("f4"), random.integers(0, 3, 24)
    model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
    bits = b"".join(one.numpy().tobytes() for one in model.weights)
    print("weights", hashlib.sha256(bits).hexdigest())


main()
