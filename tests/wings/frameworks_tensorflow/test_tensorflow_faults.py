"""One thing wrong in a TensorFlow training: which operator is named, and pairs in which none may be."""

from __future__ import annotations

import pytest
from conftest import Trained, compared

from lockstep.core.finding import Verdict

FAULTS = [
    ("convolutional", "slope", "sequential.act", "tf.LeakyRelu"),
    ("convolutional", "gelu", "sequential.gelu", "tf."),
    ("convolutional", "epsilon", "sequential.bn", "tf.AddV2"),
    ("convolutional", "momentum", "sequential.bn", "tf.Mul"),
    ("convolutional", "same", "sequential.c2", "tf.Conv2D"),
    ("convolutional", "hwio", "sequential.c1", "keras.layers.Conv2D"),
    ("convolutional", "flatten", "sequential.flat", "tf.Reshape"),
    ("convolutional", "bfloat16", "sequential.half", "tf.Cast"),
    ("convolutional", "adam", "sequential.c1", "keras.optimizers.Adam"),
    ("recurrent", "gates", "sequential.lstm", "keras.layers.LSTM"),
    ("recurrent", "forget", "sequential.lstm", "keras.layers.LSTM"),
    ("special", "custom_gradient", "sequential.scaled", "tf.custom_gradient.scaled"),
    ("special", "loop", "sequential.loop", "tf.Mul"),
    ("special", "log", "sequential.log", "tf.AddV2"),
]


@pytest.mark.parametrize(("model", "fault", "module", "op"), FAULTS)
def test_the_fault_is_named(trained: Trained, model: str, fault: str, module: str, op: str) -> None:
    found = compared(trained(model, "function"), trained(model, "function", fault))
    assert found.verdict is Verdict.DIVERGED
    origin = found.origins[0]
    assert origin.step == 0
    assert (origin.module.startswith(module), origin.op.startswith(op)) == (True, True), origin


@pytest.mark.parametrize("fault", ["slope", "momentum"])
@pytest.mark.parametrize("mode", ["eager", "fit"])
def test_eager_code_and_fit_name_it_too(trained: Trained, mode: str, fault: str) -> None:
    found = compared(trained("convolutional", mode), trained("convolutional", mode, fault))
    expected = next(one[2] for one in FAULTS if one[1] == fault)
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
    assert found.origins[0].source.startswith("tensorflow_training.py:")
    assert found.origins[0].call >= 2


def test_the_replica_that_computes_something_else_is_named_alone(trained: Trained) -> None:
    found = compared(trained("replicas", "fit"), trained("replicas", "fit", "slope"))
    (origin,) = found.origins
    assert (origin.rank, origin.module, origin.op) == ("rank1", "sequential.act", "tf.LeakyRelu")
