"""Sessions, estimators and Keras models get the NPU's options; what cannot be seen is listed."""

from __future__ import annotations

import pytest
from tensorflow_stand_in import calls_of, migrated, outcomes, plan_of

from lockstep.wings.migrate.plan import Outcome
from lockstep.wings.migrate.tensorflow import Generation

WRAPPED = "npu_bridge.npu_init.npu_config_proto"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tf.Session()", "tf.Session(config=npu_config_proto())"),
        ("tf.Session(config=c)", "tf.Session(config=npu_config_proto(c))"),
        ("tf.Session('', g, c)", "tf.Session('', g, npu_config_proto(c))"),
        ("tf.Session(graph=g)", "tf.Session(graph=g, config=npu_config_proto())"),
        ("tf.Session(graph=(g))", "tf.Session(graph=(g), config=npu_config_proto())"),
        (
            "tf.Session(\n    graph=g,  # mine\n)",
            "tf.Session(\n    graph=g, config=npu_config_proto(),  # mine\n)",
        ),
        ("tf.InteractiveSession()", "tf.InteractiveSession(config=npu_config_proto())"),
        (
            "tf.train.MonitoredTrainingSession(hooks=h)",
            "tf.train.MonitoredTrainingSession(hooks=h, config=npu_config_proto())",
        ),
        (
            "tf.train.Supervisor(logdir=g).managed_session(c)",
            "tf.train.Supervisor(logdir=g).managed_session(c, config=npu_config_proto())",
        ),
    ],
)
def test_sessions_get_the_npus_options(before: str, after: str) -> None:
    code = f"import tensorflow as tf\ng = c = h = None\ns = {before}\n"

    text = migrated(code)

    assert f"s = {after}\n" in text
    assert "from npu_bridge.npu_init import npu_config_proto\n" in text


@pytest.mark.parametrize(
    "imports",
    [
        "import tensorflow.compat.v1 as tf\nSession = tf.Session",
        "from tensorflow import Session",
        "from tensorflow.compat.v1 import Session",
        "from tensorflow.python.client.session import Session",
    ],
)
def test_a_session_is_known_under_every_name(imports: str) -> None:
    text = migrated(f"{imports}\nwith Session() as s:\n    s.run(1)\n")

    assert "with Session(config=npu_config_proto()) as s:" in text


@pytest.mark.parametrize(
    "code",
    [
        "import requests\ns = requests.Session()\n",
        "import tensorflow as tf\nfrom requests import Session\ns = Session()\n",
        "import tensorflow as tf\nclass Session:\n    pass\ns = Session()\n",
        "import tensorflow as tf\ndef f(tf):\n    return tf.Session()\n",
        "from sqlalchemy.orm import Session\nwith Session() as s:\n    pass\n",
    ],
)
def test_another_session_stays(code: str) -> None:
    assert migrated(code) == code


@pytest.mark.parametrize("arguments", ["**options", "*options"])
def test_options_behind_stars_are_listed_and_nothing_is_lost(arguments: str) -> None:
    code = f"import tensorflow as tf\noptions = {{}}\ns = tf.Session({arguments})\n"

    assert migrated(code) == code
    assert outcomes(code) == {"session": Outcome.LISTED}


def test_a_session_class_that_is_handed_on_is_listed_but_not_one_that_is_asked_for() -> None:
    handed = "import tensorflow as tf\nrun(tf.Session)\n"
    asked = "import tensorflow as tf\nisinstance(s, tf.Session)\n"

    assert outcomes(handed) == {"session": Outcome.LISTED}
    assert outcomes(asked) == {"session": Outcome.KEPT}


def test_a_monitored_session_shows_where_its_options_come_from() -> None:
    without = "import tensorflow as tf\ns = tf.train.MonitoredSession()\n"
    creator = (
        "import tensorflow as tf\n"
        "s = tf.train.MonitoredSession(session_creator=tf.train.ChiefSessionCreator())\n"
    )

    assert outcomes(without) == {"session": Outcome.LISTED}
    assert "ChiefSessionCreator(config=npu_config_proto())" in migrated(creator)


