"""Migrated TensorFlow scripts run against stand-ins that have the listed names alone, and call what they should."""

from __future__ import annotations

from tensorflow_stand_in import calls_of

from lockstep_migrate.tensorflow import Generation

HEAD = "import tensorflow as tf\n"
HOROVOD = f"{HEAD}import horovod.tensorflow as hvd\n"
MODEL = "from tensorflow.keras import models\nmodel = models.Sequential()\n"
WRAPPED = "npu_bridge.npu_init.npu_config_proto"


def test_a_session_script_evaluates_every_expression_once() -> None:
    calls = calls_of(
        f"{HEAD}"
        "def options():\n"
        "    return tf.ConfigProto(log_device_placement=True)\n"
        "with tf.Session(config=options()) as session:\n"
        "    session.run(tf.global_variables_initializer())\n"
    )
    assert [name for name, _, _ in calls] == [
        "tensorflow.ConfigProto",
        WRAPPED,
        "tensorflow.Session",
        "tensorflow.global_variables_initializer",
        "tensorflow.Session().run",
    ]
    assert calls[1][1] == ["tensorflow.ConfigProto()"]
    assert calls[2][2] == {"config": f"{WRAPPED}()"}


def test_an_estimator_trains() -> None:
    calls = calls_of(
        f"{HEAD}"
        "e = tf.estimator.Estimator(model_fn=None, config=tf.estimator.RunConfig())\n"
        "e.train(input_fn=None)\n"
    )
    assert [name for name, _, _ in calls] == [
        "tensorflow.estimator.RunConfig",
        "npu_bridge.npu_init.npu_run_config_init",
        "tensorflow.estimator.Estimator",
        "tensorflow.estimator.Estimator().train",
    ]


def test_keras_is_given_its_session_before_it_trains_and_leaves_it_at_the_end() -> None:
    guarded = "if __name__ == '__main__':\n    model.compile('sgd')\n    model.fit(1)\n"
    for code, session in ((guarded, 1), ("model.fit(1)\n", 0)):
        calls = [name for name, _, _ in calls_of(MODEL + code, Generation.TF1)]
        assert calls[session] == "npu_bridge.npu_init.set_keras_session_npu_config"
        assert calls[-2:] == [
            "tensorflow.keras.models.Sequential().fit",
            "npu_bridge.npu_init.close_session",
        ]


def test_a_script_of_many_processes_joins_and_leaves_the_group() -> None:
    calls = calls_of(
        f"{HOROVOD}"
        "def main():\n"
        "    hvd.init()\n"
        "    optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1 * hvd.size()))\n"
        "    hooks = [hvd.BroadcastGlobalVariablesHook(0)]\n"
        "    folder = 'saved' if hvd.rank() == 0 else None\n"
        "    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:\n"
        "        session.run(optimizer.minimize(1))\n"
        "main()\n"
    )
    assert [name.rpartition(".")[2] for name, _, _ in calls] == [
        "init_resource",
        "get_npu_rank_size",
        "AdamOptimizer",
        "npu_distributed_optimizer_wrapper",
        "get_npu_rank_id",
        "NPUBroadcastGlobalVariablesHook",
        "get_npu_rank_id",
        "npu_config_proto",
        "MonitoredTrainingSession",
        "minimize",
        "run",
        "shutdown_resource",
    ]
    assert calls[2][1] == [0.8]
    assert calls[5][1] == [0, 0]
    assert calls[8][2]["checkpoint_dir"] == "saved"


def test_gradients_of_a_tape_are_averaged() -> None:
    calls = calls_of(
        f"{HOROVOD}def step(loss, v):\n"
        "    with tf.GradientTape() as tape:\n"
        "        tape.watch(v)\n"
        "    tape = hvd.DistributedGradientTape(tape)\n"
        "    return tape.gradient(loss(), v)\n"
        "print(step(lambda: 1, 2))\n"
    )
    assert [name for name, _, _ in calls[-2:]] == [
        "tensorflow.GradientTape().gradient",
        "npu_device.distribute.all_reduce",
    ]


def test_batches_placements_and_loss_scales_are_called_as_they_are_written() -> None:
    made = "tf.data.Dataset.from_tensor_slices(x)"
    calls = calls_of(f"{HEAD}x = 1\nd = {made}.map(print).batch(4).repeat(2)\n")
    assert calls[2][0].endswith(".batch")
    assert calls[2][1:] == ([4], {"drop_remainder": True})

    loop = "for i in range(2):\n    with tf.device('/gpu:%d' % i):\n        tf.matmul(i, i)\n"
    calls = calls_of(HEAD + loop)
    assert [call[:2] for call in calls[:2]] == [
        ("tensorflow.device", ["/cpu:0"]),
        ("tensorflow.matmul", [0, 0]),
    ]

    scaled = "tf.train.experimental.MixedPrecisionLossScaleOptimizer(tf.train.AdamOptimizer(), 128)"
    assert [call[0].rpartition(".")[2] for call in calls_of(f"{HEAD}y = {scaled}\n")] == [
        "AdamOptimizer",
        "FixedLossScaleManager",
        "NPULossScaleOptimizer",
    ]
