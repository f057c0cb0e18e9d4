"""Horovod's calls become calls of the NPU's collective library; what has no equal is listed."""

from __future__ import annotations

import pytest
from tensorflow_stand_in import calls_of, migrated, outcomes, plan_of

from lockstep.wings.migrate.plan import Outcome
from lockstep.wings.migrate.tensorflow import Generation

HEAD = "import tensorflow as tf\nimport horovod.tensorflow as hvd\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("hvd.rank()", "get_npu_rank_id()"),
        ("hvd.local_rank()", "get_npu_local_rank_id()"),
        ("hvd.size()", "get_npu_rank_size()"),
        ("hvd.local_size()", "get_npu_local_rank_size()"),
        ("map(hvd.rank, x)", "map(get_npu_rank_id, x)"),
        ("hvd.DistributedOptimizer(opt)", "npu_distributed_optimizer_wrapper(opt)"),
        (
            "hvd.DistributedOptimizer(opt, name='d', op=hvd.Average)",
            "npu_distributed_optimizer_wrapper(opt)",
        ),
        (
            "hvd.DistributedOptimizer(name='d', optimizer=(opt), backward_passes_per_step=1)",
            "npu_distributed_optimizer_wrapper(optimizer=(opt))",
        ),
        (
            "hvd.DistributedOptimizer(opt, compression=hvd.Compression.fp16 if x else hvd.Compression.none)",
            "npu_distributed_optimizer_wrapper(opt)",
        ),
        (
            "hvd.BroadcastGlobalVariablesHook(0)",
            "NPUBroadcastGlobalVariablesHook(0, get_npu_rank_id())",
        ),
        (
            "hvd.BroadcastGlobalVariablesHook(root_rank=0)",
            "NPUBroadcastGlobalVariablesHook(root_rank=0, index=get_npu_rank_id())",
        ),
        (
            "hvd.callbacks.BroadcastGlobalVariablesCallback(0)",
            "NPUBroadcastGlobalVariablesCallback(0)",
        ),
        ("hvd.broadcast_global_variables(0)", "broadcast_global_variables(0)"),
        ("hvd.allreduce(x)", 'npu_allreduce(x, reduction="mean")'),
        ("hvd.allreduce((x), average=False)", 'npu_allreduce((x), reduction="sum")'),
        ("hvd.allreduce(x, op=hvd.Sum)", 'npu_allreduce(x, reduction="sum")'),
        ("hvd.nccl_built()", "False"),
    ],
)
def test_calls_become_the_npus(before: str, after: str) -> None:
    text = migrated(f"{HEAD}opt = x = []\ny = {before}\n")

    assert f"\ny = {after}\n" in text
    assert "horovod" not in text


@pytest.mark.parametrize(
    "call",
    [
        "hvd.DistributedOptimizer(opt, op=hvd.Adasum)",
        "hvd.DistributedOptimizer(opt, backward_passes_per_step=4)",
        "hvd.DistributedOptimizer(*options)",
        "hvd.DistributedOptimizer(opt, **options)",
        "hvd.DistributedOptimizer(opt, name=next(names))",
        "hvd.BroadcastGlobalVariablesHook(0, device='x')",
        "hvd.callbacks.MetricAverageCallback()",
        "hvd.allgather(x)",
        "hvd.allreduce(x, op=hvd.Adasum)",
        "hvd.allreduce(x, compression=c)",
        "hvd.init(comm=x)",
        "hvd.no_such_name()",
    ],
)
def test_what_has_no_equal_is_listed_and_the_import_stays(call: str) -> None:
    code = f"{HEAD}y = {call}\n"

    found = outcomes(code)

    assert migrated(code) == code
    assert found["horovod"] is Outcome.LISTED
    assert found["import"] is Outcome.LISTED


