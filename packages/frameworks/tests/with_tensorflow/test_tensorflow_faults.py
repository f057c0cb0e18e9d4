"""One thing wrong in a TensorFlow training: which operator is named, and pairs in which none may be."""

from __future__ import annotations

import pytest
from conftest import Trained, compared

from lockstep.core.finding import Verdict
from lockstep.report.comparison.verdict_words import headline

FAULTS = {
    "slope of a leaky ReLU": ("convolutional", "slope", "sequential.act", "tf.LeakyRelu"),
    "gelu by tanh": ("convolutional", "gelu", "sequential.gelu", "tf."),
    "epsilon of a batch norm": ("convolutional", "epsilon", "sequential.bn", "tf.AddV2"),
    "momentum of a batch norm": ("convolutional", "momentum", "sequential.bn", "tf.Mul"),
    "padding 'same' with stride 2": ("convolutional", "same", "sequential", "tf.Conv2D"),
    "HWIO not transposed": ("convolutional", "hwio", "sequential.c1", "keras.layers.Conv2D"),
    "flattened as NHWC": ("convolutional", "flatten", "sequential.flat", "tf.Reshape"),
    "a cast to bfloat16": ("convolutional", "bfloat16", "sequential.half", "Half"),
    "epsilon of Adam": ("convolutional", "adam", "sequential.c1", "keras.optimizers.Adam"),
    "LSTM gates swapped": ("recurrent", "gates", "sequential.lstm", "keras.layers.LSTM"),
    "forget bias twice": ("recurrent", "forget", "sequential.lstm", "keras.layers.LSTM"),
    "factor of a custom_gradient": (
        "special", "custom_gradient", "sequential.scaled", "tf.custom_gradient.scaled"
    ),
    "iteration 2 of a while_loop": ("special", "loop", "sequential.loop", "tf.Mul"),
    "a log of zero": ("special", "log", "sequential.log", "tf.AddV2"),
}  # fmt: skip
"""By what is wrong: the model and the fault there, and where and what is named. The infinity at a log of a session
stands in `test_recorded_sessions`, the faulty replica below."""


@pytest.mark.parametrize(("model", "fault", "module", "op"), FAULTS.values(), ids=FAULTS)
def test_the_fault_is_named(trained: Trained, model: str, fault: str, module: str, op: str) -> None:
    found = compared(trained(model, "function"), trained(model, "function", fault))
    assert found.verdict is Verdict.DIVERGED
    print(headline(found))
    origin = found.origins[0]
    assert {one.module for one in found.origins} == {origin.module}
    assert origin.step == 0
    assert (origin.module.startswith(module), origin.op.startswith(op)) == (True, True), origin


@pytest.mark.parametrize("fault", ["slope", "momentum"])
@pytest.mark.parametrize("mode", ["eager", "fit"])
def test_eager_code_and_fit_name_it_too(trained: Trained, mode: str, fault: str) -> None:
    found = compared(trained("convolutional", mode), trained("convolutional", mode, fault))
    expected = next(one[2] for one in FAULTS.values() if one[1] == fault)
    assert found.origins[0].module == expected


@pytest.mark.parametrize("model", ["convolutional", "recurrent", "special"])
def test_eager_code_and_a_function_agree(trained: Trained, model: str) -> None:
    found = compared(trained(model, "eager"), trained(model, "function"))
    assert (found.verdict, found.origins) == (Verdict.AGREE, ())
    assert found.compared > 100


def test_fit_and_a_loop_of_ones_own_agree(trained: Trained) -> None:
    found = compared(trained("convolutional", "function"), trained("convolutional", "fit"))
    assert found.verdict is Verdict.AGREE


def test_the_iteration_of_a_loop_is_told(trained: Trained) -> None:
    found = compared(trained("special", "function"), trained("special", "function", "loop"))
    assert "tensorflow_training.py:" in found.origins[0].source
    assert found.origins[0].call >= 2


def test_the_replica_that_computes_something_else_is_named_alone(trained: Trained) -> None:
    found = compared(trained("replicas", "fit"), trained("replicas", "fit", "slope"))
    print(headline(found))
    (origin,) = found.origins
    assert (origin.rank, origin.module, origin.op) == ("rank1", "sequential.act", "tf.LeakyRelu")
