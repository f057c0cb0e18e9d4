"""Placements, GPU switches, XLA and environment variables: rewritten where the meaning is plain, else listed."""

from __future__ import annotations

import pytest
from tensorflow_stand_in import calls_of, migrated, outcomes, plan_of

from lockstep.wings.migrate.plan import Outcome
from lockstep.wings.migrate.tensorflow import Generation

HEAD = "import tensorflow as tf\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("with tf.device('/gpu:0'):", 'with tf.device("/cpu:0"):'),
        ("with tf.device('/device:GPU:%d' % i):", 'with tf.device("/cpu:0"):'),
        ("with tf.device(f'/gpu:{i}'):", 'with tf.device("/cpu:0"):'),
        ("with tf.device('/gpu:{}'.format(i)):", 'with tf.device("/cpu:0"):'),
        ("with tf.device('/gpu:' + str(i)):", 'with tf.device("/cpu:0"):'),
        ("with tf.device('/gpu:0' if i else '/cpu:0'):", 'with tf.device("/cpu:0"):'),
    ],
)
def test_placements_on_a_gpu_become_the_hosts(before: str, after: str) -> None:
    code = f"{HEAD}i = 0\n{before}\n    pass\n"

    assert migrated(code) == f"{HEAD}i = 0\n{after}\n    pass\n"
    assert len(plan_of(code).mentions) == 1


@pytest.mark.parametrize("given", ["'/cpu:0'", "name", "chooser(x)", "None", "'/job:ps/task:0'"])
def test_other_placements_stay(given: str) -> None:
    code = f"{HEAD}with tf.device({given}):\n    pass\n"

    assert migrated(code) == code
    assert outcomes(code) == {}


def test_a_placement_that_calls_other_code_is_listed() -> None:
    code = f"{HEAD}with tf.device(choose('/gpu:0')):\n    pass\n"

    assert migrated(code) == code
    assert outcomes(code) == {"device": Outcome.LISTED}


def test_a_device_that_is_kept_in_a_variable_becomes_the_hosts() -> None:
    code = f"{HEAD}d = '/gpu:1' if big else \"/device:GPU:0\"\ndef f(d='/GPU:0'):\n    return tf.device(d)\n"

    assert migrated(code) == (
        f"{HEAD}d = '/cpu:0' if big else \"/device:CPU:0\"\ndef f(d='/CPU:0'):\n    return tf.device(d)\n"
    )


@pytest.mark.parametrize(
    "code", ["if d == '/gpu:0':\n    pass\n", "run('/gpu:0')\n", "d = {'/gpu:0': 1}\n"]
)
def test_a_device_string_of_unknown_use_is_listed(code: str) -> None:
    assert migrated(HEAD + code) == HEAD + code
    assert outcomes(HEAD + code) == {"device": Outcome.LISTED}


def test_prose_about_devices_stays() -> None:
    code = f'"""Runs on /gpu:0."""\n{HEAD}# with tf.device("/gpu:0")\nprint("a gpu: one")\n'

    assert migrated(code) == code
    assert outcomes(code) == {}


def test_a_variable_that_only_places_is_not_left_behind_unused() -> None:
    code = f"{HEAD}def f():\n    n = 3\n    with tf.device('/gpu:%d' % n):\n        pass\n"

    assert migrated(code) == code
    assert outcomes(code) == {"device": Outcome.LISTED}


class TestSwitches:
    def test_what_sets_gpus_up_is_left_out(self) -> None:
        code = (
            f"{HEAD}gpus = tf.config.experimental.list_physical_devices('GPU')\n"
            "for gpu in gpus:\n"
            "    tf.config.experimental.set_memory_growth(gpu, True)\n"
        )

        assert migrated(code).endswith("for gpu in gpus:\n    pass\n")
        assert outcomes(code)["unsupported"] is Outcome.LISTED

    def test_horovods_rank_in_a_switch_goes_with_it(self) -> None:
        code = (
            f"{HEAD}import horovod.tensorflow as hvd\n"
            "tf.config.experimental.set_visible_devices(gpus[hvd.local_rank()], 'GPU')\n"
            "print(tf.__version__)\n"
        )

        assert migrated(code) == f"{HEAD}pass\nprint(tf.__version__)\n"

    def test_a_switch_that_calls_other_code_is_listed(self) -> None:
        code = f"{HEAD}tf.config.experimental.set_memory_growth(next(gpus), True)\n"

        assert migrated(code) == code
        assert outcomes(code) == {"gpu-switch": Outcome.LISTED}

    def test_queries_are_listed(self) -> None:
        assert outcomes(f"{HEAD}x = tf.test.is_gpu_available()\n") == {
            "unsupported": Outcome.LISTED
        }


