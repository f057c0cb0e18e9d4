"""`lockstep quantize`: tables of embeddings, and models of float16."""

import json

import numpy as np
import onnx
import onnx_models
import pytest
from click.testing import CliRunner
from onnx import TensorProto, helper, numpy_helper

from lockstep_deploy.model_file import open_model
from lockstep_deploy.quantize.build import Plan, quantized_model
from lockstep_deploy.quantize.calibration import read_samples
from lockstep_deploy.quantize.errors import Standing, layer_errors
from lockstep_deploy.quantize.layers import layers_of
from lockstep_deploy.quantize_command import quantize
from lockstep_deploy.runtime import Session

DRAW = np.random.default_rng(0)


@pytest.fixture
def words(tmp_path):
    """A table of 96 words, and a matrix product of what is looked up."""
    held = [
        numpy_helper.from_array(DRAW.standard_normal(shape).astype("f4"), name)
        for name, shape in (("table", (96, 64)), ("head", (64, 8)))
    ]
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], "lookup"),
        helper.make_node("MatMul", ["rows", "head"], ["y"], "head"),
    ]
    model = onnx_models.made(nodes, [("ids", ["n"])], [("y", ["n", 8])], held)
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.INT64
    np.savez(tmp_path / "ids.npz", ids=DRAW.integers(0, 96, 40))
    return onnx_models.written(model, tmp_path / "words.onnx")


@pytest.fixture
def halved(tmp_path):
    """A matrix product and a bias, all of float16."""
    shapes = (("weight", (64, 64)), ("bias", (64,)))
    held = [
        numpy_helper.from_array(DRAW.standard_normal(shape).astype("f2"), name)
        for name, shape in shapes
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "weight"], ["product"], "product"),
        helper.make_node("Add", ["product", "bias"], ["y"], "sum"),
    ]
    model = onnx_models.made(nodes, [("x", ["n", 64])], [("y", ["n", 64])], held)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = TensorProto.FLOAT16
    np.savez(tmp_path / "x.npz", x=DRAW.standard_normal((16, 64)).astype("f2"))
    return onnx_models.written(model, tmp_path / "half.onnx")


def said(model, *options):
    """The answer about a model that is written beside it."""
    output = model.with_suffix(".q.onnx")
    given = [str(model), "-o", str(output), "--json", "--force", *map(str, options)]
    done = CliRunner().invoke(quantize, given, standalone_mode=False)
    if done.exception is not None:
        raise done.exception
    return done.return_value, json.loads(done.stdout), output


@pytest.mark.parametrize(("bits", "by"), [(4, "blocks"), (8, "integers"), (3, "packed")])
def test_a_table_of_words_is_quantised_and_judged(words, bits, by):
    ids = ("--inputs", words.parent / "ids.npz")
    code, found, output = said(words, "--weight-only", "--accept", "--bits", bits, *ids)
    (table,) = [one for one in found["layers"] if one["op"] == "Gather"]
    assert code == 0, found["headline"]
    assert (table["engine"], table["standing"]) == (by, "noise")
    assert abs(table["own"] - table["expected"]) < 6
    assert not found["not_quantised"]
    assert output.stat().st_size < words.stat().st_size / (2 if bits > 3 else 1.5)


def test_a_wrong_step_of_a_table_is_a_fault(words):
    # given a table in 8 bits whose first step is three times as large as it should be
    file = open_model(words)
    layers = layers_of(file.proto, lookups=True)
    plan = Plan({one.name: 8 for one in layers}, None)
    quantised = quantized_model(file.proto, layers, plan)
    (step,) = [
        one for one in quantised.graph.initializer if one.name.endswith("step") and one.dims[0] > 8
    ]
    steps = numpy_helper.to_array(step).copy()
    steps[:48] *= 3
    step.CopyFrom(numpy_helper.from_array(steps, step.name))
    # when it is judged on words of these rows
    samples = read_samples([str(words.parent / "ids.npz")], file.inputs, option="--inputs")
    found = {one.op: one for one in layer_errors(file.proto, quantised, layers, plan, samples)}
    # then the lookup is at fault, and the product is not
    assert found["Gather"].standing is Standing.FAULT
    assert found["MatMul"].standing is Standing.NOISE


@pytest.mark.parametrize(
    "how",
    [
        ("--weight-only",),
        ("--dynamic-ranges", "--reduce-range"),
        ("--ranges-from", "x.npz", "--reduce-range"),
    ],
)
def test_a_model_of_float16_is_quantised_and_stays_one_to_its_callers(halved, how):
    path = halved.parent / "x.npz"
    options = [path if one == "x.npz" else one for one in how]
    code, found, output = said(halved, *options, "--inputs", path)
    assert code == 0, found["headline"]
    assert found["outcome"]["size_before_bytes"] == len(onnx.load(halved).SerializeToString())
    assert found["outcome"]["sqnr_db"] > 30
    file = open_model(output)
    assert [one.dtype for one in (*file.inputs, *file.outputs)] == ["float16"] * 2
    x = np.load(path)["x"]
    before, after = (Session(open_model(one).proto).run({"x": x})["y"] for one in (halved, output))
    assert after.dtype == before.dtype == np.float16
    assert np.abs(after - before).max() < 1