def test_options_that_meet_no_session_get_the_entry_where_they_are_made() -> None:
    alone = "import tensorflow as tf\ndef options():\n    return tf.ConfigProto()\n"
    met = "import tensorflow as tf\nc = tf.ConfigProto()\ns = tf.Session(config=c)\n"

    assert "return npu_config_proto(tf.ConfigProto())" in migrated(alone)
    assert "c = tf.ConfigProto()\n" in migrated(met)
    assert outcomes(met)["options"] is Outcome.KEPT


def test_gpu_options_stay() -> None:
    code = (
        "import tensorflow as tf\n"
        "c = tf.ConfigProto(gpu_options=tf.GPUOptions(allow_growth=True))\n"
        "c.gpu_options.per_process_gpu_memory_fraction = 0.5\n"
        "s = tf.Session(config=c)\n"
    )

    kept = [
        mention for mention in plan_of(code).mentions if mention.rule == "tensorflow/gpu-options"
    ]

    assert [mention.outcome for mention in kept] == [Outcome.KEPT, Outcome.KEPT]
    assert "c.gpu_options.per_process_gpu_memory_fraction = 0.5\n" in migrated(code)


def test_a_migrated_session_script_runs_and_every_expression_is_evaluated_once() -> None:
    code = (
        "import tensorflow as tf\n"
        "def options():\n"
        "    return tf.ConfigProto(log_device_placement=True)\n"
        "with tf.Session(config=options()) as session:\n"
        "    session.run(tf.global_variables_initializer())\n"
    )

    calls = calls_of(code)

    assert [name for name, _, _ in calls] == [
        "tensorflow.ConfigProto",
        WRAPPED,
        "tensorflow.Session",
        "tensorflow.global_variables_initializer",
        "tensorflow.Session().run",
    ]
    assert calls[1][1] == ["tensorflow.ConfigProto()"]
    assert calls[2][2] == {"config": f"{WRAPPED}()"}


class TestEstimators:
    def test_the_run_configuration_is_passed_through(self) -> None:
        code = (
            "import tensorflow as tf\n"
            "run = tf.estimator.RunConfig(model_dir='m')\n"
            "e = tf.estimator.Estimator(model_fn=f, config=run)\n"
        )

        text = migrated(code)

        assert "RunConfig(model_dir='m', save_summary_steps=0)" in text
        assert "Estimator(model_fn=f, config=npu_run_config_init(run))" in text

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            (
                "tf.estimator.Estimator(f)",
                "tf.estimator.Estimator(f, config=npu_run_config_init())",
            ),
            (
                "tf.estimator.Estimator(f, d, c)",
                "tf.estimator.Estimator(f, d, npu_run_config_init(c))",
            ),
            (
                "tf.estimator.DNNClassifier([8], n_classes=3)",
                "tf.estimator.DNNClassifier([8], n_classes=3, config=npu_run_config_init())",
            ),
            (
                "tf.keras.estimator.model_to_estimator(m)",
                "tf.keras.estimator.model_to_estimator(m, config=npu_run_config_init())",
            ),
        ],
    )
    def test_every_estimator_gets_one(self, before: str, after: str) -> None:
        text = migrated(f"import tensorflow as tf\ne = {before}\n")

        assert f"e = {after}\n" in text

    def test_summaries_that_were_asked_for_stay(self) -> None:
        code = "import tensorflow as tf\nr = tf.estimator.RunConfig(save_summary_steps=10)\n"

        assert migrated(code) == code
        assert outcomes(code) == {"run-config": Outcome.KEPT}

    def test_tpu_switches_are_off(self) -> None:
        code = (
            "import tensorflow as tf\n"
            "e = tf.contrib.tpu.TPUEstimator(model_fn=f, config=c, use_tpu=True, train_batch_size=8)\n"
        )

        text = migrated(code)

        assert "use_tpu=False, train_batch_size=8, eval_on_tpu=False, export_to_tpu=False)" in text
        assert "config=npu_run_config_init(c)" in text

    def test_a_computed_tpu_switch_is_listed(self) -> None:
        code = (
            "import tensorflow as tf\n"
            "e = tf.contrib.tpu.TPUEstimator(f, use_tpu=flag, eval_on_tpu=False, export_to_tpu=False)\n"
        )

        assert outcomes(code) == {"estimator": Outcome.REWRITTEN, "tpu": Outcome.LISTED}
        assert "use_tpu=flag" in migrated(code)

    def test_a_class_that_derives_from_an_estimator_is_listed(self) -> None:
        code = "import tensorflow as tf\nclass Mine(tf.estimator.Estimator):\n    pass\n"

        assert migrated(code) == code
        assert outcomes(code) == {"estimator": Outcome.LISTED}

    def test_the_migrated_script_runs(self) -> None:
        calls = calls_of(
            "import tensorflow as tf\n"
            "e = tf.estimator.Estimator(model_fn=None, config=tf.estimator.RunConfig())\n"
            "e.train(input_fn=None)\n"
        )

        assert [name for name, _, _ in calls] == [
            "tensorflow.estimator.RunConfig",
            "npu_bridge.npu_init.npu_run_config_init",
            "tensorflow.estimator.Estimator",
            "tensorflow.estimator.Estimator().train",
        ]


