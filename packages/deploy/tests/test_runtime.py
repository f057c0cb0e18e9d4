"""The runtime: every value of a graph, the graph that really runs, and its optimizers by name."""

import numpy as np
import onnx_models
import pytest
from onnx import helper, numpy_helper

from lockstep.core.errors import UsageError
from lockstep_deploy import runtime
from lockstep_deploy.runtime import Level, Session, Settings


@pytest.fixture(scope="module")
def model():
    return onnx_models.convolution()


@pytest.fixture(scope="module")
def inputs():
    return {"x": np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype("f4")}


def test_every_value_is_what_one_pass_gives_whatever_fits_into_a_batch(model, inputs):
    names = ["conv", "norm", "relu", "pool", "flat", "logits"]
    whole = dict(runtime.every_value(model, inputs, names))
    pieces = dict(runtime.every_value(model, inputs, names, batch_bytes=1))
    assert list(whole) == list(pieces) == names
    assert all((whole[name] == pieces[name]).all() for name in names)
    assert (whole["relu"] == np.maximum(whole["norm"], 0)).all()
    assert (Session(model, Settings(Level.NONE)).run(inputs)["logits"] == whole["logits"]).all()


def test_the_graph_that_runs_is_another_where_optimizers_changed_it(model):
    def ops(settings):
        return [node.op_type for node in runtime.optimized_graph(model, settings).graph.node]

    assert "BatchNormalization" in ops(Settings(Level.NONE))
    assert "BatchNormalization" not in ops(Settings(Level.BASIC))
    assert "BatchNormalization" in ops(Settings(Level.BASIC, disabled=("ConvBNFusion",)))


def test_the_runtime_tells_which_optimizers_changed_a_graph(model):
    ran = runtime.ran_by(model, Settings(Level.EXTENDED))
    changed = {one.name for one in ran if one.changed}
    assert {"Level1_RuleBasedTransformer", "ConvActivationFusion"} <= changed
    assert "AttentionFusion" in {one.name for one in ran} - changed


def test_an_optimizer_that_the_runtime_does_not_have_is_refused(model):
    with pytest.raises(
        UsageError, match=r"no optimizer ConvBNFusoin, .* the nearest is ConvBNFusion"
    ):
        Session(model, Settings(disabled=("ConvBNFusoin",)))


def test_what_running_costs_is_measured_for_each_node(model, inputs):
    measured = runtime.measure(model, inputs, Settings(Level.NONE), runs=2)
    assert {one.op for one in measured.nodes} >= {"Conv", "MatMul"}
    assert len(measured.latencies_s) == 2
    assert measured.median_s > 0
    assert measured.peak_bytes > 8 * 8 * 8 * 4


def test_what_the_runtime_refuses_is_one_sentence(model):
    with pytest.raises(UsageError, match=r"model\.onnx: does not run"):
        Session(model, name="model.onnx").run({"x": np.zeros((2, 9), "f4")})
    broken = onnx_models.convolution()
    broken.graph.node[0].op_type = "Convolute"
    with pytest.raises(UsageError, match="does not take it"):
        Session(broken)


def test_the_node_that_the_runtime_refuses_is_named_with_the_line_that_made_it():
    noted = {
        "pkg.torch.onnx.name_scopes": "['', 'head', 'view']",
        "pkg.torch.onnx.stack_trace": 'File "net.py", line 7, in forward',
    }
    shape = numpy_helper.from_array(np.array([7, -1]), "shape")
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], "view")]
    model = onnx_models.made(nodes, [("x", ["n"])], [("y", [7, "m"])], [shape])
    for key, value in noted.items():
        model.graph.node[0].metadata_props.add(key=key, value=value)
    with pytest.raises(UsageError, match=r"does not run .*, at Reshape 'view' of head, net\.py:7"):
        Session(model).run({"x": np.zeros(8, "f4")})
    assert Session(model).run({"x": np.zeros(14, "f4")})["y"].shape == (7, 2)


def test_a_setting_that_the_runtime_does_not_have_is_refused():
    model = onnx_models.convolution()
    known = Settings(entries=(("session.set_denormal_as_zero", "1"),))
    assert Session(model, known).outputs == ("logits",)
    with pytest.raises(UsageError, match=r"nonsense\.key: onnxruntime .* has no such setting"):
        Session(model, Settings(entries=(("nonsense.key", "1"),)))
