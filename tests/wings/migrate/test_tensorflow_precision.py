"""Loss scaling, dropout and GELU."""

from __future__ import annotations

import pytest
from tensorflow_stand_in import calls_of, migrated, outcomes

from lockstep.wings.migrate.plan import Outcome
from lockstep.wings.migrate.tensorflow import Generation

HEAD = "import tensorflow as tf\n"
SCALES = "tf.train.experimental"
CONTRIB = "tf.contrib.mixed_precision"
DYNAMIC = "ExponentialUpdateLossScaleManager"
LOWERED = "decr_every_n_nan_or_inf=1, decr_ratio"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.nn.dropout(x, 0.5)", "npu_ops.dropout(x, 0.5)"),
        ("tf.nn.dropout(x, keep_prob=k, seed=3)", "npu_ops.dropout(x, keep_prob=k, seed=3)"),
        ("tf.nn.dropout(x, rate=1 - k)", "npu_ops.dropout(x, keep_prob=1 - (1 - k))"),
        ("tf.nn.dropout(x, rate=(r))", "npu_ops.dropout(x, keep_prob=(1 - (r)))"),
    ],
)
def test_dropout_becomes_the_npus(before: str, after: str) -> None:
    text = migrated(f"{HEAD}y = {before}\nz = tf.matmul(y, y)\n", Generation.TF1)

    assert text == (
        f"{HEAD}from npu_bridge.estimator import npu_ops\ny = {after}\nz = tf.matmul(y, y)\n"
    )


@pytest.mark.parametrize(
    "arguments", ["x", "x, 0.5, rate=0.5", "x, **options", "*all", "x, None, n, s, 'd', 0.5"]
)
def test_a_dropout_of_unknown_rate_is_listed(arguments: str) -> None:
    code = f"{HEAD}y = tf.nn.dropout({arguments})\n"

    assert migrated(code) == code
    assert outcomes(code) == {"dropout": Outcome.LISTED}


def test_dropout_of_version_two_stays() -> None:
    code = f"{HEAD}y = tf.nn.dropout(x, 0.5)\n"

    assert migrated(code, Generation.TF2).endswith("y = tf.nn.dropout(x, 0.5)\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"{SCALES}.FixedLossScale(128)", "FixedLossScaleManager(128)"),
        (f"{SCALES}.FixedLossScale(loss_scale_value=128)", "FixedLossScaleManager(loss_scale=128)"),
        (
            f"{SCALES}.DynamicLossScale()",
            f"{DYNAMIC}(init_loss_scale=2**15, incr_every_n_steps=2000, incr_ratio=2, {LOWERED}=0.5)",
        ),
        (
            f"{SCALES}.DynamicLossScale(8, increment_period=9, multiplier=4)",
            f"{DYNAMIC}(init_loss_scale=8, incr_every_n_steps=9, incr_ratio=4, {LOWERED}=1 / (4))",
        ),
        (
            f"{SCALES}.MixedPrecisionLossScaleOptimizer(opt, 128)",
            "NPULossScaleOptimizer(opt, FixedLossScaleManager(128))",
        ),
        (
            f"{SCALES}.MixedPrecisionLossScaleOptimizer(opt, loss_scale={SCALES}.FixedLossScale(8))",
            "NPULossScaleOptimizer(opt, loss_scale_manager=FixedLossScaleManager(8))",
        ),
        (
            f"{CONTRIB}.LossScaleOptimizer(opt, {CONTRIB}.FixedLossScaleManager(8))",
            "NPULossScaleOptimizer(opt, FixedLossScaleManager(8))",
        ),
    ],
)
def test_loss_scaling_becomes_the_npus(before: str, after: str) -> None:
    text = migrated(f"{HEAD}opt = None\ny = {before}\n")

    assert text.endswith(f"\ny = {after}\n")


def test_a_loss_scale_that_may_be_anything_is_listed() -> None:
    code = f"{HEAD}def f(opt, scale):\n    return {SCALES}.MixedPrecisionLossScaleOptimizer(opt, scale)\n"

    assert migrated(code) == code
    assert outcomes(code) == {"loss-scale": Outcome.LISTED}


def test_a_scale_for_the_graph_rewrite_of_gpus_stays_with_it() -> None:
    code = (
        f"{HEAD}scale = {SCALES}.FixedLossScale(8)\n"
        f"opt = {SCALES}.enable_mixed_precision_graph_rewrite(opt, scale)\n"
    )

    assert migrated(code) == code
    assert outcomes(code) == {"loss-scale": Outcome.LISTED, "unsupported": Outcome.LISTED}


def test_with_several_devices_overflow_is_shared() -> None:
    code = (
        f"{HEAD}import horovod.tensorflow as hvd\n"
        f"opt = hvd.DistributedOptimizer({SCALES}.MixedPrecisionLossScaleOptimizer(opt, 'dynamic'))\n"
    )

    assert "decr_ratio=0.5), is_distributed=True)" in migrated(code)


def test_the_migrated_script_runs() -> None:
    calls = calls_of(
        f"{HEAD}y = {SCALES}.MixedPrecisionLossScaleOptimizer(tf.train.AdamOptimizer(), 128)\n"
    )

    assert [call[0].rpartition(".")[2] for call in calls] == [
        "AdamOptimizer",
        "FixedLossScaleManager",
        "NPULossScaleOptimizer",
    ]


class TestGelu:
    def test_a_function_that_computes_it_from_parts_is_listed(self) -> None:
        code = f"{HEAD}def gelu(x):\n    return x * 0.5 * (1.0 + tf.erf(x / tf.sqrt(2.0)))\n"

        assert migrated(code) == code
        assert outcomes(code) == {"gelu": Outcome.LISTED}

    def test_another_function_of_that_name_stays(self) -> None:
        assert outcomes(f"{HEAD}def gelu(x):\n    return x + 1\n") == {}

    def test_tensorflows_own_is_kept(self) -> None:
        assert outcomes(f"{HEAD}y = tf.nn.gelu(x)\n", Generation.TF2)["gelu"] is Outcome.KEPT
