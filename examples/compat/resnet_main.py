"""Train a small ResNet on scikit-learn's digits in a session of TensorFlow 1, with precision_tool's calls in it.

`python resnet_main.py` is the original script; `--action sess_dump` records it as the reference. `--action dump`
records it as the one under test, where `--device-fault` plants a convolution with stride 2 that pads all sides, as
other frameworks do. `--action overflow` looks for infinities, where `--large` makes the logarithm of the loss meet
zero. Of a script for precision_tool only the import is another.
"""

from __future__ import annotations

import argparse

import numpy as np
import tensorflow.compat.v1 as tf
from sklearn.datasets import load_digits

import lockstep_interop_names.precision_tool.tf_config as npu_tf_config

CLASSES = 10


def convolved(
    x: tf.Tensor, filters: int, strides: int, name: str, *, pads_all: bool = False
) -> tf.Tensor:
    """A 3 x 3 convolution of a batch (batch, height, width, channels)."""
    with tf.variable_scope(name):
        shape = [3, 3, int(x.shape[-1]), filters]
        first = tf.variance_scaling_initializer(seed=sum(map(ord, name)) + filters)
        kernel = tf.get_variable("kernel", shape, initializer=first)
        padding = [[0, 0], [1, 1], [1, 1], [0, 0]] if pads_all else "SAME"
        return tf.nn.conv2d(x, kernel, strides=strides, padding=padding)


def normalised(x: tf.Tensor, name: str) -> tf.Tensor:
    """A batch normalisation by the batch's own moments, and a ReLU."""
    with tf.variable_scope(name):
        channels = [int(x.shape[-1])]
        scale = tf.get_variable("gamma", channels, initializer=tf.ones_initializer())
        offset = tf.get_variable("beta", channels, initializer=tf.zeros_initializer())
        x, _, _ = tf.nn.fused_batch_norm(x, scale, offset, epsilon=1e-5)
        return tf.nn.relu(x)


def block(
    x: tf.Tensor, filters: int, strides: int, name: str, *, pads_all: bool = False
) -> tf.Tensor:
    """Two convolutions beside a shortcut."""
    with tf.variable_scope(name):
        x = normalised(x, "bn1")
        shortcut = convolved(x, filters, strides, "shortcut") if strides > 1 else x
        x = normalised(convolved(x, filters, strides, "conv1", pads_all=pads_all), "bn2")
        return convolved(x, filters, 1, "conv2") + shortcut


def network(images: tf.Tensor, *, pads_all: bool) -> tf.Tensor:
    """Logits (batch, 10) of images (batch, 8, 8, 1)."""
    x = convolved(images, 8, 1, "initial")
    x = block(x, 8, 1, "block1")
    x = block(x, 16, 2, "block2", pads_all=pads_all)
    x = tf.reduce_mean(normalised(x, "final"), [1, 2])
    with tf.variable_scope("dense"):
        kernel = tf.get_variable(
            "kernel", [16, CLASSES], initializer=tf.glorot_uniform_initializer(seed=1)
        )
        return tf.matmul(x, kernel)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--action", choices=["sess_dump", "dump", "overflow", "fusion_off"])
    parser.add_argument("--device-fault", action="store_true")
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--steps", type=int, default=4)
    given = parser.parse_args()
    tf.disable_v2_behavior()
    tf.set_random_seed(1)

    images = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
    labels = tf.placeholder(tf.int64, [None], name="labels")
    logits = network(images, pads_all=given.device_fault)
    with tf.variable_scope("loss"):
        chosen = tf.one_hot(labels, CLASSES)
        likely = tf.log(tf.nn.softmax(logits * (1e4 if given.large else 1.0)))
        loss = -tf.reduce_mean(tf.reduce_sum(chosen * likely, 1))
    step = tf.train.get_or_create_global_step()
    train = tf.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=step)

    config = tf.ConfigProto()
    if given.action not in (None, "sess_dump"):
        config = npu_tf_config.session_dump_config(config, action=given.action)
    digits = load_digits()
    pixels = (digits.images / 16.0)[..., None].astype(np.float32)
    with tf.Session(config=config) as sess:
        if given.action == "sess_dump":
            sess = npu_tf_config.sess_dump(sess)
        sess.run(tf.global_variables_initializer())
        for number in range(given.steps):
            batch = slice(32 * number, 32 * number + 32)
            feed = {images: pixels[batch], labels: digits.target[batch]}
            found, _ = sess.run([loss, train], feed_dict=feed)
            print(f"step {number}: loss {found:.4f}")


if __name__ == "__main__":
    main()
