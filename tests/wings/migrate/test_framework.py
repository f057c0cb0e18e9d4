"""A script for another framework than the one that was asked for is listed, and changed in no way."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.wings.migrate.files.collection import collect
from lockstep.wings.migrate.options import Framework, MigrationOptions
from lockstep.wings.migrate.plan import Outcome, Plan
from lockstep.wings.migrate.project import plan_collection

TENSORFLOW = 'import tensorflow as tf\nwith tf.device("/gpu:0"):\n    x = tf.constant(1)\n'
HOROVOD = "import horovod.tensorflow as hvd\nhvd.init()\n"
PYTORCH = "import os\nimport torch\nx = torch.ones(2).cuda()\n"


def planned(
    folder: Path, text: str, framework: Framework, name: str = "script.py", target: str = "npu"
) -> Plan:
    (folder / name).write_text(text)
    return plan_collection(collect([folder]), MigrationOptions(target, framework))


def found(plan: Plan) -> list[tuple[str, int, str]]:
    return [
        (row.rule, row.line, row.reason)
        for row in plan.rows()
        if row.rule.startswith("framework/") and row.outcome is Outcome.LISTED
    ]


KERAS = "import tensorflow as tf\nmodel = tf.keras.Sequential([])\nmodel.fit(x)\n"


@pytest.mark.parametrize("text", [TENSORFLOW, HOROVOD, KERAS])
def test_a_tensorflow_script_is_listed_once(tmp_path: Path, text: str) -> None:
    plan = planned(tmp_path, text, Framework.PYTORCH)
    reason = "is a TensorFlow script: give --from tensorflow --to npu"
    assert found(plan) == [("framework/tensorflow", 1, reason)]
    assert not any(file.changed for file in plan.files)
    # and is kept for a target that takes no TensorFlow
    assert found(planned(tmp_path, text, Framework.PYTORCH, target="neutral")) == []


@pytest.mark.parametrize(
    "text",
    [
        f"import torch\n{TENSORFLOW}",
        "import tensorflow as tf\nprint(tf.__version__)\n",
        "import horovod.torch as hvd\nhvd.init()\n",
        'text = """\nimport tensorflow as tf\n"""\n',
        "from .tensorflow import device\nwith device('/gpu:0'):\n    pass\n",
        PYTORCH,
    ],
)
def test_other_scripts_are_no_tensorflow_scripts(tmp_path: Path, text: str) -> None:
    assert found(planned(tmp_path, text, Framework.PYTORCH)) == []


def test_a_pytorch_script_is_listed_once(tmp_path: Path) -> None:
    plan = planned(tmp_path, PYTORCH, Framework.TENSORFLOW)
    assert found(plan) == [
        ("framework/pytorch", 2, "is a PyTorch script: give --from pytorch --to npu")
    ]
    assert not any(file.changed for file in plan.files)


@pytest.mark.parametrize(
    "text", [TENSORFLOW, "import torch\nx = torch.ones(2)\n", f"{TENSORFLOW}{PYTORCH}", "x = 1\n"]
)
def test_other_scripts_are_no_pytorch_scripts(tmp_path: Path, text: str) -> None:
    assert found(planned(tmp_path, text, Framework.TENSORFLOW)) == []