class TestKeras:
    MODEL = "from tensorflow.keras import models\nmodel = models.Sequential()\n"

    def test_a_program_gives_keras_a_session_where_it_starts(self) -> None:
        code = (
            self.MODEL + "if __name__ == '__main__':\n    model.compile('sgd')\n    model.fit(1)\n"
        )

        calls = [name for name, _, _ in calls_of(code, Generation.TF1)]

        assert (
            "'__main__':\n    atexit.register(close_session, set_keras_session_npu_config())\n"
            in migrated(code, Generation.TF1)
        )
        assert calls == [
            "tensorflow.keras.models.Sequential",
            "npu_bridge.npu_init.set_keras_session_npu_config",
            "tensorflow.keras.models.Sequential().compile",
            "tensorflow.keras.models.Sequential().fit",
            "npu_bridge.npu_init.close_session",
        ]

    def test_a_block_on_one_line_stays_on_it(self) -> None:
        text = migrated(self.MODEL + "if __name__ == '__main__': model.fit(1)\n", Generation.TF1)

        assert text.endswith(
            "'__main__': atexit.register(close_session, set_keras_session_npu_config()); model.fit(1)\n"
        )

    def test_a_script_without_a_guard_gets_it_behind_the_imports(self) -> None:
        calls = [name for name, _, _ in calls_of(self.MODEL + "model.fit(1)\n", Generation.TF1)]

        assert calls[0] == "npu_bridge.npu_init.set_keras_session_npu_config"
        assert calls[-1] == "npu_bridge.npu_init.close_session"

    def test_a_module_that_is_no_program_is_listed(self) -> None:
        code = "import tensorflow as tf\ndef build():\n    return tf.keras.models.Sequential()\n"

        assert migrated(code) == code
        assert outcomes(code) == {"keras-session": Outcome.LISTED}

    def test_a_session_of_the_scripts_own_is_enough(self) -> None:
        code = (
            "import tensorflow as tf\n"
            "tf.keras.backend.set_session(tf.Session())\n"
            "tf.keras.models.Sequential().fit(1)\n"
        )

        assert "set_keras_session_npu_config" not in migrated(code)

    def test_a_cleared_session_is_made_anew(self) -> None:
        code = "from tensorflow.keras import backend as K\nK.clear_session()\n"

        assert migrated(code).endswith("npu_clear_session()\n")

    def test_keras_apart_from_tensorflow_is_listed(self) -> None:
        assert outcomes("import keras\nm = keras.models.Sequential()\n") == {
            "keras": Outcome.LISTED
        }


class TestSecondVersion:
    CODE = "import tensorflow as tf\n@tf.function\ndef f(x):\n    return x\n"

    def test_a_program_opens_the_device(self) -> None:
        text = migrated(self.CODE + "if __name__ == '__main__':\n    f(1)\n")

        assert (
            "import tensorflow as tf\nimport npu_device as npu\nnpu.open().as_default()\n" in text
        )

    def test_a_module_that_is_no_program_is_listed(self) -> None:
        assert outcomes(self.CODE) == {"npu-device": Outcome.LISTED}

    def test_a_session_among_eager_code_is_listed(self) -> None:
        code = "import tensorflow as tf\ns = tf.compat.v1.Session()\n"

        assert outcomes(code, Generation.TF2)["session"] is Outcome.LISTED
        assert outcomes(code, Generation.TF1)["session"] is Outcome.REWRITTEN