@pytest.mark.parametrize(
    ("imports", "use"),
    [
        ("import horovod.tensorflow as hvd", "hvd.rank()"),
        ("import horovod.tensorflow.keras as hvd", "hvd.rank()"),
        ("import horovod.keras as hvd", "hvd.rank()"),
        ("import horovod.tensorflow", "horovod.tensorflow.rank()"),
        ("from horovod import tensorflow as hvd", "hvd.rank()"),
        ("from horovod.tensorflow import rank", "rank()"),
        ("from horovod.tensorflow.mpi_ops import rank", "rank()"),
        ("from horovod.tensorflow import rank as place", "place()"),
    ],
)
def test_every_way_to_import_it_is_known(imports: str, use: str) -> None:
    text = migrated(f"import tensorflow as tf\n{imports}\ny = {use}\n")

    assert text == (
        "import tensorflow as tf\nfrom npu_bridge.npu_init import get_npu_rank_id\ny = get_npu_rank_id()\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os, horovod.tensorflow as hvd, sys", "import os, sys"),
        ("import os, horovod.tensorflow as hvd", "import os"),
        ("import horovod.tensorflow as hvd, sys", "import sys"),
        ("from horovod.tensorflow import rank, size, join", "from horovod.tensorflow import join"),
        ("from horovod.tensorflow import join, rank, size", "from horovod.tensorflow import join"),
        (
            "from horovod.tensorflow import (rank,  # a\n    join)",
            "from horovod.tensorflow import (join)",
        ),
    ],
)
def test_only_what_is_not_needed_leaves_an_import(before: str, after: str) -> None:
    use = "x = hvd.rank()" if "hvd" in before else "x = rank(), size(), join"

    text = migrated(f"{before}\n{use}\n")

    assert after + "\n" in text


@pytest.mark.parametrize(
    ("imports", "left"),
    [
        ("from tensorflow.nn import dropout", ""),
        ("from tensorflow.nn import dropout, relu", "from tensorflow.nn import relu\n"),
        ("from tensorflow.nn import dropout  # mine", ""),
        ("__all__ = ['dropout']\nfrom tensorflow.nn import dropout", None),
    ],
)
def test_an_import_that_a_rewrite_leaves_without_use_goes(imports: str, left: str | None) -> None:
    text = migrated(f"{imports}\nx = dropout(relu(1), 0.5)\n")

    if left is None:
        left = f"{imports}\n"
    head = "from npu_bridge.estimator import npu_ops\n"
    assert text == f"{left}{head}x = npu_ops.dropout(relu(1), 0.5)\n"


def test_an_import_inside_a_block_leaves_a_block() -> None:
    text = migrated(
        "import tensorflow as tf\ndef f():\n    import horovod.tensorflow as hvd\n    return hvd.rank()\n"
    )

    assert "def f():\n    pass\n    return get_npu_rank_id()\n" in text


def test_horovod_that_may_be_missing_keeps_its_import() -> None:
    code = (
        "import tensorflow as tf\n"
        "try:\n    import horovod.tensorflow as hvd\nexcept ImportError:\n    hvd = None\n"
        "rank = hvd.rank() if hvd else 0\n"
    )

    text = migrated(code)

    assert "rank = get_npu_rank_id() if hvd else 0\n" in text
    assert "    import horovod.tensorflow as hvd\n" in text
    assert outcomes(code)["import"] is Outcome.LISTED


@pytest.mark.parametrize(
    "code",
    [
        "import torch\nimport horovod.torch as hvd\nhvd.init()\n",
        "import tensorflow as tf\nimport hvd\nhvd.init()\n",
        "import tensorflow as tf\ndef f(hvd):\n    return hvd.rank()\n",
    ],
)
def test_other_modules_of_that_name_stay(code: str) -> None:
    assert migrated(code) == code


def test_an_alias_is_rewritten_where_it_is_made() -> None:
    text = migrated(f"{HEAD}rank = hvd.rank\nprint(rank())\n")

    assert text.endswith("rank = get_npu_rank_id\nprint(rank())\n")


def test_names_that_are_taken_are_imported_under_another() -> None:
    text = migrated(f"{HEAD}get_npu_rank_id = 3\nprint(hvd.rank())\n")

    assert "from npu_bridge.npu_init import get_npu_rank_id as get_npu_rank_id_2\n" in text
    assert text.endswith("get_npu_rank_id = 3\nprint(get_npu_rank_id_2())\n")


