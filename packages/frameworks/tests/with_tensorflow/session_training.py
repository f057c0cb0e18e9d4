"""A small training under a session of TensorFlow 1: session_training.py MODEL plain|monitored|resource [FAULT].

A model that ends with `-unfused` is run with Grappler's fusion off. Prints a digest of all variables at the end.
"""

from __future__ import annotations

import hashlib
import os
import sys

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import numpy as np
import tensorflow.compat.v1 as tf
from tensorflow.core.protobuf import rewriter_config_pb2

MODEL, MODE = sys.argv[1:3]
FAULT = sys.argv[3] if len(sys.argv) > 3 else ""
tf.disable_v2_behavior()
if MODE == "resource":
    tf.enable_resource_variables()


@tf.custom_gradient
def scaled(x: tf.Tensor) -> tuple[tf.Tensor, object]:
    """Twice its input; its gradient may be a third."""

    def gradient(upstream: tf.Tensor) -> tf.Tensor:
        return upstream * (3.0 if FAULT == "custom_gradient" else 2.0)

    return x * 2.0, gradient


def built() -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Operation]:
    """Placeholders, the loss and the update."""
    random = np.random.default_rng(0)
    x = tf.placeholder(tf.float32, [None, 8, 8, 3], name="x")
    y = tf.placeholder(tf.int64, [None], name="y")
    with tf.variable_scope("conv1"):
        first = tf.constant_initializer(random.normal(size=(3, 3, 3, 4)) * 0.3)
        kernel = tf.get_variable("kernel", [3, 3, 3, 4], initializer=first)
        bias = tf.get_variable("bias", [4], initializer=tf.zeros_initializer())
        h = tf.nn.bias_add(tf.nn.conv2d(x, kernel, strides=1, padding="SAME"), bias)
        h = tf.nn.leaky_relu(h, 0.3 if FAULT == "slope" else 0.1, name="act")
    with tf.variable_scope("log"):
        h = tf.log(tf.nn.relu(h) + (0.0 if FAULT == "log" else 1.0), name="log")
    h = scaled(h)
    with tf.variable_scope("fc"):
        second = tf.constant_initializer(random.normal(size=(256, 3)) * 0.1)
        kernel = tf.get_variable("kernel", [256, 3], initializer=second)
        logits = tf.matmul(tf.reshape(h, [-1, 256]), kernel, name="logits")
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = tf.reduce_mean(losses, name="loss")
    optimizer = tf.train.AdamOptimizer(1e-2, epsilon=1e-3 if FAULT == "adam" else 1e-8)
    pairs = optimizer.compute_gradients(loss)
    limit = 0.01 if FAULT == "clip" else 0.5
    clipped, _ = tf.clip_by_global_norm([gradient for gradient, _ in pairs], limit)
    variables = [variable for _, variable in pairs]
    step = tf.train.get_or_create_global_step()
    train = optimizer.apply_gradients(zip(clipped, variables, strict=True), global_step=step)
    return x, y, loss, train


def main() -> None:
    x, y, loss, train = built()
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    if MODEL.endswith("-unfused"):
        config.graph_options.rewrite_options.remapping = rewriter_config_pb2.RewriterConfig.OFF
    if MODEL.endswith("-as-written"):
        for one in ("arithmetic_optimization", "constant_folding"):
            setattr(
                config.graph_options.rewrite_options, one, rewriter_config_pb2.RewriterConfig.OFF
            )
    random = np.random.default_rng(1)
    images = random.normal(size=(20, 8, 8, 3)).astype("f4")
    labels = random.integers(0, 3, 20)
    saved: list[np.ndarray] = []
    opened = (
        tf.train.MonitoredTrainingSession(config=config)
        if MODE == "monitored"
        else tf.Session(config=config)
    )
    variables = tf.global_variables()
    with opened as session:
        if MODE != "monitored":
            session.run(tf.global_variables_initializer())
        for first in range(0, 20, 4):
            feed = {x: images[first : first + 4], y: labels[first : first + 4]}
            session.run({"loss": loss, "train": train}, feed_dict=feed)
        saved = session.run(variables)
    bits = b"".join(np.asarray(one).tobytes() for one in saved)
    print("weights", hashlib.sha256(bits).hexdigest())


main()
