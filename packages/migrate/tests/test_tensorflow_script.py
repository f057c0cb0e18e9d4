"""What holds for every TensorFlow script: bytes outside the edits stay, a second run is empty, names exist."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorflow_stand_in import migrated, plan_of

from lockstep_migrate.catalogue import rule_words
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.engine.text import read_python
from lockstep_migrate.names import has_name
from lockstep_migrate.plan import FilePlan, Outcome
from lockstep_migrate.tensorflow import (
    Generation,
    Start,
    generation_of,
    is_program,
    project_of,
    tensorflow_mentions,
)

# Statements that hold every kind of site, put together at random.
STATEMENTS = [
    "hvd.init()",
    "opt = hvd.DistributedOptimizer(opt, compression=hvd.Compression.fp16)",
    "hooks = [hvd.BroadcastGlobalVariablesHook(0)]",
    "x = hvd.rank() + hvd.size()",
    "y = hvd.allgather(x)",
    "sess = tf.Session(config=tf.ConfigProto())",
    "sess = tf.Session()",
    "e = tf.estimator.Estimator(f, config=tf.estimator.RunConfig())",
    "e = tf.contrib.tpu.TPUEstimator(f, use_tpu=True)",
    "d = tf.data.Dataset.range(hvd.size()).batch(8)",
    "d = d.map(f).batch(8).prefetch(1)",
    "y = tf.nn.dropout(tf.nn.dropout(x, 0.5), rate=0.1)",
    "opt = tf.train.experimental.MixedPrecisionLossScaleOptimizer(opt, 'dynamic')",
    "with tf.device('/gpu:%d' % x): y = tf.matmul(x, x)",
    "os.environ['CUDA_VISIBLE_DEVICES'] = '0'  # one",
    "tf.config.experimental.set_memory_growth(gpus[hvd.local_rank()], True)",
    "tf.config.optimizer.set_jit(True)",
    "model = tf.keras.models.Sequential(); model.fit(x)",
    "if __name__ == '__main__': main(hvd.rank())",
    "s = tf.distribute.MirroredStrategy()",
    "z = 'ünïcode', x  # Kommentar: schön",
]
IMPORTS = ["import os", "import tensorflow as tf", "import horovod.tensorflow as hvd"]


@given(
    body=st.lists(st.sampled_from(STATEMENTS), max_size=8),
    line_end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "latin-1", "utf-8-sig"]),
    generation=st.sampled_from(list(Generation)),
)
def test_a_script_of_any_statements(
    body: list[str], line_end: str, encoding: str, generation: Generation
) -> None:
    declaration = "# coding: latin-1" if encoding == "latin-1" else "# a script"
    text = line_end.join([declaration, *IMPORTS, *body, ""])
    data = text.encode(encoding)

    plan = _plan(data, generation)
    result = plan.migrated()

    assert _outside(plan) == _kept_of(plan, result)
    again = _plan(result, generation)
    assert again.migrated() == result
    assert _missing_names(again) == []
    assert not any(mention.rule not in rule_words() for mention in plan.mentions)
    assert _lines_keep_their_end(result, line_end)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\nx = torch.cuda.is_available()\n",
        "import numpy as np\nwith Session() as s:\n    s.batch(8)\n",
        "",
        "# import tensorflow as tf\n",
    ],
)
def test_a_module_without_tensorflow_stays_without_a_word(code: str) -> None:
    plan = plan_of(code)

    assert plan.mentions == ()
    assert not plan.changed


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import tensorflow as tf\ns = tf.Session()\n", Generation.TF1),
        ("import tensorflow.compat.v1 as tf\ns = tf.placeholder(tf.int32)\n", Generation.TF1),
        ("import tensorflow as tf\no = tf.train.AdamOptimizer()\n", Generation.TF1),
        ("import tensorflow as tf\nx = tf.keras.models.Sequential()\n", Generation.TF1),
        ("import tensorflow as tf\n@tf.function\ndef f():\n    pass\n", Generation.TF2),
        ("import tensorflow as tf\no = tf.optimizers.Adam()\n", Generation.TF2),
        ("import tensorflow as tf\ng = tf.config.list_physical_devices('GPU')\n", Generation.TF2),
        ("import npu_device as npu\nnpu.open().as_default()\n", Generation.TF2),
    ],
)
def test_which_tensorflow_a_script_is_written_for(code: str, expected: Generation) -> None:
    source = read_python(code.encode())

    assert generation_of([ModuleScopes(source, ast.parse(code))]) is expected


@pytest.mark.parametrize(
    "code",
    [
        "import tensorflow as tf\n@tf.function\ndef f():\n    pass\n",
        "import tensorflow as tf\ndef build():\n    return tf.keras.models.Sequential()\n",
    ],
)
def test_a_module_where_no_program_starts(code: str) -> None:
    alone, part = plan_of(code), plan_of(code, start=Start.ELSEWHERE)

    assert [mention.outcome for mention in alone.mentions] == [Outcome.LISTED]
    assert [mention.outcome for mention in part.mentions] == [Outcome.KEPT]
    assert plan_of(code, start=Start.HERE).changed


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("if __name__ == '__main__':\n    main()\n", True),
        ('if "__main__" == __name__: main()\n', True),
        ("model.fit(x)\n", True),
        ("def train(model):\n    model.fit(x)\n", False),
        ("import re\npattern = re.compile('x')\n", False),
        ("", False),
    ],
)
def test_where_a_program_starts(code: str, expected: bool) -> None:
    source = read_python(code.encode())

    assert is_program(ModuleScopes(source, ast.parse(code))) is expected


def test_modules_of_a_project_belong_to_its_program() -> None:
    library = _scopes("import tensorflow as tf\nmodel = tf.keras.models.Sequential()\n")
    program = _scopes("import tensorflow as tf\n@tf.function\ndef f():\n    pass\nmodel.fit(f)\n")
    other = _scopes("if __name__ == '__main__':\n    print(1)\n")

    whole, alone = project_of([library, program, other]), project_of([library, other])

    assert whole.generation is Generation.TF2
    assert alone.generation is Generation.TF1
    assert [whole.start_of(scopes) for scopes in (library, program)] == [
        Start.ELSEWHERE,
        Start.HERE,
    ]
    # What runs without TensorFlow can set nothing up for it.
    assert alone.start_of(library) is Start.UNKNOWN


def _scopes(code: str) -> ModuleScopes:
    return ModuleScopes(read_python(code.encode()), ast.parse(code))


class TestHead:
    def test_a_file_without_a_last_line_end(self) -> None:
        text = migrated("x = lambda: tf.Session()\nimport tensorflow as tf")

        assert text == (
            "x = lambda: tf.Session(config=npu_config_proto())\nimport tensorflow as tf\n"
            "from npu_bridge.npu_init import npu_config_proto\n"
        )


def _plan(data: bytes, generation: Generation) -> FilePlan:
    source = read_python(data)
    scopes = ModuleScopes(source, ast.parse(source.text))
    mentions, additions = tensorflow_mentions(scopes, generation)
    return FilePlan(plan_of("").path, source, mentions, additions)


def _outside(plan: FilePlan) -> str:
    """The text that no edit touches."""
    kept, position = [], 0
    for edit in plan.edits:
        kept.append(plan.source.text[position : edit.span.start])
        position = edit.span.end
    return "".join([*kept, plan.source.text[position:]])


def _kept_of(plan: FilePlan, result: bytes) -> str:
    """The same, taken from the new text: what is left of it without what was written."""
    text, position = read_python(result).text, 0
    kept = []
    last = 0
    for edit in plan.edits:
        length = edit.span.start - last
        kept.append(text[position : position + length])
        position += length
        assert text[position : position + len(edit.text)] == edit.text
        position += len(edit.text)
        last = edit.span.end
    return "".join([*kept, text[position:]])


def _missing_names(plan: FilePlan) -> list[str]:
    """Names of NPU packages in a script that the lists lack; what a call gives is not looked into."""
    scopes = ModuleScopes(plan.source, ast.parse(plan.source.text))
    names = {
        scopes.name(node)
        for node in scopes.nodes
        if isinstance(node, ast.Attribute | ast.Name)
        and not isinstance(scopes.parents.get(node), ast.Attribute)
    }
    npu = {name for name in names if name.split(".")[0] in ("npu_bridge", "npu_device", "hccl")}
    return sorted(name for name in npu if not has_name("npu_bridge", name))


def _lines_keep_their_end(data: bytes, line_end: str) -> bool:
    ends = data.count(b"\r\n"), data.count(b"\n")
    return ends[0] == (ends[1] if line_end == "\r\n" else 0)


def test_listed_mentions_have_no_edits_and_rewritten_ones_have() -> None:
    code = "\n".join([*IMPORTS, *STATEMENTS, ""])

    mentions = plan_of(code).mentions

    assert {mention.outcome for mention in mentions} == set(Outcome) - {Outcome.DIFFERS}
    assert all(
        bool(mention.edits) is (mention.outcome is Outcome.REWRITTEN) for mention in mentions
    )