def test_a_migrated_script_joins_and_leaves_the_group() -> None:
    code = (
        f"{HEAD}"
        "def main():\n"
        "    hvd.init()\n"
        "    optimizer = hvd.DistributedOptimizer(tf.train.AdamOptimizer(0.1 * hvd.size()))\n"
        "    hooks = [hvd.BroadcastGlobalVariablesHook(0)]\n"
        "    folder = 'saved' if hvd.rank() == 0 else None\n"
        "    with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:\n"
        "        session.run(optimizer.minimize(1))\n"
        "main()\n"
    )

    calls = calls_of(code)
    names = [name.rpartition(".")[2] for name, _, _ in calls]

    assert names == [
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


@pytest.mark.parametrize(
    "code",
    [
        "def f(opt, hvd=None):\n    return hvd.DistributedOptimizer(opt)\n",
        "class A:\n    def f(self):\n        return self._hvd.rank()\n",
    ],
)
def test_horovod_that_came_in_from_elsewhere_is_listed(code: str) -> None:
    code = f"import tensorflow as tf\n{code}"

    assert migrated(code) == code
    assert outcomes(code) == {"horovod": Outcome.LISTED}


def test_another_thing_of_that_name_is_not_mentioned() -> None:
    assert outcomes("import tensorflow as tf\ndef f(hvd):\n    return hvd.volume()\n") == {}


def test_horovod_that_is_handed_on_is_listed() -> None:
    code = f"{HEAD}build(hvd)\n"

    assert migrated(code) == code
    assert outcomes(code) == {"horovod": Outcome.LISTED, "import": Outcome.LISTED}


def test_a_compression_of_a_listed_call_stays() -> None:
    code = (
        f"{HEAD}y = hvd.DistributedOptimizer(o, op=hvd.Adasum, compression=hvd.Compression.fp16)\n"
    )

    assert migrated(code) == code


class TestLocalSettings:
    def test_a_setting_that_nothing_else_uses_goes(self) -> None:
        code = (
            f"{HEAD}def f(opt):\n"
            "    compression = hvd.Compression.fp16\n"
            "    return hvd.DistributedOptimizer(opt, compression=compression)\n"
        )

        text = migrated(code)

        assert text.endswith("    pass\n    return npu_distributed_optimizer_wrapper(opt)\n")

    def test_a_setting_with_other_uses_stays(self) -> None:
        code = (
            f"{HEAD}def f(opt):\n"
            "    compression = hvd.Compression.fp16\n"
            "    print(compression)\n"
            "    return hvd.DistributedOptimizer(opt, compression=compression)\n"
        )

        text = migrated(code)

        assert "    compression = None\n    print(compression)\n" in text


class TestEager:
    def test_ranks_are_asked_of_the_open_device(self) -> None:
        code = f"{HEAD}hvd.init()\nx = hvd.rank() * 10 + hvd.size()\nprint(x)\n"

        text = migrated(code, Generation.TF2)

        assert (
            "npu.open().as_default()\nx = global_npu_ctx().worker_id * 10 + global_npu_ctx().workers_num\n"
            in text
        )

    def test_gradients_of_a_tape_are_averaged(self) -> None:
        code = (
            f"{HEAD}def step(loss, v):\n"
            "    with tf.GradientTape() as tape:\n"
            "        tape.watch(v)\n"
            "    tape = hvd.DistributedGradientTape(tape)\n"
            "    return tape.gradient(loss(), v)\n"
            "print(step(lambda: 1, 2))\n"
        )

        text = migrated(code)
        names = [name for name, _, _ in calls_of(code)]

        assert "    pass\n    return npu.distribute.all_reduce(tape.gradient(loss(), v))\n" in text
        assert names[-2:] == [
            "tensorflow.GradientTape().gradient",
            "npu_device.distribute.all_reduce",
        ]

    def test_a_tape_that_is_handed_on_is_listed(self) -> None:
        code = (
            f"{HEAD}def step(loss, v, tape):\n"
            "    tape = hvd.DistributedGradientTape(tape)\n"
            "    return apply(tape), tape.gradient(loss, v)\n"
        )

        assert migrated(code, Generation.TF2) == code

    def test_variables_are_broadcast(self) -> None:
        code = f"{HEAD}hvd.broadcast_variables(variables=v, root_rank=0)\n"

        assert migrated(code, Generation.TF2).endswith(
            "npu.distribute.broadcast(values=v, root_rank=0)\n"
        )

    def test_the_callback_that_does_nothing_is_listed(self) -> None:
        code = f"{HEAD}c = hvd.callbacks.BroadcastGlobalVariablesCallback(0)\n"

        assert outcomes(code, Generation.TF2)["horovod"] is Outcome.LISTED
        assert "npu.distribute.broadcast" in plan_of(code, Generation.TF2).mentions[-1].replacement