class TestXla:
    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("c.x = tf.OptimizerOptions.ON_1", "c.x = tf.OptimizerOptions.OFF"),
            ("tf.config.optimizer.set_jit(True)", "tf.config.optimizer.set_jit(False)"),
            (
                "s = tf.xla.experimental.jit_scope()",
                "s = tf.xla.experimental.jit_scope(compile_ops=False)",
            ),
            (
                "s = tf.xla.experimental.jit_scope(compile_ops=True)",
                "s = tf.xla.experimental.jit_scope(compile_ops=False)",
            ),
            ("f = tf.function(g, jit_compile=True)", "f = tf.function(g, jit_compile=False)"),
            ("m.compile(o, jit_compile=True)", "m.compile(o, jit_compile=False)"),
        ],
    )
    def test_it_is_off(self, before: str, after: str) -> None:
        assert migrated(f"{HEAD}{before}\n", Generation.TF1) == f"{HEAD}{after}\n"

    def test_a_computed_switch_is_listed(self) -> None:
        code = f"{HEAD}tf.config.optimizer.set_jit(flag)\n"

        assert outcomes(code) == {"xla": Outcome.LISTED}

    def test_a_switch_of_other_code_stays(self) -> None:
        code = f"{HEAD}mine(jit_compile=True)\n"

        assert migrated(code) == code


class TestEnvironment:
    def test_one_device_becomes_the_npus(self) -> None:
        code = f"import os\n{HEAD}os.environ['CUDA_VISIBLE_DEVICES'] = '2'\n"

        assert migrated(code).endswith("os.environ['ASCEND_DEVICE_ID'] = '2'\n")

    @pytest.mark.parametrize(
        "code",
        [
            "os.environ['CUDA_VISIBLE_DEVICES'] = '0,1'\n",
            "os.environ['CUDA_VISIBLE_DEVICES'] = str(x)\n",
            "x = os.environ.get('CUDA_VISIBLE_DEVICES')\n",
            "os.environ['TF_XLA_FLAGS'] = '--tf_xla_auto_jit=2'\n",
            "os.environ.setdefault('NCCL_DEBUG', 'INFO')\n",
        ],
    )
    def test_other_variables_are_listed(self, code: str) -> None:
        code = f"import os\n{HEAD}{code}"

        assert migrated(code) == code
        assert outcomes(code) == {"environment": Outcome.LISTED}


class TestUnsupported:
    @pytest.mark.parametrize(
        "code",
        [
            "s = tf.distribute.MirroredStrategy()\n",
            "m = tf.keras.utils.multi_gpu_model(m, 2)\n",
            "l = tf.keras.layers.CuDNNLSTM(3)\n",
            "o = tf.train.experimental.enable_mixed_precision_graph_rewrite(o)\n",
            "from tensorflow.python.client import device_lib\n",
            "t = tf.tpu.rewrite(f)\n",
            "tf.enable_eager_execution()\n",
        ],
    )
    def test_it_is_listed_with_a_reason(self, code: str) -> None:
        found = [
            mention
            for mention in plan_of(HEAD + code).mentions
            if "keras-session" not in mention.rule
        ]

        assert migrated(HEAD + code) == HEAD + code
        assert [mention.outcome for mention in found] == [Outcome.LISTED]
        assert found[0].reason

    def test_contrib_is_listed_where_it_is_taken_not_where_it_is_used(self) -> None:
        code = f"{HEAD}import tensorflow.contrib.slim as slim\nx = slim.conv2d(slim.flatten(y))\n"

        assert [mention.rule for mention in plan_of(code).mentions] == ["tensorflow/contrib"]

    def test_ordinary_names_are_not_mentioned(self) -> None:
        code = f"{HEAD}x = tf.matmul(tf.placeholder(tf.float32), tf.keras.layers.Dense(3)(y))\n"

        assert outcomes(code) == {}


def test_the_migrated_script_runs() -> None:
    calls = calls_of(
        f"{HEAD}for i in range(2):\n    with tf.device('/gpu:%d' % i):\n        tf.matmul(i, i)\n"
    )

    assert [call[:2] for call in calls[:2]] == [
        ("tensorflow.device", ["/cpu:0"]),
        ("tensorflow.matmul", [0, 0]),
    ]
